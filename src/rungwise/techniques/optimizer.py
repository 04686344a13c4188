"""The optimizer and its learning rate schedule."""

import importlib.util
import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler
from transformers.optimization import Adafactor

from ..settings.fields import OWN, Settings
from .seen import Seen
from .torch_compile import missing_tools

if TYPE_CHECKING:
    from transformers import Trainer

Groups = list[dict[str, Any]]
# 8-bit state of torchao, an extra. Its name says how it keeps AdamW's moments; the update itself is in fp32.
EIGHT_BIT = "adamw_torch_8bit"


def _adamw_8bit(groups: Groups, lr: float) -> torch.optim.Optimizer:
    from torchao.optim import AdamW8bit

    # About a cache of compiled code, which nobody can do anything about here.
    warnings.filterwarnings("ignore", message="OptimState8bit does not implement _stable_hash_for_caching")
    return AdamW8bit(groups, lr=lr)


# As Transformers' Trainer makes them of the same names.
OPTIMIZERS: dict[str, Callable[[Groups, float], torch.optim.Optimizer]] = {
    "adamw_torch": lambda groups, lr: torch.optim.AdamW(groups, lr=lr),
    "adamw_torch_fused": lambda groups, lr: torch.optim.AdamW(groups, lr=lr, fused=True),
    EIGHT_BIT: _adamw_8bit,
    "adafactor": lambda groups, lr: Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr),
}
NAMES = {torch.optim.AdamW: "adamw_torch", Adafactor: "adafactor", torch.optim.SGD: "sgd"}


def validate(settings: Settings, device_type: str) -> list[str]:
    """That the package is not installed, or what its compiled step needs on this machine."""
    if settings.optim != EIGHT_BIT:
        return []
    asked = f"--optim {EIGHT_BIT}"
    if importlib.util.find_spec("torchao") is None:
        return [f"{asked}: not installed; pip install 'rungwise[torchao]'"]
    return missing_tools(asked, device_type)


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """The optimizer by its name. It decays matrices and embeddings alone, as is usual for language models."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return OPTIMIZERS[settings.optim](groups, settings.learning_rate)


def build_scheduler(optimizer: torch.optim.Optimizer, settings: Settings) -> LRScheduler:
    """The learning rate over optimizer steps. It is not given to `prepare`, which would step it once a process."""
    return get_scheduler(settings.lr_scheduler_type, optimizer, settings.warmup_steps, settings.max_steps)


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, as settings."""
    args = trainer.args
    return {
        "optim": str(getattr(args.optim, "value", args.optim)),
        "learning_rate": args.learning_rate,
        "weight_decay": args.weight_decay,
        "max_grad_norm": args.max_grad_norm,
        "lr_scheduler_type": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
        "warmup_steps": args.get_warmup_steps(trainer.state.max_steps),
    }


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments."""
    names = ("optim", "learning_rate", "weight_decay", "max_grad_norm", "lr_scheduler_type", "warmup_steps")
    return {name: getattr(settings, name) for name in names}


def is_known(name: str) -> bool:
    """Whether an optimizer can be told by this name."""
    return name in OPTIMIZERS


def keeps_quantized(settings: Settings) -> bool:
    """Whether state is kept in tensors that are made of several others."""
    return settings.optim == EIGHT_BIT


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether gradients were clipped at the norm that was asked for."""
    asked, limits = seen.settings.max_grad_norm, seen.forward.clipped_at
    if limits == {asked or float("inf")}:
        return {}, []
    words = ", ".join("inf, which is not at all" if limit == float("inf") else f"{limit:g}" for limit in limits)
    return {}, [
        f"max_grad_norm {asked:g} was asked for, gradients were clipped at {words or 'no norm'}; "
        "tell the loop max_grad_norm"
    ]


def step_evidence(seen: Seen) -> list[str]:
    """What a flag says of the optimizer and is not so. What nobody asked for is recorded alone."""
    asked, groups = seen.settings, seen.optimizer.param_groups
    found = {
        "optim": name_of(seen.optimizer),
        "learning_rate": max(float(group.get("initial_lr", group.get("lr", 0.0))) for group in groups),
        "weight_decay": max(group.get("weight_decay", 0.0) for group in groups),
    }
    return [
        f"{name} {getattr(asked, name)} was asked for, the optimizer has {value}"
        for name, value in found.items()
        if asked.origins.get(name, "default") not in ("default", OWN) and _differs(getattr(asked, name), value)
    ]


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """As `--optim` calls it; of another kind its class."""
    if type(optimizer).__name__ == "AdamW8bit":
        return EIGHT_BIT
    fused = "_fused" if optimizer.param_groups[0].get("fused") else ""
    return f"{NAMES[type(optimizer)]}{fused}" if type(optimizer) in NAMES else type(optimizer).__name__


def _differs(asked: str | float, found: str | float | torch.Tensor) -> bool:
    """Whether another value was asked for. A learning rate that is kept as a tensor has the digits of fp32."""
    return asked != found if isinstance(asked, str) else not math.isclose(asked, float(found), rel_tol=2.0**-22)
