"""The engines that are compared, each behind the same call: a bare loop, Transformers' Trainer, and `ablate.py`.

Each trains the model that its flags name from the same weights on the same rows in the same order.
"""

import runpy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import rungwise

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from ..data.loader import build_dataloader, collate
from ..data.opened import Inputs
from ..data.sampling import EpochSampler
from ..device import device_type
from ..metrics.memory import MIB, MemoryMeter
from ..result_file import read_result
from ..run.configure import build_datasets, configure
from ..settings.choices import COMPUTE_DTYPES
from ..settings.fields import Settings
from ..settings.parse import parse
from ..techniques import arguments
from . import bare
from .turns import Turns

ABLATE = Path(__file__).parents[3] / "recipes" / "ablate.py"
MakeTurns = Callable[[torch.device, int, MemoryMeter | None], Turns]


def run_bare(flags: Sequence[str], make_turns: MakeTurns) -> dict[str, Any]:
    """Trains by the bare loop."""
    settings, inputs, rows, device = _opened(flags)
    meter = MemoryMeter(device)
    turns = make_turns(device, settings.untimed_steps, meter)
    batches = build_dataloader(rows, settings)
    asked = bare.Options(
        device=device,
        steps=settings.max_steps,
        accumulation=settings.gradient_accumulation_steps,
        autocast=None if settings.precision == "no" else getattr(torch, COMPUTE_DTYPES[settings.precision]),
        checkpointing=settings.gradient_checkpointing,
        compiled=settings.torch_compile,
        fused=settings.optim == "adamw_torch_fused",
        schedule=settings.lr_scheduler_type,
        warmup=settings.warmup_steps,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
    )
    with meter.building():
        model, optimizer, scheduler = bare.build(inputs.config, asked)
    meter.watch(model, optimizer)
    turns.begin()
    for _ in bare.train(model, optimizer, scheduler, batches, asked):
        turns.step_done()
    return _figures(getattr(model, "_orig_mod", model), _peak_mib(meter), settings, inputs, rows)


def run_trainer(flags: Sequence[str], make_turns: MakeTurns) -> dict[str, Any]:
    """Trains by Transformers' Trainer with the techniques that the flags ask for."""
    opened = _opened(flags)
    return _trained_by_trainer(opened, arguments(opened[0]), make_turns)


def run_trainer_default(flags: Sequence[str], make_turns: MakeTurns) -> dict[str, Any]:
    """Trains by Transformers' Trainer as it is when nothing is asked of it; model, rows and batch are the flags'."""
    return _trained_by_trainer(_opened(flags), {}, make_turns)


def run_ours(flags: Sequence[str], make_turns: MakeTurns) -> dict[str, Any]:
    """Trains by `recipes/ablate.py`, all that it does included. Its memory is what its own meter says."""
    settings, _ = parse(flags)  # what is wrong with them, and all that they name, is the recipe's
    turns = make_turns(torch.device(device_type(settings)), settings.untimed_steps, None)
    train, trained = rungwise.train, []

    def in_turns(accelerator: Any, model: nn.Module, *args: Any, **kwargs: Any) -> Iterator[Any]:
        trained.append(accelerator.unwrap_model(model))
        turns.begin()
        for step in train(accelerator, model, *args, **kwargs):
            yield step  # which the recipe logs before it asks for the next one
            turns.step_done()

    with mock.patch.object(rungwise, "train", in_turns, create=True):
        code = runpy.run_path(str(ABLATE))["main"](list(flags))
    result = read_result(Path(settings.output_dir))
    if code:
        raise RuntimeError(result["reason"])  # which is all that is read of a process that fails
    _, inputs, rows, _ = _opened(flags)
    kernels = {"kernels": result["environment"]["matmul_kernels"]}
    return _figures(trained[0], result["memory"]["peak_allocated_mib"], settings, inputs, rows) | kernels


ENGINES: dict[str, Callable[[Sequence[str], MakeTurns], dict[str, Any]]] = {
    "bare": run_bare,
    "trainer": run_trainer,
    "trainer_default": run_trainer_default,
    "ours": run_ours,
}


def _opened(flags: Sequence[str]) -> tuple[Settings, Inputs, Any, torch.device]:
    """The settings, what they name, its rows, and the device."""
    settings, inputs = configure(flags)
    rows, _ = build_datasets(settings, inputs)
    return settings, inputs, rows, torch.device(device_type(settings))


class _InTurns(TrainerCallback):
    """Has a Trainer take its steps in turns, under a memory meter."""

    def __init__(self, turns: Turns, meter: MemoryMeter, building: ExitStack):
        self.turns, self.meter, self.building = turns, meter, building

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """All that trains has been built."""
        self.building.close()
        self.meter.watch(kwargs["model"], kwargs["optimizer"].optimizer)  # inside of Accelerate's
        self.turns.begin()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """An optimizer step has ended."""
        self.turns.step_done()


def _trained_by_trainer(
    opened: tuple[Settings, Inputs, Any, torch.device], techniques: dict[str, Any], make_turns: MakeTurns
) -> dict[str, Any]:
    """Trains by a Trainer whose arguments are the batch, what no run can be without, and `techniques`."""
    settings, inputs, rows, device = opened
    order = list(EpochSampler(len(rows), settings.max_steps * settings.global_batch_size, settings.seed))
    args = TrainingArguments(
        output_dir=settings.output_dir,
        per_device_train_batch_size=settings.micro_batch_size,
        max_steps=settings.max_steps,
        seed=settings.seed,
        use_cpu=device.type == "cpu",
        train_sampling_strategy="sequential",
        save_strategy="no",
        **techniques,
    )
    meter = MemoryMeter(device)
    turns = make_turns(device, settings.untimed_steps, meter)
    with ExitStack() as building:
        building.enter_context(meter.building())
        set_seed(settings.seed)
        model = AutoModelForCausalLM.from_config(inputs.config)
        # A Trainer counts by this name the tokens that a loss is divided by, and GPT-2's class does not say it.
        model.loss_type = "ForCausalLM"
        trainer = Trainer(
            model,
            args,
            train_dataset=rows.select(order),
            data_collator=collate,
            callbacks=[_InTurns(turns, meter, building)],
        )
        trainer.train()
    return _figures(trainer.model, _peak_mib(meter), settings, inputs, rows)


def _peak_mib(meter: MemoryMeter) -> float:
    peak = meter.peak_bytes()
    if peak is None:
        raise RuntimeError(meter.figure.lost)
    return peak / MIB


def _figures(model: nn.Module, peak_mib: float, settings: Settings, inputs: Inputs, rows: Any) -> dict[str, Any]:
    """What is known of an engine beside its speed: its peak, the loss of its last weights, and its threads.

    The loss is that of the first micro-batch, in fp32 by a model that nothing was done to: equal losses are of equal
    weights, whichever engine has trained them.
    """
    return {
        "peak_mib": peak_mib,
        "loss": _loss(model, inputs.config, next(iter(build_dataloader(rows, settings)))),
        "threads": torch.get_num_threads(),
    }


@torch.no_grad()
def _loss(model: nn.Module, config: PreTrainedConfig, batch: dict[str, torch.Tensor]) -> float:
    plain = AutoModelForCausalLM.from_config(config)
    plain.load_state_dict({name: value.cpu() for name, value in model.state_dict().items()})
    return float(plain.eval()(**batch).loss)
