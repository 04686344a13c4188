"""Activations by one kernel: Transformers writes some as chains of operators, each of which keeps its input.

GPT-2's `gelu_new` keeps four tensors of the widest size in the model for its backward pass, PyTorch's kernel for the
same formula one. It does not pay where a model's activation is one kernel already (`gelu`, `silu`), which is refused;
nor much under `torch.compile`, which fuses the chain by itself, and with checkpointing, under which the chain is kept
for one block at a time.
"""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import activations as chains

from ..settings.fields import Settings
from .seen import Seen, UnavailableTechnique

if TYPE_CHECKING:
    from transformers import Trainer


class FusedActivation(nn.Module):
    """An activation as one kernel, in the place of `replaced`, which is a chain that computes the same."""

    def __init__(self, replaced: str, kernel: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.replaced, self.kernel = replaced, kernel

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Of any shape, element by element."""
        return self.kernel(input)


def gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016."""
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(1.702 x), of the same authors, by the kernel of silu(y) = y sigmoid(y), which keeps y alone."""
    return F.silu(1.702 * x) / 1.702


# By the names of their classes, which not every release of Transformers has. GELUActivation and GELUTanh are a kernel
# each, unless a config asks for Python.
KERNELS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "NewGELUActivation": gelu_tanh,
    "FastGELUActivation": gelu_tanh,
    "AccurateGELUActivation": gelu_tanh,
    "GELUTanh": gelu_tanh,
    "GELUActivation": F.gelu,
    "QuickGELUActivation": quick_gelu,
}
KERNELS_UNLESS = {"GELUTanh": "_gelu_tanh_python", "GELUActivation": "_gelu_python"}
# Chains that no kernel of PyTorch computes.
NO_KERNEL = (
    "ClippedGELUActivation",
    "LaplaceActivation",
    "ReLUSquaredActivation",
    "SqrtSoftplusActivation",
    "XIELUActivation",
)


def apply(model: nn.Module, settings: Settings) -> None:
    """Replaces each activation that is a chain of operators and that one kernel computes.

    Raises:
        UnavailableTechnique: there is none.
    """
    if not settings.fused_activation:
        return
    # By each of its names: layers may share one activation.
    named = model.named_modules(remove_duplicate=False)
    found = {name: (_name(module), kernel) for name, module in named if (kernel := kernel_of(module))}
    if not found:
        left = ", ".join(_left(model)) or "its activations are one kernel each already"
        words = f"no activation of {type(model).__name__} is a chain of operators that one kernel computes"
        raise UnavailableTechnique(f"{words} ({left}); leave --fused_activation out")
    for name, (replaced, kernel) in found.items():
        model.set_submodule(name, FusedActivation(replaced, kernel))


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """Whether a Trainer was given a model with fused activations, as a setting."""
    return {"fused_activation": any(isinstance(module, FusedActivation) for module in model.modules())}


def kernel_of(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """The kernel that computes what this module computes as a chain; None if it is no chain, or has no equal."""
    name = _name(module)
    in_python = KERNELS_UNLESS.get(name)
    if in_python and getattr(module.act, "__name__", None) != in_python:
        return None
    return KERNELS.get(name)


def _name(module: nn.Module) -> str:
    """What Transformers calls this activation; empty for any other module."""
    return type(module).__name__ if type(module).__module__ == chains.__name__ else ""


def _left(model: nn.Module) -> list[str]:
    """The kinds of chains in the model that no kernel computes."""
    return sorted({_name(module) for module in model.modules()} & {*NO_KERNEL})


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Which activations one kernel computes in place of a chain, how many of a kind, and which kinds were left."""
    asked, modules = seen.settings.fused_activation, list(seen.model.modules())
    fused = Counter(module.replaced for module in modules if isinstance(module, FusedActivation))
    chained = Counter(type(module).__name__ for module in modules if kernel_of(module))
    found = {"fused_activations": dict(fused), "chained_activations": [*chained, *_left(seen.model)]}
    if asked == bool(fused) and not (asked and chained):
        return found, []
    words = ", ".join(f"{count} {kind}" for kind, count in chained.items()) or "none"
    return found, [
        f"fused activations were asked for: {asked}; in the model are {sum(fused.values())}, as chains: {words}"
    ]
