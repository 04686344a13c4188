"""From a command line, an Accelerate file and the launcher's environment to one `Settings`."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from accelerate.commands.config.config_args import default_config_file

from . import accelerate_yaml as config_file
from .cli import checked, read_flags
from .fields import FIELDS, Settings
from .naming import made_name


def parse(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, description: str | None = None
) -> tuple[Settings, list[str]]:
    """Merges flags, the Accelerate file and defaults.

    Args:
        argv: the arguments after the script's name.
        environ: the environment the launcher left [os.environ].
        description: the text above the flags in `--help`.

    Returns:
        The settings, with the defaults where a value could not be used, and one message for each problem.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    values, origins = read_flags(argv, problems, description)
    if values.get("config"):
        from_file, file_problems = config_file.read(values["config"])
        problems += file_problems
        for name, value in from_file.items():
            value = checked(name, value, f"{values['config']}: {name}", problems)
            if value is not None and name not in values and name != "num_processes":
                values[name], origins[name] = value, values["config"]
        values["num_processes"], origins["num_processes"] = _processes(from_file, values["config"], environ, problems)
        _launcher_agrees(values, environ, origins, problems)
    elif "config" not in values:
        problems.append("--config is required; for example --config accelerate_configs/bf16.yaml")
    settings = Settings(**values)
    _cross_check(settings, problems)
    return _derive(settings, origins, problems), problems


def _processes(
    from_file: dict[str, Any], path: str, environ: Mapping[str, str], problems: list[str]
) -> tuple[int, str]:
    """How many processes were launched; the file may only say the same."""
    launched = int(environ.get("WORLD_SIZE", "1"))
    stated = from_file.get("num_processes", launched)
    if stated != launched:
        problems.append(
            f"{path} says num_processes: {stated}, but {launched} started; launch with "
            f"`accelerate launch --config_file {path} ...` or `torchrun --nproc_per_node {stated} ...`, "
            "or mend the file"
        )
    return launched, "launcher"


def _launcher_agrees(
    values: dict[str, Any], environ: Mapping[str, str], origins: dict[str, str], problems: list[str]
) -> None:
    """Compares the file with what `accelerate launch` was told, which reaches the script through its environment.

    The launcher always sets a precision: "no" unless told otherwise. One that stands in the user's default Accelerate
    file was not chosen for this run, so `--config` goes before it; one given to the launcher itself must agree.
    """
    path, default = values["config"], _default_file()
    precision = values.get("mixed_precision", "no")
    launched = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", precision):
        if launched == default.get("mixed_precision"):
            origins["mixed_precision"] = f"{path}, before Accelerate's default file ({launched})"
        else:
            problems.append(
                f"the launcher was told mixed_precision {launched}, {path} says {precision}; "
                f"drop the launcher's --mixed_precision or --config_file, or give both the same file"
            )
    launched = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    steps = values.get("gradient_accumulation_steps", 1)
    if launched not in ("1", str(steps)):
        problems.append(
            f"the launcher was told gradient_accumulation_steps {launched}, this run's are {steps} "
            f"({origins.get('gradient_accumulation_steps', 'default')}); give it in one place"
        )
    dynamo = environ.get("ACCELERATE_DYNAMO_BACKEND", "NO").upper()
    from_default = str((default.get("dynamo_config") or {}).get("dynamo_backend")).upper() == dynamo
    if dynamo != "NO" and not from_default and not values.get("torch_compile"):
        problems.append("the launcher was told to use dynamo, this run is not compiled; add --torch_compile")
    if environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not values.get("fsdp"):
        problems.append(f"the launcher was told to use FSDP, {path} does not say so; give both the same file")
    for engine in ("DEEPSPEED", "MEGATRON_LM"):
        if environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true":
            problems.append(f"the launcher was told to use {engine}, which has no recipe here; launch without it")
    if environ.get("ACCELERATE_USE_CPU", "false").lower() == "true":
        values["use_cpu"] = True
        origins.setdefault("use_cpu", "launcher")


def _default_file() -> dict[str, Any]:
    """The user's own default Accelerate file, which the launcher reads when it is given none."""
    try:
        return yaml.safe_load(Path(default_config_file).read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError):
        return {}


