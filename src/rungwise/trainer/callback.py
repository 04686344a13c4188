"""The callback that measures a Trainer's training."""

import logging
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm
from transformers import PreTrainedModel, Trainer, TrainerControl, TrainerState, TrainingArguments

from ..loop import Step
from ..model.probe import base_model
from ..run.console import summary_block
from ..techniques.seen import InactiveTechnique
from . import trackers
from .asked import calling_trainer, has_own_optimizer, settings_of, trained_model
from .steps import StepsCallback
from .training import Training

logger = logging.getLogger(__name__)


class MeasureCallback(StepsCallback):
    """Measures the training of the Trainer that it is given to, and changes nothing of it.

        Trainer(..., callbacks=[MeasureCallback()])

    The first steps show memory and evidence, the rest of the untimed ones where a step's time goes; the others are
    timed with no meter on. `result.json` and `metrics.jsonl` are those of `recipes/ablate.py`; the Trainer's trackers
    get the figures under the same names whenever it logs. A technique that was asked for and did not act is a warning,
    and the result is not `ok`. What happens before training begins is not seen: no peak of building is known.
    """

    def __init__(self, *, strict: bool = False, untimed_steps: int = 3, output_dir: str | Path | None = None):
        """Measures nothing yet.

        Args:
            strict: whether a technique that did not act ends the training, by `InactiveTechnique`.
            untimed_steps: first steps that are not timed.
            output_dir: where the files go [the Trainer's own folder].
        """
        self.strict, self.untimed_steps, self.output_dir = strict, untimed_steps, output_dir
        # Until a Trainer has said that it is to make one.
        self._own_optimizer = True
        self._training: Training | None = None

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A Trainer is there, which may have been given an optimizer."""
        self._own_optimizer = has_own_optimizer(calling_trainer())

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All that trains is there: it is watched from here on."""
        if self._training:
            # Of a batch that was too large: the Trainer begins anew with a smaller one.
            self._training.abandon()
        self._training = self.steps = None
        trainer = calling_trainer()
        if why_not := _why_not(trainer):
            logger.warning("rungwise measures nothing here: %s", why_not)
            return
        folder = Path(self.output_dir or args.output_dir)
        settings = settings_of(trainer, folder, self.untimed_steps, self._own_optimizer)
        self._training = Training(trainer, settings, folder)
        self.steps = self._training.steps

    def finished(self, step: Step) -> None:
        """Keeps a step, and says what did not act.

        Raises:
            InactiveTechnique: something did not, if that is to end the training.
        """
        error = self._training.keep(step)
        if error:
            logger.warning("rungwise: %s", error)
            if self.strict and isinstance(error, InactiveTechnique):
                self._training.end(error)
                self.steps = None
                raise error

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The Trainer logs: so do we, beside it."""
        if self._training and state.is_world_process_zero:
            trackers.log(calling_trainer(), self._training.new_figures())

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training has come to its end."""
        if not self._training:
            return
        training, self._training, self.steps = self._training, None, None
        training.end()
        if state.is_world_process_zero:
            trackers.summary(calling_trainer(), training.record.summary())
            tqdm.write(summary_block(training.record.as_dict(), []))


def _why_not(trainer: Trainer) -> str:
    """Why a training cannot be measured; '' if it can."""
    model = base_model(trained_model(trainer))
    if not isinstance(model, PreTrainedModel):
        return f"{type(model).__name__} is no model of Transformers"
    if trainer.args.n_gpu > 1:
        return "one process trains on several GPUs (nn.DataParallel); use accelerate launch, or show it one GPU"
    if trainer.is_deepspeed_enabled:
        return "DeepSpeed trains in a way of its own"
    return ""
