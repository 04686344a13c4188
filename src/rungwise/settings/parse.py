"""From a command line, an Accelerate file and the launcher's environment to one `Settings`."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import no_folder
from . import accelerate_yaml, launcher
from .accelerate_keys import REPLACED
from .cli import LONGEST_NAME, checked, read_flags
from .conflicts import conflicts, idle, without_effect
from .fields import FIELDS, Settings
from .needs import STDLIB


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    description: str | None = None,
    engine: str = "rungwise",
) -> tuple[Settings, list[str]]:
    """Merges flags, the Accelerate file, what the environment says and defaults.

    Args:
        argv: the arguments after the script's name.
        environ: the environment the launcher left [os.environ].
        description: the text above the flags in `--help`.
        engine: whose loop trains.

    Returns:
        The settings, with the defaults where a value could not be used, and one message for each problem.
    """
    environ = os.environ if environ is None else environ
    errors: list[str] = []
    values, origins = read_flags(argv, errors, description)
    values["engine"], origins["engine"] = engine, "default" if engine == FIELDS["engine"].default else "the script"
    if values.get("config"):
        _add_file(values, origins, environ, errors)
    elif "config" not in values:
        errors.append("--config is required; for example --config accelerate_configs/bf16.yaml")
    _add_variables(values, origins, environ)
    settings = Settings(**values)
    errors += conflicts(settings)
    settings = _refuse_idle(settings, origins, errors)
    return _derive(settings, origins, errors), errors


def _add_file(values: dict[str, Any], origins: dict[str, str], environ: Mapping[str, str], errors: list[str]) -> None:
    """What the file says and no flag does."""
    path = values["config"]
    from_file, file_problems = accelerate_yaml.read(path)
    errors += file_problems
    for name, value in from_file.items():
        value = checked(name, value, f"{path}: {name}", errors)
        if value is None or name in values or name == "num_processes":
            continue
        values[name], origins[name] = value, path
        if name in REPLACED and value != REPLACED[name][0]:
            values[name] = REPLACED[name][0]
            origins[name] = f"{path} says {str(value).lower()}; {REPLACED[name][1]}"
    values["num_processes"], origins["num_processes"] = launcher.processes(from_file, path, environ, errors)
    launcher.agree(values, environ, origins, errors)


def _add_variables(values: dict[str, Any], origins: dict[str, str], environ: Mapping[str, str]) -> None:
    """Variables that the person has set for the tracker go before a default of ours."""
    tracker = values.get("report_to", FIELDS["report_to"].default)
    for name, field in FIELDS.items():
        variable = field.metadata["variables"].get(tracker)
        if name not in values and variable and environ.get(variable):
            values[name], origins[name] = environ[variable], variable


def _refuse_idle(settings: Settings, origins: dict[str, str], errors: list[str]) -> Settings:
    """Refuses settings that would not act. What the config says of a technique that a flag turns off is dropped."""
    dropped = {}
    for name, need in idle(settings, origins):
        if origins[name] == settings.config and origins.get(need.beside) == "flag":
            dropped[name] = FIELDS[name].default
            origins[name] = f"default: {settings.config}'s goes with --{need.beside}"
        else:
            errors.append(without_effect(name, need, settings, origins))
    return dataclasses.replace(settings, **dropped)


def _made_name(settings: Settings) -> str:
    """A name that says what is studied: model, precision, accumulation, techniques, processes."""
    labels = [field.metadata["label"](settings) for field in FIELDS.values() if field.metadata["label"]]
    return "-".join(label for label in labels if label)


def _derive(settings: Settings, origins: dict[str, str], errors: list[str]) -> Settings:
    """Fills in what follows from the other settings."""
    changes: dict[str, Any] = {
        "micro_batch_size": settings.global_batch_size
        // (settings.gradient_accumulation_steps * settings.num_processes)
    }
    if not settings.dataset_name and not settings.train_file:
        changes["dataset_name"] = STDLIB
    name = settings.run_name or _made_name(settings)
    if not re.fullmatch(r"[\w.+=-]+", name) or not name.strip("."):
        errors.append(f"--run_name {name!r}: letters, digits and . _ - + = only, since it names a folder")
    elif len(name.encode()) > LONGEST_NAME:
        errors.append(f"--run_name {name}: too long for the name of a folder; give a shorter one")
    changes["run_name"] = name
    changes["output_dir"] = settings.output_dir or str(Path("runs") / name)
    if why_not := no_folder(changes["output_dir"]):
        errors.append(f"--output_dir {changes['output_dir']}: {why_not}")
    for derived in changes:
        origins.setdefault(derived, "derived")
    for unset in FIELDS:
        origins.setdefault(unset, "default")
    return dataclasses.replace(settings, **changes, origins=origins)
