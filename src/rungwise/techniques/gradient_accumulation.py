"""Gradient accumulation: an optimizer step in several micro-batches, of which each holds its activations alone."""

from typing import Any

from accelerate.utils import GradientAccumulationPlugin

from ..settings.fields import Settings
from .seen import Seen


def plugin(settings: Settings) -> GradientAccumulationPlugin:
    """What Accelerate is told about micro-batches."""
    return GradientAccumulationPlugin(
        num_steps=settings.gradient_accumulation_steps,
        # The loop fetches a window's batches ahead, so the loader ends before the window's last micro-batch.
        sync_with_dataloader=False,
        sync_each_batch=settings.sync_each_batch,
    )


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
