"""Reads the Accelerate YAML given to `--config`: which keys it has, and what the recipes take from it.

Accelerate's own `ClusterConfig` is the schema, so that a file accepted here is one that
`accelerate launch --config_file` accepts. The one addition is a top-level `gradient_accumulation_steps`, which
Accelerate only knows inside `deepspeed_config`.
"""

import typing
from pathlib import Path
from typing import Any

import yaml
from accelerate.commands.config.config_args import ClusterConfig

from ..errors import closest

ACCUMULATION = "gradient_accumulation_steps"
LEGACY_KEYS = {"dynamo_backend": str, "fp16": bool}

# What changes training and has no recipe yet. An option that is accepted and then ignored would be a false label.
UNSUPPORTED = (
    "fp8_config",
    "megatron_lm_config",
    "parallelism_config",
    "downcast_bf16",
    "tpu_name",
    "tpu_zone",
    "tpu_use_cluster",
    "tpu_use_sudo",
    "fp16",
    "dynamo_backend",
)
DISTRIBUTED_TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "FSDP")
# What FSDP2 takes from the file. Other values than these would change what a run is, or do nothing. One of several is
# handed on as the setting `fsdp_<key>`.
FSDP_VALUES: dict[str, tuple[Any, ...]] = {
    "version": (2,),
    "reshard_after_forward": (True, False),
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",),
    "state_dict_type": ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
    "offload_params": (False,),
    "cpu_ram_efficient_loading": (False,),
    "activation_checkpointing": (False,),
}
FSDP_MENDS = {
    "version": "FSDP1 has no recipe here",
    "activation_checkpointing": "use the flag --gradient_checkpointing",
}
PRECISIONS = ("no", "bf16", "fp16")
DYNAMO_KEYS = ("backend", "mode", "use_regional_compilation", "use_fullgraph", "use_dynamic")


def read(path: str) -> tuple[dict[str, Any], list[str]]:
    """Reads and checks one Accelerate YAML file.

    Returns:
        The values found, by the names of the settings they decide (`mixed_precision`,
        `gradient_accumulation_steps`, `torch_compile`, `torch_compile_mode`, `torch_compile_scope`, `use_cpu`,
        `num_processes`, `fsdp`, `fsdp_reshard_after_forward`, `fsdp_state_dict_type`), and one message for each
        problem. Values of the wrong type are left out.
    """
    raw, problem = _load(path)
    if problem:
        return {}, [problem]
    problems: list[str] = []
    raw = _well_typed(raw, path, problems)

    values: dict[str, Any] = {}
    _precision(raw, path, values, problems)
    _accumulation(raw, path, values, problems)
    _dynamo(raw, path, values, problems)
    _fsdp(raw, path, values, problems)
    for name in ("use_cpu", "num_processes"):
        if name in raw:
            values[name] = raw[name]

    if raw.get("distributed_type", "NO") not in DISTRIBUTED_TYPES:
        problems.append(
            f"{path}: distributed_type {raw['distributed_type']!r} has no recipe here; use one of "
            f"{', '.join(DISTRIBUTED_TYPES)}"
        )
    if raw.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        problems.append(f"{path}: compute_environment must be LOCAL_MACHINE, not {raw['compute_environment']!r}")
    for key in UNSUPPORTED:
        if raw.get(key):
            problems.append(f"{path}: {key} has no recipe here and would have no effect; remove it")
    return values, problems


def _load(path: str) -> tuple[dict[str, Any], str | None]:
    try:
        raw = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        shipped = sorted(str(file) for file in Path("accelerate_configs").glob("*.yaml"))
        hint = f"; shipped here: {', '.join(shipped)}" if shipped else "; give the path of an Accelerate YAML file"
        return {}, f"--config {path}: no such file{hint}"
    except OSError as error:
        return {}, f"--config {path}: cannot be read ({error.strerror}); give the path of an Accelerate YAML file"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" near line {mark.line + 1}" if mark else ""
        return {}, f"--config {path}: not YAML{where}; write `key: value` lines, as in accelerate_configs/bf16.yaml"
    if not isinstance(raw, dict):
        return {}, (
            f"--config {path}: holds {type(raw).__name__}, not `key: value` lines; "
            "start from accelerate_configs/bf16.yaml"
        )
    return raw, None


def _well_typed(raw: dict[str, Any], path: str, problems: list[str]) -> dict[str, Any]:
    """The entries of known keys with values of the right type; the others become problems."""
    hints = typing.get_type_hints(ClusterConfig)
    # Enums stand as their string in the file; Accelerate writes None for what was not chosen.
    hints |= {"compute_environment": str, "distributed_type": str, ACCUMULATION: int, **LEGACY_KEYS}
    kept = {}
    for key, value in raw.items():
        if key not in hints:
            problems.append(f"{path}: unknown key {key!r}{closest(str(key), hints)}; remove it or mend its name")
        elif key == "mixed_precision" and value is False:
            problems.append(f"{path}: YAML reads an unquoted no as false; write mixed_precision: 'no'")
        elif key == "distributed_type" and value is False:
            problems.append(f"{path}: YAML reads an unquoted NO as false; write distributed_type: 'NO'")
        elif value is not None and not _fits(value, hints[key]):
            problems.append(f"{path}: {key} must be {_words(str(hints[key]))}, not {value!r}")
        elif value is not None:
            kept[key] = value
    return kept


