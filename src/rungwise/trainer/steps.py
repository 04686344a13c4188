"""The optimizer steps of a Trainer: when each begins and ends, what it learnt from, its loss.

A Trainer logs, evaluates and saves after it has said that a step has ended, and says that the next one begins once it
has its batches. Here a step begins as the Trainer asks for them: waiting for data is part of it, as in our own loop.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.profiler import record_function
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..loop import Step
from ..metrics.around import Around
from ..metrics.step_classes import DATA
from ..metrics.throughput import StepTime
from ..run.measurement import Measurement


class TrainerSteps:
    """Takes notes of a Trainer's micro-batches and makes a `Step` of each window of them.

    Attributes:
        shapes: of the rows of all micro-batches so far.
        items_per_token: what the Trainer divides the loss of the last window by, for each token that carried a loss;
            None where it divides each micro-batch's by its own tokens.
    """

    def __init__(self, trainer: Trainer, measurement: Measurement):
        self.shapes: set[tuple[int, ...]] = set()
        self.items_per_token: float | None = None
        self._trainer, self._accelerator, self._measurement = trainer, trainer.accelerator, measurement
        self._meter = measurement.meter
        # Whether the items that a loss is divided by are those of all processes.
        self._everyones = trainer.args.average_tokens_across_devices
        self._time: StepTime | None = None
        # What is between two steps.
        self._between = ExitStack()
        self._loss_scale: float | None = None
        self._learning_rate = self._grad_norm = float("nan")
        self._undo = ExitStack()
        for owner, name, call in (
            (trainer, "get_batch_samples", self._begin),
            (trainer, "training_step", self._micro_batch),
            (self._accelerator, "clip_grad_norm_", self._clip),
        ):
            self._undo.callback(Around(owner, name, call).remove)

    def _begin(self, get_batches: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Begins a step, and waits for its batches. One that was begun before had none."""
        self._meter.drop()
        self._between.close()
        self._losses = self._tokens = torch.zeros((), dtype=torch.float64, device=self._accelerator.device)
        self._items: torch.Tensor | int | None = None
        self._time = self._meter.begin()
        with record_function(DATA):
            batches = get_batches(*args, **kwargs)
        scaler = self._accelerator.scaler
        self._loss_scale = scaler.get_scale() if scaler else None
        return batches

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """Says that the optimizer is about to step."""
        self._learning_rate = float(optimizer.param_groups[0]["lr"])

    def end(self, number: int) -> Step:
        """Ends the step of this number. Call it in every process."""
        self._meter.end()
        time = self._time
        if self._measurement.compiled:
            # What is compiled from here to the next step is no part of training.
            self._between.enter_context(self._measurement.compiled.paused())
        own = torch.stack([self._losses, self._tokens])
        losses, tokens = self._accelerator.reduce(own, "sum").tolist()
        if self._items is not None and tokens:
            self.items_per_token = float(self._items) / (tokens if self._everyones else float(own[1]))
        scaler = self._accelerator.scaler
        fell = scaler is not None and scaler.get_scale() < self._loss_scale
        return Step(
            number=number,
            loss=losses / tokens if tokens else float("nan"),
            grad_norm=float(self._grad_norm),
            learning_rate=self._learning_rate,
            tokens=int(tokens),
            seconds=time.seconds,
            timed=time.timed and tokens > 0,
            loss_scale=self._loss_scale,
            skipped=fell or self._accelerator.optimizer_step_was_skipped,
            peak_bytes=time.peak_bytes,
        )

    def close(self) -> None:
        """Takes no more notes; nothing of it is left in the Trainer."""
        self._meter.drop()
        self._between.close()
        self._undo.close()

    def _clip(self, clip: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._grad_norm = clip(*args, **kwargs)
        return self._grad_norm

    def _micro_batch(
        self,
        training_step: Callable[..., torch.Tensor],
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Runs one micro-batch, and adds up the losses of its tokens out of the share that the Trainer makes of them.

        The share is their sum over the window's items, all processes' or its own, by the number of processes, which
        DDP and FSDP divide by; or else their mean over the micro-batches.
        """
        tokens = tokens_with_loss(inputs, self._trainer)
        self.shapes.add(tuple(getattr(inputs.get("input_ids"), "shape", ())))
        share = training_step(model, inputs, num_items_in_batch, **kwargs)
        if num_items_in_batch is None:
            scale = tokens * self._trainer.current_gradient_accumulation_steps
        else:
            scale = num_items_in_batch / (self._accelerator.num_processes if self._everyones else 1)
        self._items = num_items_in_batch
        self._losses = self._losses + share.detach().double() * scale
        self._tokens = self._tokens + tokens
        return share


def tokens_with_loss(inputs: dict[str, Any], trainer: Trainer) -> torch.Tensor:
    """How many tokens of a micro-batch carry a loss: a label is predicted from the token before it; a scalar."""
    labels = inputs.get("shift_labels")
    if labels is None:
        labels = inputs.get("labels")
        if labels is None:
            return torch.zeros((), device=trainer.args.device)
        shifts = not getattr(trainer.model.config, "is_encoder_decoder", False)
        labels = labels[..., 1:] if shifts else labels
    return (labels != -100).sum().to(trainer.args.device)


class StepsCallback(TrainerCallback):
    """Makes steps of a Trainer's events. An heir sets `steps` as training begins and says what a step is for."""

    steps: TrainerSteps | None = None

    def finished(self, step: Step) -> None:
        """A step has ended. Called in every process."""
        raise NotImplementedError

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer is about to step."""
        if self.steps:
            self.steps.updates(kwargs["optimizer"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A step has ended."""
        if self.steps:
            self.finished(self.steps.end(state.global_step))
