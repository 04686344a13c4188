"""The devices that a forecast can be for, and what their memory differs in."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from . import cpu_kernels, cuda, cuda_kernels, scratch
from .cuda_operators import Capability, on_cuda


@dataclass(frozen=True)
class Device:
    """What of a device decides a run's memory. Fake tensors are always the CPU's.

    Attributes:
        name: cpu or cuda.
        temporaries: the bytes that an operator, of these arguments and this result, takes while it runs.
        product: of a call of an operator, the product that takes more beside its output than `temporaries` knows.
        block: the bytes that the allocator takes for a size.
        calls: operators whose results are others, by name: functions of the operator and its arguments.
        host: operators whose results are not in this device's memory, by name.
        knows_older: whether its allocator counts all that there is, or only what is allocated while it is asked.
        workspaces: bytes that libraries hold from the first step on.
        operators: inside of what it gives, operators are this device's.
        note: what a forecast for it has to be called.
    """

    name: str
    temporaries: Callable[[Any, Any, Any], int]
    product: Callable[..., scratch.Product | None] = lambda *_: None
    block: Callable[[int], int] = lambda size: size
    calls: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    host: frozenset[str] = frozenset()
    knows_older: bool = False
    workspaces: int = 0
    operators: Callable[[], AbstractContextManager[Any]] = nullcontext
    note: str | None = None


CPU = Device("cpu", cpu_kernels.temporaries, scratch.product)


def cuda_device(capability: Capability | None = None) -> Device:
    """A GPU of this compute capability [the one that is here, or else `cuda.ASSUMED_CAPABILITY`]."""
    if capability is None:
        here = torch.cuda.is_available()
        capability = torch.cuda.get_device_capability() if here else cuda.ASSUMED_CAPABILITY
    return Device(
        "cuda",
        cuda_kernels.temporaries,
        block=cuda_kernels.block,
        calls={"aten::native_layer_norm": cuda_kernels.layer_norm},
        # Tensors of Python's numbers: the counts of steps that AdamW keeps.
        host=frozenset({"aten::lift_fresh"}),
        knows_older=True,
        workspaces=cuda_kernels.workspaces(capability),
        operators=partial(on_cuda, capability),
        note=cuda.NOT_MEASURED,
    )
