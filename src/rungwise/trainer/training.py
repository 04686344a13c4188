"""One training of a Trainer: what is known of it, and its files."""

import atexit
import math
import sys
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

from ..loop import Diverged, Step
from ..metrics.memory import tensor_bytes
from ..run.files import Files
from ..run.measurement import Measurement
from ..run.record import Record
from ..run.status import outcome
from ..settings.fields import Settings
from ..techniques.seen import InactiveTechnique
from ..techniques.torch_compile import observe
from .asked import trained_model
from .steps import TrainerSteps


class Training:
    """Keeps what is found of one training, from its first step to its end, in every process.

    Attributes:
        record: what is known.
        steps: makes steps of what the Trainer does.
    """

    def __init__(self, trainer: Trainer, settings: Settings, folder: Path):
        self.record = Record(settings)
        self._main, self._folder = trainer.is_world_process_zero(), folder
        self._model = trained_model(trainer)
        self._row: dict[str, Any] = {}
        self._error: Exception | None = None
        self._measurement = Measurement(self.record, trainer.args.device)
        self._measurement.memory.beside = bucket_bytes(trainer.model_wrapped)
        self.steps = TrainerSteps(trainer, self._measurement)
        watch(self._measurement, trainer)
        self._files = Files(folder)
        if self._main:
            folder.mkdir(parents=True, exist_ok=True)
            self._files.begin(self.record, done=trainer.state.global_step)
        # Nothing tells a callback of an error. What ends the process unhandled is known as it ends.
        atexit.register(self._left)

    def keep(self, step: Step) -> Exception | None:
        """Keeps a finished step. Returns what is wrong with the training, once, if something is."""
        settings, first = self.record.settings, not self.record.steps
        if self.steps.shapes != {(settings.micro_batch_size, self._length())}:
            # Of rows of several lengths, or of a last window that is smaller, no work is claimed.
            self.record.row_flops = None
        elif first:
            self._measurement.count_flops(self._model, self._length())
        self._measurement.update()
        self._row = self.record.add(step)
        if self._main:
            self._files.add(step.number, self._row)
        error: Exception | None = None
        if step.tokens and not math.isfinite(step.loss):
            error = Diverged(f"the loss of step {step.number} is {step.loss}")
        try:
            self._measurement.verify(step)
        except InactiveTechnique as inactive:
            error = inactive
        found = self._measurement.evidence.found
        found |= {"items_per_token": self.steps.items_per_token, "building_measured": False}
        self.record.evidence = found
        known, self._error = self._error, self._error or error
        return None if known else error

    def _length(self) -> int:
        """Tokens of the longest row so far."""
        return max((shape[-1] for shape in self.steps.shapes if shape), default=0)

    def new_figures(self) -> dict[str, Any]:
        """Those of the last step, once, but what the Trainer logs itself."""
        row, self._row = self._row, {}
        return {name: value for name, value in row.items() if not name.startswith("train/")}

    def end(self, error: Exception | None = None) -> None:
        """Writes all that is known. Call it in every process."""
        self._measurement.gather_memory()
        undecided = [] if all(step.skipped for step in self.record.steps) else self._measurement.evidence.undecided
        error = error or self._error or (InactiveTechnique("; ".join(undecided)) if undecided else None)
        self._end(error)

    def abandon(self) -> None:
        """Leaves a training that began anew."""
        self._measurement.close()
        self.steps.close()
        atexit.unregister(self._left)

    def _left(self) -> None:
        """The process ends, and the training has not."""
        error = getattr(sys, "last_value", None)
        if error is None:
            self.abandon()
        else:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        record = self.record
        record.status, record.reason, _ = outcome(error, record.steps, record.settings.num_processes)
        self.abandon()
        if self._main:
            self._files.end(record, self._measurement.memory.timeline)


def watch(measurement: Measurement, trainer: Trainer) -> None:
    """Watches what a Trainer that begins to train has made ready."""
    model, settings = trained_model(trainer), measurement.record.settings
    compiled = observe(model, settings)
    measurement.watch(model, trainer.optimizer.optimizer, trainer.accelerator, compiled, (trainer, "training_step"))


def bucket_bytes(wrapped: nn.Module) -> int:
    """What DDP holds beside the model, from before the first step on: a place for each gradient."""
    replicated = any(isinstance(module, DistributedDataParallel) for module in wrapped.modules())
    return tensor_bytes(p for p in wrapped.parameters() if p.requires_grad) if replicated else 0
