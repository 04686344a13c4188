"""The emulated products against fp64, and that nothing else changes. In its own process: kernels stay replaced."""

import subprocess
import sys
import textwrap

SCRIPT = textwrap.dedent(
    """
    import warnings; warnings.simplefilter("error"); warnings.filterwarnings("ignore", module="torchao")
    import torch
    from rungwise.techniques import cpu_matmul
    fp32 = torch.randn(70, 33) @ torch.randn(33, 5)
    g = torch.Generator().manual_seed(0)
    a32, b32 = torch.randn(70, 33, generator=g), torch.randn(33, 5, generator=g)
    before = a32 @ b32, torch.addmm(torch.ones(5), a32, b32, alpha=2), (a32.int() @ b32.int())
    half = torch.randn(700, 600, generator=g).bfloat16()
    own = half @ half.t()
    cpu_matmul.use(cpu_matmul.HALF); cpu_matmul.use(cpu_matmul.HALF)
    after = a32 @ b32, torch.addmm(torch.ones(5), a32, b32, alpha=2), (a32.int() @ b32.int())
    assert all(torch.equal(x, y) for x, y in zip(before, after))

    def close(found, exact, unit):
        # Summed in fp32 and rounded once: half a unit in the last place, and the fp32 sum's own error.
        bound = exact.abs() * unit + float(exact.abs().max() if exact.numel() else 0) * 1e-5
        assert found.shape == exact.shape and ((found.double() - exact).abs() <= bound).all()

    for dtype, unit in ((torch.bfloat16, 2.0**-8), (torch.float16, 2.0**-11)):
        for m, k, n in ((1, 1, 1), (3, 0, 2), (0, 4, 2), (700, 600, 5), (512, 512, 512), (513, 1025, 3), (5, 7, 4100)):
            a = torch.randn(m, k, generator=g).to(dtype)
            for b in (torch.randn(k, n, generator=g).to(dtype), torch.randn(n, k, generator=g).to(dtype).t()):
                exact = a.double() @ b.double()
                close(a @ b, exact, unit)
                bias = torch.randn(n, generator=g).to(dtype)
                close(torch.addmm(bias, a, b, beta=0.5, alpha=2), 0.5 * bias.double() + 2 * exact, unit)
                nan = torch.full((n,), float("nan"), dtype=dtype)
                close(torch.addmm(nan, a, b, beta=0), exact, unit)
                out = torch.empty(0, dtype=dtype)
                torch.mm(a, b, out=out)
                close(out, exact, unit)
        a, b = torch.randn(9, 40, 30, generator=g).to(dtype), torch.randn(9, 30, 20, generator=g).to(dtype)
        exact = torch.bmm(a.double(), b.double())
        close(torch.bmm(a, b), exact, unit)
        bias = torch.randn(20, generator=g).to(dtype)
        close(torch.baddbmm(bias, a, b), exact + bias.double(), unit)
        big, small = torch.randn(3, 900, 64, generator=g).to(dtype), torch.randn(3, 64, 900, generator=g).to(dtype)
        close(torch.bmm(big, small), torch.bmm(big.double(), small.double()), unit)

    # What measures them computes what they compute.
    a, b = (torch.randn(shape, generator=g).bfloat16() for shape in ((600, 700), (700, 300)))
    assert torch.equal(cpu_matmul.product(a, b), a @ b)

    # Switched off they leave no trace, and each dtype has a switch of its own.
    calls = []
    blocks, cpu_matmul._blocks = cpu_matmul._blocks, lambda *given: calls.append(given[1].dtype) or blocks(*given)
    for used in (cpu_matmul.HALF, (torch.float16,), ()):
        cpu_matmul.use(used)
        for dtype in cpu_matmul.HALF:
            calls.clear()
            torch.ones(2, 2, dtype=dtype) @ torch.ones(2, 2, dtype=dtype)
            assert calls == ([dtype] if dtype in used else [])
    assert torch.equal(half @ half.t(), own)
    cpu_matmul.use(cpu_matmul.HALF)

    try:
        torch.randn(2, 2).bfloat16() @ torch.randn(2, 2)
    except RuntimeError as error:
        assert "dtype" in str(error), error
    else:
        raise AssertionError("mixed dtypes must stay an error")

    # Through autocast and autograd: the gradient of a sum of products.
    weight = torch.randn(30, 20, generator=g, requires_grad=True)
    x = torch.randn(50, 30, generator=g)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ weight
    y.sum().backward()
    assert y.dtype == torch.bfloat16 and weight.grad.dtype == torch.float32
    close(weight.grad, x.bfloat16().double().sum(0)[:, None].expand(30, 20), 2.0**-8)
    print("passed")
    """
)


def test_products_are_rounded_fp32_products_and_nothing_else_changes():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "passed\n"
