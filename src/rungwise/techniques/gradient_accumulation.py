"""Gradient accumulation: an optimizer step in several micro-batches, of which each holds its activations alone."""

from typing import TYPE_CHECKING, Any

from accelerate.utils import GradientAccumulationPlugin
from torch import nn

from ..settings.fields import Settings
from .seen import Seen

if TYPE_CHECKING:
    from transformers import Trainer


def plugin(settings: Settings) -> GradientAccumulationPlugin:
    """What Accelerate is told about micro-batches."""
    return GradientAccumulationPlugin(
        num_steps=settings.gradient_accumulation_steps,
        # The loop fetches a window's batches ahead, so the loader ends before the window's last micro-batch.
        sync_with_dataloader=False,
        sync_each_batch=settings.sync_each_batch,
    )


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, as settings."""
    own = trainer.accelerator.gradient_state.plugin_kwargs
    return {
        "gradient_accumulation_steps": trainer.args.gradient_accumulation_steps,
        "sync_each_batch": bool(own.get("sync_each_batch")),
    }


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments; every process reads a stream itself, as `build_accelerator` has it."""
    own = {"gradient_accumulation_kwargs": {"sync_each_batch": True}} if settings.sync_each_batch else {}
    return {
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "accelerator_config": {"dispatch_batches": False, **own},
    }


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether micro-batches were as many as asked for, and exchanged gradients when asked to."""
    asked, notes = seen.settings, seen.forward
    steps = asked.gradient_accumulation_steps
    missing = []
    if notes.backward_passes != steps:
        missing.append(f"{steps} accumulation steps were asked for, {notes.backward_passes} were taken")
    kept = 0 if asked.sync_each_batch else steps - 1
    if seen.accelerator.num_processes > 1 and notes.unsynchronised != kept:
        missing.append(
            f"gradients were to stay in their process in {kept} micro-batches, they did in {notes.unsynchronised}"
        )
    return {"micro_batches": notes.backward_passes}, missing


def step_evidence(seen: Seen) -> list[str]:
    """What is wrong with how often the optimizer stepped in this step: once for all micro-batches."""
    steps = seen.updates.steps
    # A step that fp16 skips may be skipped before the optimizer or, a fused one, inside of it.
    if steps == 1 or (seen.step.skipped and steps == 0):
        return []
    return [
        f"the optimizer stepped {steps} times in one step over "
        f"{seen.settings.gradient_accumulation_steps} micro-batches"
    ]