def _cross_check(settings: Settings, problems: list[str]) -> None:
    """Settings that cannot stand together."""
    models = [n for n in ("model_name_or_path", "config_name", "model_type") if getattr(settings, n)]
    if len(models) > 1:
        problems.append(f"{' and '.join(f'--{name}' for name in models)} each name a model; give one")
    if settings.config_overrides and settings.model_name_or_path:
        problems.append(
            "--config_overrides changes random weights' config, --model_name_or_path has its own; drop one"
        )
    if settings.dtype != "float32" and settings.mixed_precision != "no":
        problems.append(
            f"--dtype {settings.dtype} trains in {settings.dtype} throughout, {settings.config} says mixed_precision "
            f"{settings.mixed_precision}, which is autocast over float32 parameters; "
            "use accelerate_configs/fp32.yaml, or drop --dtype"
        )
    if settings.train_file and settings.dataset_name:
        problems.append("--train_file and --dataset_name each name the data; give one")
    _check_rows(settings, problems)
    _check_evaluation(settings, problems)
    if settings.gradient_checkpointing_kwargs is not None and not settings.gradient_checkpointing:
        problems.append("--gradient_checkpointing_kwargs has no effect without --gradient_checkpointing; add it")
    if settings.activation_memory_budget != 1 and not settings.torch_compile:
        problems.append(
            "--activation_memory_budget is the compiler's and has no effect without --torch_compile; add it"
        )
    if settings.activation_memory_budget > 1:
        problems.append(f"--activation_memory_budget: must be from 0 to 1, not {settings.activation_memory_budget:g}")
    if settings.eager_run and not settings.torch_compile:
        problems.append("--eager_run is what a compiled run is compared with; add --torch_compile, or drop it")
    reentrant = (settings.gradient_checkpointing_kwargs or {}).get("use_reentrant")
    if settings.fsdp and settings.use_peft:
        problems.append("--use_peft with FSDP has no recipe here; use DDP, as in accelerate_configs/ddp.yaml")
    if settings.lora_target_modules and not settings.use_peft:
        problems.append("--lora_target_modules has no effect without --use_peft; add it")
    if settings.fsdp and settings.num_processes == 1:
        problems.append(
            f"{settings.config} asks for FSDP, which shards over processes, and 1 started; launch with "
            f"`accelerate launch --config_file {settings.config} --num_processes 2 ...`, or, for a ladder, write "
            "num_processes: 2 into the file"
        )
    if settings.sync_each_batch and 1 in (settings.num_processes, settings.gradient_accumulation_steps):
        problems.append("--sync_each_batch has no effect without several processes and accumulation; drop it")
    if reentrant and settings.num_processes > 1:
        problems.append("use_reentrant: true fails with several processes; leave it out")
    if settings.warmup_steps and settings.lr_scheduler_type == "constant":
        problems.append("--warmup_steps has no effect on constant; use --lr_scheduler_type constant_with_warmup")
    if settings.max_steps <= settings.untimed_steps:
        problems.append(
            f"--max_steps {settings.max_steps} leaves no step to time after --untimed_steps {settings.untimed_steps}; "
            f"use at least {settings.untimed_steps + 10} for a speed"
        )
    parts = settings.gradient_accumulation_steps * settings.num_processes
    rows = settings.global_batch_size
    if rows % parts:
        near = " or ".join(str(size) for size in (rows // parts * parts, -(-rows // parts) * parts) if size)
        processes = f" x {settings.num_processes} processes" if settings.num_processes > 1 else ""
        problems.append(
            f"--global_batch_size {rows} does not divide by {settings.gradient_accumulation_steps} accumulation steps"
            f"{processes}; {_fewer_processes(settings)}the nearest that do: {near}"
        )


def _fewer_processes(settings: Settings) -> str:
    """The most processes that this global batch divides by, as they are asked for; '' if there is no such number."""
    for count in range(settings.num_processes - 1, 0, -1):
        if settings.global_batch_size % (settings.gradient_accumulation_steps * count) == 0:
            return f"start {count} (--num_processes {count} before the script's name), or take one of "
    return ""


def _check_rows(settings: Settings, problems: list[str]) -> None:
    """How rows are made cannot be asked of rows that are made up."""
    if settings.dataset_name != "synthetic" or settings.train_file:
        return
    if settings.streaming:
        problems.append("--streaming reads data that does not fit; synthetic rows are in memory, drop it")
    if not settings.packing:
        problems.append("--packing false pads texts; synthetic rows are full, drop it")


def _check_evaluation(settings: Settings, problems: list[str]) -> None:
    """Settings of an evaluation that there is none of, or that another one decides."""
    names = ("validation_file", "validation_split_percentage", "max_eval_samples")
    given = [name for name in names if getattr(settings, name) != FIELDS[name].default]
    if settings.eval_steps is None:
        problems += [f"--{name} has no effect without --eval_steps; add it" for name in given]
    elif "validation_split_percentage" in given:
        if settings.validation_split_percentage > 99:
            problems.append(
                f"--validation_split_percentage {settings.validation_split_percentage} leaves no row to train on; "
                "use 1 to 99"
            )
        if settings.validation_file:
            problems.append(
                "--validation_split_percentage has no effect beside --validation_file, which is evaluated on; drop one"
            )
        elif settings.streaming:
            problems.append(
                "--validation_split_percentage: how many rows a stream has is not known; use --max_eval_samples"
            )


def _derive(settings: Settings, origins: dict[str, str], problems: list[str]) -> Settings:
    """Fills in what follows from the other settings."""
    changes: dict[str, Any] = {
        "micro_batch_size": settings.global_batch_size
        // (settings.gradient_accumulation_steps * settings.num_processes)
    }
    if not settings.dataset_name and not settings.train_file:
        changes["dataset_name"] = "python-stdlib"
    name = settings.run_name or made_name(settings)
    if not re.fullmatch(r"[\w.+=-]+", name):
        problems.append(f"--run_name {name!r}: letters, digits and . _ - + = only, since it names a folder")
    changes["run_name"] = name
    changes["output_dir"] = settings.output_dir or str(Path("runs") / name)
    if any(path.is_file() for path in (Path(changes["output_dir"]), *Path(changes["output_dir"]).parents)):
        problems.append(f"--output_dir {changes['output_dir']}: a file stands in the way; name a folder")
    for derived in changes:
        origins.setdefault(derived, "derived")
    for unset in FIELDS:
        origins.setdefault(unset, "default")
    return dataclasses.replace(settings, **changes, origins=origins)
