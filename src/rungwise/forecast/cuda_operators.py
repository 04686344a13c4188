"""Operators that are others on CUDA than on the CPU: dropout, and the kernels of attention."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.optim import optimizer
from torch.utils import _foreach_utils

from . import cuda
from .cuda_autocast import autocast, replaced

aten = torch.ops.aten
Capability = tuple[int, int]
CUDNN, FLASH, EFFICIENT, MATH = "cudnn", "flash", "efficient", "math"
HALVES = (torch.float16, torch.bfloat16)


@contextmanager
def on_cuda(capability: Capability) -> Iterator[None]:
    """Inside, fake tensors of the CPU are computed with as tensors are on a GPU of this compute capability."""
    with ExitStack() as stack:
        stack.enter_context(autocast())
        kernels = {"dropout": _dropout, "scaled_dot_product_attention": _Attention(capability)}
        # Both are made of others, so that this key, above the device's own, finds them first.
        stack.enter_context(replaced(kernels, "AutogradCPU"))
        # Lists of tensors at once are the default on CUDA: `_default_to_fused_or_foreach`, `clip_grad_norm_`.
        for module in (optimizer, _foreach_utils):
            devices = mock.patch.object(module, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
            stack.enter_context(devices)
            types = [*_foreach_utils._foreach_supported_types, torch.nn.Parameter, FakeTensor]
            stack.enter_context(mock.patch.object(module, "_foreach_supported_types", types))
        yield


def _dropout(tensor: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """aten/src/ATen/native/Dropout.cpp, `dropout`: fused, it keeps a mask of one byte a number."""
    if not train or p == 0 or not tensor.numel():
        return tensor.view_as(tensor)
    if p == 1:
        return tensor * torch.zeros((), dtype=tensor.dtype)
    return aten.native_dropout(tensor, p, True)[0]


class _Attention:
    """aten/src/ATen/native/transformers/attention.cpp, `scaled_dot_product_attention`."""

    def __init__(self, capability: Capability):
        self._capability = capability

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        """Attention of queries (B, H, T, D) to keys and values (B, H or fewer, S, D)."""
        kernel = attention_kernel(self._capability, query, key, value, attn_mask, dropout_p, is_causal, enable_gqa)
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        needed = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            shut = attn_mask.logical_not()
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(shut, -math.inf)
        if kernel == CUDNN:
            found = aten._scaled_dot_product_cudnn_attention(
                query, key, value, attn_mask, needed, dropout_p, is_causal, False, scale=scale
            )
            return found[0]
        if kernel == FLASH:
            padded = [_padded(tensor) for tensor in (query, key, value)]
            found = aten._scaled_dot_product_flash_attention(*padded, dropout_p, is_causal, False, scale=scale)
            return found[0][..., : query.shape[-1]]
        if kernel == EFFICIENT:
            if attn_mask is not None:
                attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
            found = aten._scaled_dot_product_efficient_attention(
                query, key, value, attn_mask, needed, dropout_p, is_causal, scale=scale
            )
            return found[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]


def attention_kernel(
    capability: Capability,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    shared_heads: bool,
) -> str:
    """The kernel that a GPU of this compute capability takes: CUDNN, FLASH, EFFICIENT or MATH."""
    tensors = query, key, value
    if any(tensor.ndim != 4 or tensor.stride(-1) != 1 for tensor in tensors):
        return MATH
    widths, heads = ([tensor.shape[n] for tensor in tensors] for n in (-1, 1))
    one_dtype = len({tensor.dtype for tensor in tensors}) == 1
    half = query.dtype == torch.float16 or (query.dtype == torch.bfloat16 and capability >= cuda.FLASH_CAPABILITY)
    same_heads = len(set(heads)) == 1
    flashes = one_dtype and half and (same_heads or shared_heads) and capability >= cuda.FLASH_CAPABILITY
    if flashes and capability[0] in cuda.CUDNN_FIRST and _suits_cudnn(widths, key.shape[2], dropout):
        return CUDNN
    square = not is_causal or query.shape[2] == key.shape[2]
    if flashes and mask is None and square and _suits_flash(capability, widths, dropout):
        return FLASH
    known = half or query.dtype == torch.float32
    if one_dtype and known and same_heads and _suits_efficient(capability, query, widths):
        return EFFICIENT
    return MATH


def _suits_cudnn(widths: list[int], keys: int, dropout: float) -> bool:
    whole = all(width <= cuda.CUDNN_WIDTH and width % cuda.CUDNN_MULTIPLE == 0 for width in widths)
    return whole and keys > 1 and (dropout * cuda.CUDNN_DROPOUTS).is_integer()


def _suits_flash(capability: Capability, widths: list[int], dropout: float) -> bool:
    width = max(widths)
    if min(widths) < width or width > cuda.FLASH_WIDTH:
        return False
    narrow = any(lowest <= capability <= highest for lowest, highest in cuda.FLASH_NARROW)
    return not narrow or width <= cuda.FLASH_NARROW_WIDTH or (dropout == 0 and width > cuda.FLASH_WIDE)


def _suits_efficient(capability: Capability, query: torch.Tensor, widths: list[int]) -> bool:
    least = cuda.LEAST_NUMBERS if capability[0] >= cuda.ALL_TENSOR_CORES else 1
    if capability[0] >= (cuda.HALF_TENSOR_CORES if query.dtype in HALVES else cuda.ALL_TENSOR_CORES):
        least = max(least, cuda.TENSOR_CORE_BYTES // query.dtype.itemsize)
    return widths[0] == widths[1] and all(width % least == 0 for width in widths)


def _padded(tensor: torch.Tensor) -> torch.Tensor:
    missing = -tensor.shape[-1] % cuda.PADDED
    return F.pad(tensor, (0, missing)) if missing else tensor


def _aligned(mask: torch.Tensor) -> torch.Tensor:
    """A mask whose rows begin where the kernel reads them from."""
    if mask.stride(-1) == 1 and all(stride % cuda.PADDED == 0 for stride in mask.stride()[:-1]):
        return mask
    width = mask.shape[-1]
    return F.pad(mask, (0, cuda.PADDED - width % cuda.PADDED))[..., :width]
