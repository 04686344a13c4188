"""The loop that a person writes in plain PyTorch: what anything more costs is measured against it.

It imports nothing of this package, so that nothing of it can be in the figures.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, get_scheduler


@dataclass(frozen=True)
class Options:
    """What is trained how. `autocast` is the dtype of products, None for the parameters' own."""

    device: torch.device
    steps: int
    accumulation: int
    autocast: torch.dtype | None
    checkpointing: bool
    compiled: bool
    fused: bool
    schedule: str
    warmup: int
    learning_rate: float
    weight_decay: float
    max_grad_norm: float
    seed: int


def build(config: PreTrainedConfig, asked: Options) -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    """The model, AdamW and the schedule of its learning rate."""
    torch.manual_seed(asked.seed)
    model = AutoModelForCausalLM.from_config(config).to(asked.device)
    if asked.checkpointing:
        # By its newer name or its older.
        (getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable)()
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": asked.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=asked.learning_rate, fused=asked.fused or None)
    scheduler = get_scheduler(asked.schedule, optimizer, asked.warmup, asked.steps)
    return torch.compile(model) if asked.compiled else model, optimizer, scheduler


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, batches: Iterable[Any], asked: Options
) -> Iterator[torch.Tensor]:
    """Yields the loss of each step, left on its device. Micro-batches are of equally many tokens, (B, T) each."""
    batches = iter(batches)
    model.train()
    for _ in range(asked.steps):
        total = torch.zeros((), device=asked.device)
        for _ in range(asked.accumulation):
            batch = {name: tensor.to(asked.device) for name, tensor in next(batches).items()}
            with torch.autocast(asked.device.type, asked.autocast, enabled=asked.autocast is not None):
                loss = model(**batch).loss / asked.accumulation
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), asked.max_grad_norm)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        yield total
