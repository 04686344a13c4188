"""The optimizer and its learning rate schedule."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from transformers import get_scheduler
from transformers.optimization import Adafactor

from ..settings.fields import Settings
from .seen import Seen

Groups = list[dict[str, Any]]
# As Transformers' Trainer makes them of the same names.
OPTIMIZERS: dict[str, Callable[[Groups, float], torch.optim.Optimizer]] = {
    "adamw_torch": lambda groups, lr: torch.optim.AdamW(groups, lr=lr),
    "adamw_torch_fused": lambda groups, lr: torch.optim.AdamW(groups, lr=lr, fused=True),
    "adafactor": lambda groups, lr: Adafactor(groups, lr=lr, scale_parameter=False, relative_step=False),
    "sgd": lambda groups, lr: torch.optim.SGD(groups, lr=lr),
}
NAMES = {torch.optim.AdamW: "adamw_torch", Adafactor: "adafactor", torch.optim.SGD: "sgd"}


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


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether gradients were clipped at the norm that was asked for."""
    asked, limits = seen.settings.max_grad_norm, seen.forward.clipped_at
    if limits == {asked or float("inf")}:
        return {}, []
    words = ", ".join("inf, which is not at all" if limit == float("inf") else f"{limit:g}" for limit in limits)
    return {}, [
        f"max_grad_norm {asked:g} was asked for, gradients were clipped at {words or 'no norm'}; "
        "give train() max_grad_norm=settings.max_grad_norm"
    ]


def step_evidence(seen: Seen) -> list[str]:
    """What a flag says of the optimizer and is not so. What nobody asked for is recorded alone."""
    asked, groups = seen.settings, seen.optimizer.param_groups
    found = {
        "optim": name_of(seen.optimizer),
        "learning_rate": max(group.get("initial_lr", group.get("lr", 0.0)) for group in groups),
        "weight_decay": max(group.get("weight_decay", 0.0) for group in groups),
    }
    return [
        f"{name} {getattr(asked, name)} was asked for, the optimizer has {value}"
        for name, value in found.items()
        if asked.origins.get(name, "default") != "default" and getattr(asked, name) != value
    ]


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """As `--optim` calls it; of another kind its class."""
    fused = "_fused" if optimizer.param_groups[0].get("fused") else ""
    return f"{NAMES[type(optimizer)]}{fused}" if type(optimizer) in NAMES else type(optimizer).__name__