def _fits(value: Any, hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Union:
        return any(_fits(value, option) for option in typing.get_args(hint))
    kind = typing.get_origin(hint) or hint
    if kind is int and isinstance(value, bool):
        return False
    return isinstance(value, kind)


def _words(type_name: str) -> str:
    words = {"list": "a list", "dict": "a mapping", "int": "a whole number", "bool": "true or false", "str": "text"}
    for name, text in words.items():
        if name in type_name:
            return text
    return type_name


def _precision(raw: dict[str, Any], path: str, values: dict[str, Any], problems: list[str]) -> None:
    precision = raw.get("mixed_precision")
    if precision is None:
        return
    if precision in PRECISIONS:
        values["mixed_precision"] = precision
    else:
        near = closest(precision, PRECISIONS)
        quoted = ", ".join(repr(name) for name in PRECISIONS)
        problems.append(f"{path}: mixed_precision {precision!r} does not exist{near}; use one of {quoted}")


def _accumulation(raw: dict[str, Any], path: str, values: dict[str, Any], problems: list[str]) -> None:
    deepspeed = raw.get("deepspeed_config") or {}
    for key in deepspeed:
        if key != ACCUMULATION:
            problems.append(f"{path}: deepspeed_config: {key} has no effect, since DeepSpeed is not used; remove it")
    found = {}
    if ACCUMULATION in raw:
        found[ACCUMULATION] = raw[ACCUMULATION]
    if ACCUMULATION in deepspeed:
        found[f"deepspeed_config: {ACCUMULATION}"] = deepspeed[ACCUMULATION]
    for name, steps in found.items():
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            problems.append(f"{path}: {name} must be a whole number of at least 1, not {steps!r}")
            return
    if len(set(found.values())) > 1:
        stated = " and ".join(f"{name}: {steps}" for name, steps in found.items())
        problems.append(f"{path}: says both {stated}; keep one")
    elif found:
        values[ACCUMULATION] = next(iter(found.values()))


def _dynamo(raw: dict[str, Any], path: str, values: dict[str, Any], problems: list[str]) -> None:
    config = {str(key).removeprefix("dynamo_"): value for key, value in (raw.get("dynamo_config") or {}).items()}
    if not config:
        return
    for key in config:
        if key not in DYNAMO_KEYS:
            problems.append(f"{path}: dynamo_config: unknown key {key!r}{closest(key, DYNAMO_KEYS)}; remove it")
    for key in ("use_regional_compilation", "use_fullgraph", "use_dynamic"):
        if not isinstance(config.get(key, False), bool):
            problems.append(f"{path}: dynamo_config: {key} must be true or false, not {config[key]!r}")
    for key in ("use_fullgraph", "use_dynamic"):
        if config.get(key) is True:
            problems.append(f"{path}: dynamo_config: {key} has no recipe here and would have no effect; remove it")
    backend = config.get("backend", "NO")
    backend = "NO" if backend is False else str(backend).upper()
    if backend not in ("NO", "INDUCTOR"):
        problems.append(
            f"{path}: dynamo_config: backend {config['backend']!r} has no recipe here; use INDUCTOR or 'NO'"
        )
    values["torch_compile"] = backend == "INDUCTOR"
    if "mode" in config:
        values["torch_compile_mode"] = config["mode"]
    if config.get("use_regional_compilation") is True:
        values["torch_compile_scope"] = "regional"


def _fsdp(raw: dict[str, Any], path: str, values: dict[str, Any], problems: list[str]) -> None:
    config = {str(key).removeprefix("fsdp_"): value for key, value in (raw.get("fsdp_config") or {}).items()}
    if raw.get("distributed_type") != "FSDP":
        if config:
            problems.append(
                f"{path}: fsdp_config has no effect without distributed_type: FSDP; add it, or remove this"
            )
        return
    config.setdefault("version", 1)  # as Accelerate does
    for key, value in config.items():
        known = FSDP_VALUES.get(key)
        value = value.upper() if isinstance(value, str) else value
        if known is None:
            near = closest(key, FSDP_VALUES)
            problems.append(f"{path}: fsdp_config: fsdp_{key} has no recipe here{near}; remove it")
        elif type(value) is not type(known[0]) or value not in known:
            wanted = " or ".join(str(option).lower() if isinstance(option, bool) else str(option) for option in known)
            why = f" ({FSDP_MENDS[key]})" if key in FSDP_MENDS else ""
            problems.append(f"{path}: fsdp_config: fsdp_{key} must be {wanted}, not {value!r}{why}")
        elif len(known) > 1:
            values[f"fsdp_{key}"] = value
    values["fsdp"] = True
