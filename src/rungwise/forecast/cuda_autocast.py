"""Autocast as it is on CUDA, for fake tensors of a machine without it: the same casts by the same rules, other lists.

The dispatcher asks the CPU's autocast, since that is where fake tensors are; for as long as a trace takes, these
kernels answer in its place.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..techniques import grouped_mm_autocast
from . import cuda

KEY = "AutocastCPU"
WITHOUT_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
Kernel = Callable[..., Any]
Cast = Callable[[torch.Tensor, torch.dtype], torch.Tensor]


@dataclass(frozen=True)
class Lists:
    """Operators by what autocast does to them, as `cuda` describes it."""

    lower_precision: Collection[str]
    float32: Collection[str]
    float32_result: Collection[str]
    float32_overload: Mapping[str, str]
    widest: Collection[str]


CUDA = Lists(cuda.LOWER_PRECISION, cuda.FLOAT32, cuda.FLOAT32_RESULT, cuda.FLOAT32_OVERLOAD, cuda.WIDEST)


@contextmanager
def autocast(lists: Lists = CUDA) -> Iterator[None]:
    """Inside, autocast on the CPU goes by these lists; what they do not name is left as it is."""
    kept = _Casts()
    kernels: dict[str, Kernel] = {
        name.removeprefix("aten::"): torch.library.fallthrough_kernel for name in of_the_cpu()
    }
    kernels |= {name: _casting(name, _lower, kept.lower) for name in lists.lower_precision}
    kernels |= {name: _casting(name, _float32) for name in lists.float32}
    kernels |= {name: _casting(name, _widest) for name in lists.widest}
    kernels |= {name: _with_result(name) for name in lists.float32_result}
    kernels |= {name: _by_overload(name, other) for name, other in lists.float32_overload.items()}
    # PyTorch calls it where the outermost autocast ends.
    with mock.patch.object(torch, "clear_autocast_cache", kept.clear), replaced(kernels, KEY):
        yield


@contextmanager
def replaced(kernels: Mapping[str, Kernel], key: str) -> Iterator[None]:
    """Inside, these operators of `aten` have other kernels for a dispatch key."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # That is what it is for, and PyTorch's own come back.
            warnings.filterwarnings("ignore", message="Warning only once for all operators")
            for name, kernel in kernels.items():
                library.impl(name, kernel, key)
        yield
    finally:
        library._destroy()


def operator(name: str) -> Any:
    """An operator of `aten` by its name, with its overload where it is not the default one."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def of_the_cpu() -> list[str]:
    """The operators of `aten` that PyTorch's autocast knows on the CPU."""
    names = set(torch._C._dispatch_get_registrations_for_dispatch_key(KEY)) - {*grouped_mm_autocast.OPERATORS}
    return [name for name in names if name.startswith("aten::")]


class _Casts:
    """Casts to the dtype of autocast, each parameter's once: aten/src/ATen/autocast_mode.cpp, `cached_cast`."""

    def __init__(self) -> None:
        # By the parameter's identity, which it has to itself as long as it is kept.
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def lower(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        a_weight = tensor.dtype == torch.float32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        if tensor.dtype == dtype or not (a_weight and torch.is_autocast_cache_enabled()):
            return tensor.to(dtype)
        if id(tensor) not in self._kept:
            # For passes with a gradient, too, that come after one without.
            with torch.enable_grad():
                self._kept[id(tensor)] = tensor, tensor.to(dtype)
        return self._kept[id(tensor)][1]


def _eligible(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def _lower(_: Any) -> torch.dtype:
    return torch.get_autocast_dtype("cpu")


def _float32(_: Any) -> torch.dtype:
    return torch.float32


def _widest(arguments: Any) -> torch.dtype:
    dtypes = {value.dtype for value in tree_leaves(arguments) if _eligible(value)}
    return torch.float32 if torch.float32 in dtypes else torch.get_autocast_dtype("cpu")


def _casting(name: str, dtype_of: Callable[[Any], torch.dtype], cast: Cast = torch.Tensor.to) -> Kernel:
    called = operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(WITHOUT_AUTOCAST):
            dtype = dtype_of((args, kwargs))

            def each(value: Any) -> Any:
                return tree_map(lambda one: cast(one, dtype) if _eligible(one) else one, value)

            # From the last to the first, as compilers of C++ have it.
            options = {option: each(value) for option, value in reversed(kwargs.items())}
            return called(*[each(value) for value in reversed(args)][::-1], **options)

    return kernel


def _with_result(name: str) -> Kernel:
    called = operator(name)
    names = [argument.name for argument in called._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(WITHOUT_AUTOCAST):
            if not _eligible(args[0]):
                return called(*args, **kwargs)
            given = dict(zip(names, args, strict=False)) | kwargs
            asked = given.pop("dtype", None)
            return called(**given, dtype=torch.float32 if asked is None else asked)

    return kernel


def _by_overload(name: str, other: str) -> Kernel:
    called, with_dtype = operator(name), operator(other)
    names = [argument.name for argument in called._schema.arguments]
    defaults = {argument.name: argument.default_value for argument in called._schema.arguments[1:]}

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(WITHOUT_AUTOCAST):
            given = defaults | dict(zip(names, args, strict=False)) | kwargs
            return with_dtype(**given, dtype=torch.float32 if _eligible(args[0]) else args[0].dtype)

    return kernel
