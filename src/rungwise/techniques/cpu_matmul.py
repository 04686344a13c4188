"""bf16 and fp16 matrix products for CPUs whose own are slow: `product_kernels` decides where that is so.

Without instructions for a dtype PyTorch falls back to a plain loop, so slow for GPT-2's layers that a laptop could not
climb the ladder (`python -m rungwise.techniques.cpu_matmul` measures it). This computes the same products block by
block in fp32 and rounds the result, which is what the instructions do too. Numbers and memory are those of the dtype
asked for; the speed is this processor's in fp32, and a run says so.

Kernels are replaced as `torch.library.get_kernel` documents it: every other dtype goes on to the original.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any

import torch

# Rows, depth and columns of one fp32 block. Its 4 MiB do not show in the peak memory that is measured.
BLOCK = 512  # rows and depth
COLUMNS = 2048
HALF = (torch.bfloat16, torch.float16)
OPERATORS = ("mm", "bmm", "addmm", "baddbmm")

_library: torch.library.Library | None = None
_used: frozenset[torch.dtype] = frozenset()


def used() -> frozenset[torch.dtype]:
    """The dtypes whose products these kernels compute in this process."""
    return _used


def use(dtypes: Collection[torch.dtype]) -> None:
    """Has these kernels compute the products of these dtypes, of bf16 and fp16, in this process, and of no others."""
    global _used
    _used = frozenset(dtypes)
    if _used:
        _install()


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a (M, K) @ b (K, N) by these kernels, whichever are in use."""
    return _product(torch.mm, a, b, None, a.new_empty(a.shape[0], b.shape[1]))


def _install() -> None:
    """Replaces the CPU kernels of mm, bmm, addmm and baddbmm, once."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    kernels = {name: _kernel(name) for operator in OPERATORS for name in (operator, f"{operator}.out")}
    with warnings.catch_warnings():
        # PyTorch warns that a kernel is replaced, which is the purpose.
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name, kernel in kernels.items():
            _library.impl(name, kernel, "CPU", with_keyset=True, allow_override=True)


def _kernel(name: str) -> Callable[..., torch.Tensor]:
    original = torch.library.get_kernel(f"aten::{name}", "CPU")
    fp32_product = torch.library.get_kernel("aten::bmm" if "b" in name else "aten::mm", "CPU")

    def kernel(keys: Any, *tensors: torch.Tensor, **options: Any) -> torch.Tensor:
        *bias, a, b = tensors
        if a.dtype not in _used or any(t.dtype != a.dtype for t in tensors):
            return original.call_boxed(keys, *tensors, **options)
        shape = (*a.shape[:-1], b.shape[-1])
        out = options.get("out")
        if out is None:
            out = a.new_empty(shape)
        elif out.shape != shape:
            out.resize_(shape)
        add = (bias[0].expand(shape), options.get("beta", 1), options.get("alpha", 1)) if bias else None
        # The kernel itself, not torch.mm: autocast would turn its fp32 blocks to bf16 again.
        return _product(lambda x, y: fp32_product.call_boxed(keys, x, y), a, b, add, out)

    return kernel


def _product(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    add: tuple[torch.Tensor, float, float] | None,
    out: torch.Tensor,
) -> torch.Tensor:
    """out (..., M, N) = a (..., M, K) @ b (..., K, N), summed in fp32 and rounded once.

    `add` is (bias, beta, alpha): out = beta x bias + alpha x product.
    """
    if a.ndim == 3 and len(a) > 1:
        # As many matrices at a time as fill about one block.
        count = max(1, BLOCK * BLOCK // max(1, a.shape[1] * b.shape[2]))
        for start in range(0, len(a), count):
            some = slice(start, start + count)
            _blocks(multiply, a[some], b[some], (add[0][some], *add[1:]) if add else None, out[some])
        return out
    return _blocks(multiply, a, b, add, out)


def _blocks(
    multiply: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    a: torch.Tensor,
    b: torch.Tensor,
    add: tuple[torch.Tensor, float, float] | None,
    out: torch.Tensor,
) -> torch.Tensor:
    starts = itertools.product(range(0, a.shape[-2], BLOCK), range(0, b.shape[-1], COLUMNS))
    for i, j in starts:
        rows, columns = slice(i, i + BLOCK), slice(j, j + COLUMNS)
        total = torch.zeros(())
        for k in range(0, a.shape[-1], BLOCK):
            depth = slice(k, k + BLOCK)
            part = multiply(a[..., rows, depth].float(), b[..., depth, columns].float())
            total = part.add_(total) if k else part
        if add:
            bias, beta, alpha = add
            total = total * alpha
            if beta:
                total = total + beta * bias[..., rows, columns].float()
        out[..., rows, columns].copy_(total)
    return out


def _milliseconds(dtype: torch.dtype) -> float:
    """The best of three products as in a GPT-2 layer: (1024, 256) @ (256, 1024), plus a bias."""
    a, b, bias = (torch.ones(shape, dtype=dtype) for shape in ((1024, 256), (256, 1024), (1024,)))
    times = []
    for _ in range(3):
        started = time.perf_counter()
        torch.addmm(bias, a, b)
        times.append(1000 * (time.perf_counter() - started))
    return min(times)


def main() -> None:
    """Prints how long one product takes in each dtype, with PyTorch's kernels and with these."""
    dtypes = (torch.float32, *HALF)
    before = [_milliseconds(dtype) for dtype in dtypes]
    use(HALF)
    after = [_milliseconds(dtype) for dtype in dtypes]
    print("(1024, 256) @ (256, 1024) + bias   PyTorch ms   Rungwise ms")
    for dtype, old, new in zip(dtypes, before, after, strict=True):
        print(f"{str(dtype).removeprefix('torch.'):<34} {old:>10.1f} {new:>13.1f}")


if __name__ == "__main__":
    main()
