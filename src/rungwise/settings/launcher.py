"""What a launcher left for the run: how many processes it started, and what it was told beside `--config`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .yaml_file import read_yaml


def processes(
    from_file: Mapping[str, Any], path: str, environ: Mapping[str, str], errors: list[str]
) -> tuple[int, str]:
    """How many processes were started, and who says so; the file may only say the same."""
    told = environ.get("WORLD_SIZE", "1")
    launched = int(told) if re.fullmatch(r"[1-9][0-9]{0,5}", told) else 1
    if str(launched) != told:
        errors.append(f"WORLD_SIZE={told}: must be the number of processes that a launcher started; unset it")
    stated = from_file.get("num_processes", launched)
    if stated != launched:
        errors.append(
            f"{path} says num_processes: {stated}, but {launched} started; launch with "
            f"`accelerate launch --config_file {path} ...` or `torchrun --nproc_per_node {stated} ...`, "
            "or correct the file (for several processes on a CPU the launcher needs distributed_type: MULTI_GPU)"
        )
    if from_file.get("fsdp") and launched == 1:
        errors.append(
            f"{path} asks for FSDP, which shards over processes, and 1 started; launch with "
            f"`accelerate launch --config_file {path} --num_processes 2 ...`, or, for a ladder, write "
            "num_processes: 2 into the file"
        )
    return launched, "launcher"


def agree(values: dict[str, Any], environ: Mapping[str, str], origins: dict[str, str], errors: list[str]) -> None:
    """Compares the file with what `accelerate launch` was told, which reaches the script through its environment.

    The launcher always sets a precision: "no" unless told otherwise. One that stands in the user's default Accelerate
    file was not chosen for this run, so `--config` goes before it; one given to the launcher itself must agree.

    Args:
        values: of the settings so far; `use_cpu` is taken over from the launcher.
        environ: the environment that the launcher left.
        origins: where they came from; is changed with them.
        errors: gets one message for each thing that the two do not agree on.
    """
    path = values["config"]
    precision = values.get("mixed_precision", "no")
    launched = environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched not in ("no", precision):
        if launched == _default_file(environ).get("mixed_precision"):
            origins["mixed_precision"] = f"{path}, before Accelerate's default file ({launched})"
        else:
            errors.append(
                f"the launcher was told mixed_precision {launched}, {path} says {precision}; "
                f"drop the launcher's --mixed_precision or --config_file, or give both the same file"
            )
    launched = environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    steps = values.get("gradient_accumulation_steps", 1)
    if launched not in ("1", str(steps)):
        errors.append(
            f"the launcher was told gradient_accumulation_steps {launched}, this run's are {steps} "
            f"({origins.get('gradient_accumulation_steps', 'default')}); give it in one place"
        )
    dynamo = environ.get("ACCELERATE_DYNAMO_BACKEND", "NO").upper()
    if dynamo != "NO" and not values.get("torch_compile") and dynamo != _default_dynamo(environ):
        errors.append("the launcher was told to use dynamo, this run is not compiled; add --torch_compile")
    if environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true" and not values.get("fsdp"):
        errors.append(f"the launcher was told to use FSDP, {path} does not say so; give both the same file")
    for engine in ("DEEPSPEED", "MEGATRON_LM"):
        if environ.get(f"ACCELERATE_USE_{engine}", "false").lower() == "true":
            errors.append(f"the launcher was told to use {engine}, which has no recipe here; launch without it")
    if environ.get("ACCELERATE_USE_CPU", "false").lower() == "true":
        values["use_cpu"] = True
        origins.setdefault("use_cpu", "launcher")


def default_config_file(environ: Mapping[str, str]) -> Path:
    """The user's own Accelerate file, which the launcher reads when it is given none: where Accelerate keeps it."""
    cache = Path(environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(environ.get("HF_HOME", cache)).expanduser() / "accelerate" / "default_config.yaml"


def _default_file(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        content = read_yaml(str(default_config_file(environ)))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _default_dynamo(environ: Mapping[str, str]) -> str:
    dynamo = _default_file(environ).get("dynamo_config")
    return str(dynamo.get("dynamo_backend")).upper() if isinstance(dynamo, dict) else "NO"
