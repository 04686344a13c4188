"""What CUDA's kernels allocate beside their results, and what its allocator takes for a size."""

import math
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from . import cuda

aten = torch.ops.aten
FLOAT, LONG = torch.float32.itemsize, torch.long.itemsize


def block(size: int) -> int:
    """The bytes of the block that the caching allocator takes for a size.

    It is that of a request that finds no block to reuse. In a block of before, what is left may be more or less, by
    less than `cuda.LEAST_REST`.
    """
    rounded = _up(size, cuda.BLOCK)
    if rounded < cuda.OWN_SEGMENT:
        return rounded
    segment = _up(rounded, cuda.SEGMENT)
    return rounded if segment - rounded > cuda.LEAST_REST else segment


def workspaces(capability: tuple[int, int]) -> int:
    """The bytes of cuBLAS's workspaces in a process that trains on a GPU of this compute capability."""
    sizes = re.findall(cuda.WORKSPACE_PATTERN, os.environ.get(cuda.WORKSPACE_VARIABLE, ""))
    asked = sum(1024 * int(size) * int(count) for size, count in sizes)
    size = asked if sizes else cuda.WORKSPACES.get(capability[0], cuda.WORKSPACE)
    return cuda.MULTIPLYING_THREADS * block(size)


def temporaries(func: Any, arguments: Any, out: Any) -> int:
    """What an operator takes while it runs, beside its results, in bytes. Most cast as they read, and take nothing.

    Left out are the partial results of sums, layer norms and sorts, and what cuDNN takes.
    """
    counted = COUNTED.get(func._overloadpacket)
    if counted is None:
        return 0
    args, kwargs = arguments
    return counted(*args, **kwargs)


def _embedding_backward(gradient: torch.Tensor, indices: torch.Tensor, rows: int, *_: Any) -> int:
    count = indices.numel()
    if count <= cuda.UNSORTED_INDICES:
        return 0
    groups = min(count, rows)
    parts = count // cuda.EMBEDDING_ROWS + groups
    sizes = [LONG * count] * 3 + [LONG * groups] * 2 + [LONG] * 2 + [LONG * parts, FLOAT * parts * gradient.shape[-1]]
    return sum(map(block, sizes))


def _foreach_norm(tensors: list[torch.Tensor], *_: Any, **__: Any) -> int:
    chunks = max(math.ceil(tensor.numel() / cuda.FOREACH_CHUNK) for tensor in tensors)
    return block(FLOAT * len(tensors) * chunks)


def _flash_backward(gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, *_: Any, **__: Any) -> int:
    """Of queries (B, H, T, D) and keys (B, H or fewer, S, D)."""
    batch, heads, rows, width = query.shape
    multiple = cuda.FLASH_NARROW_MULTIPLE if width <= cuda.FLASH_NARROW_HEAD else cuda.FLASH_WIDE_MULTIPLE
    rows = _up(rows, cuda.FLASH_ROWS)
    taken = block(FLOAT * batch * heads * rows) + block(FLOAT * batch * heads * rows * _up(width, multiple))
    if key.shape[1] != heads:
        # The gradients of keys and values for each head of the query, before they are added up.
        taken += 2 * block(query.dtype.itemsize * batch * key.shape[2] * heads * width)
    return taken + _copy(gradient)


def _efficient_backward(gradient: torch.Tensor, query: torch.Tensor, *_: Any, **__: Any) -> int:
    """Of queries (B, H, T, D): the larger of what it takes before its kernel and what the kernel takes."""
    batch, heads, rows, width = query.shape
    delta = block(FLOAT * batch * heads * rows)
    tiles = math.ceil(rows / cuda.EFFICIENT_TILE) * math.ceil(width / cuda.EFFICIENT_TILE)
    workspace = block(batch * heads * tiles * (cuda.EFFICIENT_LOCK + FLOAT * cuda.EFFICIENT_TILE**2))
    # In half precision the kernel computes it; in fp32 it is the sum of a product, turned round.
    before = 0 if query.dtype != torch.float32 else block(FLOAT * gradient.numel()) + 2 * delta
    return _copy(gradient) + max(before, delta + workspace)


def _copy(gradient: torch.Tensor) -> int:
    """A gradient (B, H, T, D) is read as (B, T, H, D), in order."""
    return 0 if gradient.transpose(1, 2).is_contiguous() else block(gradient.dtype.itemsize * gradient.numel())


COUNTED: dict[Any, Callable[..., int]] = {
    aten.embedding_dense_backward: _embedding_backward,
    aten._foreach_norm: _foreach_norm,
    aten._scaled_dot_product_flash_attention_backward: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward: _efficient_backward,
}


def layer_norm(func: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
    """`native_layer_norm`, which on CUDA keeps mean and deviation in fp32: cuda/layer_norm_kernel.cu."""
    out, mean, deviation = func(tensor, *args, **kwargs)
    return out, mean.float(), deviation.float()


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
