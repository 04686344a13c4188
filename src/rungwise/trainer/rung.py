"""A rung by `transformers.Trainer`: the model, the rows and the settings of `recipes/ablate.py`, and another loop."""

import math
from typing import Any

from torch import nn
from torch.utils.data import Dataset, Sampler
from transformers import PrinterCallback, Trainer, TrainerControl, TrainerState, TrainingArguments

from .. import threads
from ..data.loader import collate
from ..data.sampling import EpochSampler
from ..device import device_type
from ..loop import Diverged, Step
from ..model.probe import check_causal
from ..run.run import Run
from ..settings.fields import Settings
from ..techniques import arguments
from ..techniques.torch_compile import observe
from .asked import calling_trainer, trained_model
from .steps import StepsCallback, TrainerSteps


def training_arguments(settings: Settings) -> TrainingArguments:
    """What a Trainer is told. It logs and saves nothing: that is the run's."""
    on_cpu = device_type(settings) == "cpu"
    if on_cpu:
        threads.share_cores()
    return TrainingArguments(
        output_dir=settings.output_dir,
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.micro_batch_size,
        seed=settings.seed,
        use_cpu=on_cpu,
        report_to="none",
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
        **arguments(settings),
    )


class RungTrainer(Trainer):
    """A Trainer with its defaults, but for the order of the rows, whose training is a run of ours.

    Args:
        model: with the techniques applied that a Trainer does not apply itself.
        args: as `training_arguments` makes them.
        rows: to train on.
        run: that has begun.
    """

    def __init__(self, model: nn.Module, args: TrainingArguments, rows: Dataset, run: Run):
        settings = run.settings
        causal = check_causal(model, settings.block_size, device_type(settings) == "cpu")
        self._order = EpochSampler(len(rows), settings.max_steps * settings.global_batch_size, settings.seed)
        # A Trainer tells by the name of a model's class whether its labels are shifted, and GPT-2's does not say so.
        model.loss_type = "ForCausalLM"
        super().__init__(
            model=model, args=args, data_collator=collate, train_dataset=rows, callbacks=[RunCallback(run, causal)]
        )
        self.remove_callback(PrinterCallback)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler[int]:
        return self._order


class RunCallback(StepsCallback):
    """Hands the steps of a Trainer to a run, which keeps, shows and judges them as those of our own loop."""

    def __init__(self, run: Run, causal: bool | None):
        self._run, self._causal = run, causal

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All that trains is there: it is watched from here on."""
        trainer, run = calling_trainer(), self._run
        model = trained_model(trainer)
        self.steps = TrainerSteps(trainer, run.measurement)
        compiled = observe(model, run.settings)
        run.watch(model, trainer.optimizer.optimizer, trainer.accelerator, compiled, (trainer, "training_step"))
        run.measurement.evidence.causal = self._causal
        run.built()

    def finished(self, step: Step) -> None:
        """Keeps a step.

        Raises:
            Diverged: its loss is infinite or not a number.
            InactiveTechnique: a technique did not act.
        """
        if step.tokens and not math.isfinite(step.loss):
            raise Diverged(f"the loss of step {step.number} is {step.loss}; lower --learning_rate, or train in bf16")
        self._run.log(step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Training has come to its end."""
        self.steps.close()
