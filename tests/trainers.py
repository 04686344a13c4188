"""Trainers small enough for a test, and what is left of their training."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from rungwise.metrics.allocations import allocations
from rungwise.trainer import MeasureCallback

import torch
from datasets import Dataset
from harness import MODEL, ragged_rows
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

SIZES = {name: int(value) for name, value in (part.split("=") for part in MODEL.split(","))}
# A step in two micro-batches, with all that a Trainer does between steps.
BUSY = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 5, "save_steps": 4}


@dataclass
class Trained:
    """What a Trainer left behind: the losses that it logged, its weights, its checkpoints, and our result."""

    trainer: Trainer
    losses: list[float]
    weights: dict[str, torch.Tensor]
    evaluations: list[float]
    checkpoints: list[str]
    result: dict[str, Any] | None
    rows: list[dict[str, Any]] = field(default_factory=list)


def small_model(**changes: Any) -> GPT2LMHeadModel:
    """A GPT-2 of two layers, the same each time."""
    set_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(**{**SIZES, "resid_pdrop": 0.1, **changes}, bos_token_id=None, eos_token_id=None)
    )


def train(
    folder: Path,
    measure: MeasureCallback | None,
    *others: TrainerCallback,
    model: GPT2LMHeadModel | None = None,
    dataset: Dataset | None = None,
    resume: str | None = None,
    trainer_class: type[Trainer] = Trainer,
    options: dict[str, Any] | None = None,
    **arguments: Any,
) -> Trained:
    """Trains by a Trainer, on rows of unequal length, with a callback of ours or without."""
    arguments = {
        "max_steps": 14,
        "per_device_train_batch_size": 4,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "steps" if "save_steps" in arguments else "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        **arguments,
    }
    rows = ragged_rows() if dataset is None else dataset
    trainer = trainer_class(
        model=model or small_model(),
        args=TrainingArguments(output_dir=str(folder), **arguments),
        train_dataset=rows,
        eval_dataset=rows.select(range(8)) if "eval_steps" in arguments else None,
        callbacks=[*([measure] if measure else []), *others],
        **{"data_collator": default_data_collator, **(options or {})},
    )
    trainer.train(resume_from_checkpoint=resume)
    history = trainer.state.log_history
    return Trained(
        trainer,
        [entry["loss"] for entry in history if "loss" in entry],
        {name: value.clone() for name, value in trainer.model.state_dict().items()},
        [entry["eval_loss"] for entry in history if "eval_loss" in entry],
        sorted(path.name for path in folder.glob("checkpoint-*")),
        read(folder / "result.json") if measure else None,
        lines(folder / "metrics.jsonl") if measure else [],
    )


def allocated_peak(train: Callable[[], Any]) -> int:
    """The most bytes that the CPU allocator held in all of a training, by PyTorch's profiler."""
    with allocations(torch.device("cpu")) as changes:
        train()
    return max(accumulate(size for _, size in changes))


def read(path: Path) -> dict[str, Any]:
    """A file of JSON."""
    return json.loads(path.read_text(encoding="utf-8"))


def lines(path: Path) -> list[dict[str, Any]]:
    """A file of JSON, line by line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal to the last bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
