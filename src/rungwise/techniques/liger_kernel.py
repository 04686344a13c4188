"""Liger's Triton kernels for GPUs, by Transformers' own switch: norms, rotary positions, gated MLPs, a kernel each.

Liger's loss is left out: `--linear_cross_entropy` is the loss without whole logits. It does not pay where the compiler
fuses the same operators, and there are kernels for some families of models alone.
"""

import importlib.util
from collections import Counter
from typing import TYPE_CHECKING, Any

from torch import nn

from ..settings.fields import Settings
from .seen import Seen, UnavailableTechnique

if TYPE_CHECKING:
    from transformers import Trainer

FLAG = "--use_liger_kernel"
PACKAGE = "liger_kernel"
WITHOUT_LOSS = {"cross_entropy": False, "fused_linear_cross_entropy": False}


def validate(settings: Settings, device_type: str) -> list[str]:
    """That there is no GPU for the kernels to run on, or that the package is not installed."""
    if not settings.use_liger_kernel:
        return []
    if device_type == "cpu":
        return [f"{FLAG}: its kernels are Triton's and run on GPUs alone, and this run is on the CPU; leave it out"]
    if importlib.util.find_spec(PACKAGE) is None:
        return [f"{FLAG}: not installed; pip install 'rungwise[liger]'"]
    return []


def apply(model: nn.Module, settings: Settings) -> None:
    """Has Transformers put Liger's kernels in the place of modules that they compute.

    Raises:
        UnavailableTechnique: it has none for this model.
    """
    if not settings.use_liger_kernel:
        return
    from transformers.integrations.liger import apply_liger_kernel

    apply_liger_kernel(model, WITHOUT_LOSS)
    if not _replaced(model):
        raise UnavailableTechnique(f"Liger has no kernels for {type(model).__name__}; leave {FLAG} out")


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, or its model by the script's own hand, as a setting."""
    return {"use_liger_kernel": bool(trainer.args.use_liger_kernel) or bool(_replaced(model))}


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments."""
    if not settings.use_liger_kernel:
        return {}
    return {"use_liger_kernel": True, "liger_kernel_config": WITHOUT_LOSS}


def _replaced(model: nn.Module) -> dict[str, int]:
    """How many modules of each class compute by one of Liger's kernels: their class or their forward is Liger's."""
    return dict(
        Counter(
            type(module).__name__
            for module in model.modules()
            if any(place.__module__.startswith(PACKAGE) for place in (type(module), module.forward))
        )
    )


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Which modules compute by Liger's kernels."""
    asked, found = seen.settings.use_liger_kernel, _replaced(seen.model)
    if asked == bool(found):
        return {"liger_kernels": found}, []
    words = ", ".join(f"{count} {name}" for name, count in found.items()) or "none"
    return {"liger_kernels": found}, [
        f"Liger's kernels were asked for: {asked}; modules that compute by them: {words}"
    ]
