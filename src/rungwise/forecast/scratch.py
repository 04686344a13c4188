"""What half-precision products take beside their output, and give back at once, on this machine's CPU.

oneDNN decides it from the shapes and the processor, and takes it from PyTorch's allocator; the kernels of `cpu_matmul`
take their fp32 blocks. Neither can be read off, and so the operator is tried, as this process computes it.
"""

import itertools
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import torch

from ..device import native_precision
from ..metrics.allocations import allocations
from ..metrics.memory import MIB
from ..techniques import cpu_matmul

# The most that was seen is 1.7 MiB a thread; of `cpu_matmul`, three blocks of 4 MiB and one of 1.
MOST_A_THREAD, MOST_OF_BLOCKS = 4 * MIB, 16 * MIB
# Larger products are not tried, which would take seconds or memory of its own.
LARGEST_FLOPS, LARGEST_BYTES = 2e9, 64 * MIB
NOT_TRIED = "forecast without what its largest half-precision products take beside their output"
HALF = {torch.bfloat16: "bf16", torch.float16: "fp16"}
HERE = torch.device("cpu")


class Layout(NamedTuple):
    """What of a tensor decides which kernel computes with it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> torch.Tensor:
        """One of zeros, whose elements overlap where the layout says so."""
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return torch.zeros(extent, dtype=self.dtype).as_strided(self.shape, self.strides)


class Product(NamedTuple):
    """One product: its operator, and its arguments with layouts for tensors."""

    operator: Any
    arguments: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...]

    @property
    def factors(self) -> tuple[Layout, Layout]:
        """What is multiplied."""
        a, b = [one for one in self.arguments if isinstance(one, Layout)][-2:]
        return a, b

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be tried."""
        a, b = self.factors
        rows, columns = math.prod(a.shape[:-1]), b.shape[-1]
        size = math.prod(a.shape) + math.prod(b.shape) + rows * columns
        return 2 * rows * a.shape[-1] * columns > LARGEST_FLOPS or size * a.dtype.itemsize > LARGEST_BYTES


def product(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Product | None:
    """The product in half precision that a call of an operator is, or None."""
    if func._schema.name.removeprefix("aten::").removesuffix("_") not in cpu_matmul.OPERATORS:
        return None
    *_, factor = (arg for arg in args if isinstance(arg, torch.Tensor))
    if factor.dtype not in HALF:
        return None
    return Product(func, tuple(map(_layout, args)), tuple((name, _layout(value)) for name, value in kwargs.items()))


def most() -> int:
    """The most bytes that any product takes beside its output."""
    return max(MOST_A_THREAD * torch.get_num_threads(), MOST_OF_BLOCKS if cpu_matmul.used() else 0)


def taken(one: Product) -> int | None:
    """The bytes that a product takes beside its output, as this process computes it; None if it is too large."""
    dtype = one.factors[0].dtype
    if dtype not in cpu_matmul.used() and HALF[dtype] not in native_precision(HERE):
        # PyTorch's own loops take long, and nothing.
        return 0
    return None if one.is_large else _tried(one, cpu_matmul.used(), torch.get_num_threads())


@cache
def _tried(one: Product, used: frozenset[torch.dtype], threads: int) -> int:
    """What stands behind `one` decides with it."""
    arguments = [_value(value) for value in one.arguments]
    options = {name: _value(value) for name, value in one.options}
    with torch.no_grad(), allocations(HERE) as changes:
        out = one.operator(*arguments, **options)
    del out
    held = list(itertools.accumulate(change for _, change in changes))
    return max(held, default=0) - (held[-1] if held else 0)


def _layout(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Layout(tuple(value.shape), tuple(value.stride()), value.dtype)
    return value


def _value(value: Any) -> Any:
    return value.tensor() if isinstance(value, Layout) else value
