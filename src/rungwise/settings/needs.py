"""What a flag needs so that it acts. Needs are data that stands beside the fields."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STDLIB = "python-stdlib"
SYNTHETIC = "synthetic"
# Files without columns, by their suffix.
PLAIN_TEXT = ("", ".txt", ".text", ".md")


@dataclass(frozen=True)
class Need:
    """A test of the settings, and what is said where they fail it: `--flag has no effect <words>`.

    The words may name settings in braces, as in `{max_steps}`, and end with the remedy. `beside` is a setting without
    which those that have this need mean nothing: two rungs that differ in it may differ in them, too.
    """

    test: Callable[[Any], bool]
    words: str
    beside: str | None = None


def with_flag(flag: str, beside: str | None = None) -> Need:
    """That another flag is given, too."""
    return Need(lambda settings: bool(getattr(settings, flag)), f"without --{flag}; add it, or drop this", beside)


def in_config(setting: str, name: str, config: str) -> Need:
    """That the config asks for something, as this one does."""
    return Need(
        lambda settings: getattr(settings, setting),
        f"without {name}, which the config asks for; take {config}, or drop this",
    )


def _data(settings: Any) -> str:
    return settings.train_file or settings.dataset_name or STDLIB


def _is_data_set(settings: Any) -> bool:
    """Whether the run trains on a data set of the Hub or the disk."""
    return _data(settings) not in (settings.train_file, STDLIB, SYNTHETIC) and not Path(_data(settings)).is_file()


def _has_columns(name: str | None) -> bool:
    if name in (None, STDLIB, SYNTHETIC):
        return False
    return Path(name).suffix.lower() not in PLAIN_TEXT or not Path(name).is_file()


# What a Trainer has a way of its own for, or none.
OUR_LOOP = Need(
    lambda s: s.engine == "rungwise",
    "by transformers.Trainer, whose training alone is measured here; drop it, or use recipes/ablate.py",
)
COMPILE = with_flag("torch_compile", beside="torch_compile")
FULL_PRECISION = Need(
    lambda s: s.precision == "no", "on products in {precision}; take accelerate_configs/fp32.yaml, or drop this"
)
LORA = with_flag("use_peft")
EVALUATION = with_flag("eval_steps")
CHECKPOINTS = with_flag("checkpointing_steps")
WEIGHTS = with_flag("model_name_or_path")
RANDOM_WEIGHTS = Need(
    lambda s: not s.model_name_or_path, "beside --model_name_or_path, whose weights bring their own config; drop one"
)
DATA_SET = Need(
    _is_data_set, "on files, python-stdlib and synthetic rows; name a data set in --dataset_name, or drop this"
)
COLUMNS = Need(
    lambda s: _has_columns(_data(s)) or _has_columns(s.validation_file),
    "on plain text, python-stdlib and synthetic rows, which have no columns to choose from; drop it",
)
TEXT = Need(
    lambda s: _data(s) != SYNTHETIC or bool(s.validation_file), "on synthetic rows, which are made of tokens; drop it"
)
READING = Need(lambda s: _data(s) != SYNTHETIC, "on synthetic rows, which are made in memory; drop it")
HELD_OUT = Need(lambda s: not s.validation_file, "beside --validation_file, which is evaluated on; drop one")
LENGTH = Need(
    lambda s: not s.streaming, "on a stream, whose length nobody knows; use --max_eval_samples, or drop --streaming"
)
EXCHANGES = Need(
    lambda s: s.num_processes > 1 and s.gradient_accumulation_steps > 1,
    "without several processes and accumulation; drop it",
)
WARM_UP = Need(
    lambda s: s.lr_scheduler_type != "constant",
    "on constant; use --lr_scheduler_type constant_with_warmup, or drop it",
)
# Without a step that is reached, the test is passed: another need says what is missing.
EVALUATED = Need(
    lambda s: (s.eval_steps or 0) <= s.max_steps, "beyond the run's --max_steps {max_steps}; lower it, or drop it"
)
SAVED = Need(
    lambda s: (s.checkpointing_steps or 0) <= s.max_steps,
    "beyond the run's --max_steps {max_steps}; lower it, or drop it",
)
PROJECTS = Need(
    lambda s: s.report_to in ("wandb", "trackio"), "with --report_to {report_to}, which has none; drop this"
)
