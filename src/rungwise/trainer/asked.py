"""What a Trainer was asked for, as settings, and what its model is."""

import inspect
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer

from ..settings.fields import FIELDS, OWN, Settings
from ..techniques import asked_of
from ..techniques.optimizer import is_known

SAID_BY = "TrainingArguments"
# What an optimizer of the script's own need not have.
OF_THE_OPTIMIZER = ("optim", "learning_rate", "weight_decay")


def calling_trainer() -> Trainer:
    """The Trainer whose event is being called: a callback is given its parts, but not the accelerator among them."""
    frame = inspect.currentframe()
    while not isinstance(caller := frame.f_locals.get("self"), Trainer):
        frame = frame.f_back
    return caller


def has_own_optimizer(trainer: Trainer) -> bool:
    """Whether a Trainer that does not train yet was given an optimizer, or makes one in a way of its own."""
    given = (trainer.optimizer, trainer.optimizer_cls_and_kwargs)
    return any(part is not None for part in given) or type(trainer).create_optimizer is not Trainer.create_optimizer


def trained_model(trainer: Trainer) -> nn.Module:
    """The model without what is around it; adapters are part of it."""
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def settings_of(trainer: Trainer, folder: Path, untimed_steps: int, own_optimizer: bool) -> Settings:
    """What a Trainer that begins to train was asked for. Its model, its rows and its trackers are its script's own.

    Args:
        trainer: whose training begins.
        folder: for what is found.
        untimed_steps: as the setting of that name.
        own_optimizer: whether the optimizer is the script's own, too.
    """
    args, state = trainer.args, trainer.state
    asked: dict[str, Any] = asked_of(trainer, trained_model(trainer))
    rows = state.train_batch_size
    asked |= {
        "max_steps": state.max_steps,
        "seed": args.seed,
        "micro_batch_size": rows,
        "global_batch_size": rows * asked["gradient_accumulation_steps"] * asked["num_processes"],
        "use_cpu": args.device.type == "cpu",
        "untimed_steps": untimed_steps,
        "report_to": ", ".join(args.report_to) or "none",
        "run_name": args.run_name or Path(args.output_dir).name,
        "output_dir": str(folder),
        "engine": "trainer",
    }
    origins = dict.fromkeys(FIELDS, OWN) | dict.fromkeys(asked, SAID_BY)
    if own_optimizer or not is_known(asked["optim"]):
        origins |= dict.fromkeys(OF_THE_OPTIMIZER, OWN)
    return Settings(**asked, origins=origins)
