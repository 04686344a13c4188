"""The shared training loop. It knows no flags, no tracker and no device.

B rows and T tokens a micro-batch, A micro-batches an optimizer step, P processes.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

import torch
from accelerate import Accelerator
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.profiler import record_function

from .metrics.step_classes import DATA
from .metrics.throughput import StepMeter


@dataclass(frozen=True)
class Step:
    """One optimizer step. Counts and the loss are over all processes.

    A step whose window has no token that carries a loss has 0 tokens, is skipped, and its loss is not a number.
    """

    number: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    seconds: float
    timed: bool
    loss_scale: float | None
    skipped: bool
    peak_bytes: int | None


class Diverged(RuntimeError):
    """The loss is no longer a number."""


class DataEnded(RuntimeError):
    """The loader has fewer batches than the steps need."""


def train(
    accelerator: Accelerator,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    batches: Iterable[dict[str, torch.Tensor]],
    meter: StepMeter,
    *,
    max_steps: int,
    max_grad_norm: float,
    first_step: int = 1,
) -> Iterator[Step]:
    """Trains up to optimizer step `max_steps` and yields each one as it is done.

    Every token that carries a loss has the same weight, whichever micro-batch and process it falls into. A window
    without such a token is skipped: there is nothing to divide by, and no gradient.

    Args:
        accelerator: holds A, P, the precision and its scaler.
        model: prepared; returns the sum of token losses / `num_items_in_batch`, as causal LMs of Transformers do.
        optimizer: prepared.
        scheduler: not prepared, since a prepared one would step P times.
        batches: prepared; A dicts a step with `input_ids` and `labels`, (B, T).
        meter: times the steps.
        max_steps: the last step.
        max_grad_norm: the global norm to clip gradients at; 0 clips nothing.
        first_step: more than 1 in a run that goes on from a checkpoint.

    Raises:
        Diverged: the loss of a step is infinite or not a number.
        DataEnded: there are no batches left for the next step.
    """
    model.train()
    batches = iter(batches)
    accumulation = accelerator.gradient_accumulation_steps
    for number in range(first_step, max_steps + 1):
        learning_rate = float(scheduler.get_last_lr()[0])  # torchao's optimizers keep a tensor
        loss_scale = accelerator.scaler.get_scale() if accelerator.scaler else None
        with meter.step() as time:
            with record_function(DATA):
                window = list(islice(batches, accumulation))
            if len(window) < accumulation:
                raise DataEnded(_why_ended(number, first_step, max_steps, accumulation, len(window)))
            tokens = sum(_tokens_with_loss(batch) for batch in window)
            tokens = accelerator.reduce(tokens, "sum")
            # Asked for here, where the device has nothing else to do yet: the answer is the same in every process.
            empty = int(tokens) == 0
            total = torch.zeros((), device=accelerator.device)
            for batch in () if empty else window:
                with accelerator.accumulate(model):
                    loss = model(**batch, num_items_in_batch=tokens).loss
                    total += loss.detach()
                    # backward() divides by A, DDP and FSDP average over P; the loss is a share of the whole window.
                    accelerator.backward(loss * accumulation * accelerator.num_processes)
                    if accelerator.sync_gradients:
                        limit = max_grad_norm or float("inf")
                        grad_norm = accelerator.clip_grad_norm_(model.parameters(), limit)
                    optimizer.step()
                    optimizer.zero_grad()
            # A fused optimizer skips inside its kernel, where Accelerate does not see it; the scale falls each time.
            skipped = empty or (loss_scale is not None and accelerator.scaler.get_scale() < loss_scale)
            if not skipped:
                scheduler.step()
            time.timed &= not empty
        loss = math.nan if empty else accelerator.reduce(total, "sum").item()
        if not (empty or math.isfinite(loss)):
            raise Diverged(f"the loss of step {number} is {loss}; lower --learning_rate, or train in bf16")
        yield Step(
            number=number,
            loss=loss,
            grad_norm=0.0 if empty else float(grad_norm),
            learning_rate=learning_rate,
            tokens=int(tokens),
            seconds=time.seconds,
            timed=time.timed,
            loss_scale=loss_scale,
            skipped=skipped,
            peak_bytes=time.peak_bytes,
        )


@torch.no_grad()
def evaluate(accelerator: Accelerator, model: nn.Module, batches: Iterable[dict[str, torch.Tensor]]) -> float:
    """The loss of held-out rows, each token with the same weight, over all processes.

    Args:
        accelerator: as in `train`.
        model: prepared. It is left in training mode.
        batches: prepared; dicts with `input_ids` and `labels`, (B, T).
    """
    model.eval()
    total = torch.zeros(2, device=accelerator.device)
    one = torch.ones((), dtype=torch.long, device=accelerator.device)
    for batch in batches:
        # Divided by one: the sum of token losses.
        loss = model(**batch, num_items_in_batch=one).loss
        total += torch.stack([loss.float(), _tokens_with_loss(batch).float()])
    model.train()
    losses, tokens = accelerator.reduce(total, "sum").tolist()
    return losses / tokens


def _why_ended(number: int, first_step: int, max_steps: int, accumulation: int, left: int) -> str:
    taken = f"after step {number - 1}" if number > first_step else f"before step {number}"
    return (
        f"the data ended {taken} of {max_steps}: a step takes {accumulation} micro-batches a process, {left} were "
        "left; give a loader that begins again, as build_dataloader does, or lower --max_steps"
    )


def _tokens_with_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    # A label is predicted from the token before it, so the first of a row carries no loss.
    return (batch["labels"][:, 1:] != -100).sum()
