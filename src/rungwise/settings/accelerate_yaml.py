"""Reads the Accelerate YAML given to `--config`: which keys it has, and what the recipes take from it.

A file accepted here is one that `accelerate launch --config_file` accepts, those that `accelerate config` writes among
them. The one addition is a top-level `gradient_accumulation_steps`, which Accelerate only knows inside
`deepspeed_config`.
"""

from pathlib import Path
from typing import Any

from ..errors import closest, closest_file
from .accelerate_keys import (
    ACCUMULATION,
    DISTRIBUTED_TYPES,
    DYNAMO_KEYS,
    FSDP_CLASSES,
    FSDP_REMEDIES,
    FSDP_VALUES,
    KEYS,
    PRECISIONS,
    WORDS,
    Key,
    installed_key,
)
from .yaml_file import read_yaml


def read(path: str) -> tuple[dict[str, Any], list[str]]:
    """Reads and checks one Accelerate YAML file.

    Returns:
        The values found, by the names of the settings they decide (`mixed_precision`,
        `gradient_accumulation_steps`, `torch_compile`, `torch_compile_mode`, `torch_compile_scope`, `use_cpu`,
        `num_processes`, `fsdp`, `fsdp_<key>`, `gradient_checkpointing`), and one message for each problem. Values of
        the wrong type are left out.
    """
    raw, problem = _load(path)
    if problem:
        return {}, [problem]
    errors: list[str] = []
    raw = _well_typed(raw, path, errors)

    values: dict[str, Any] = {}
    kind = raw.get("distributed_type", "NO")
    if kind not in DISTRIBUTED_TYPES:
        near = closest(kind, DISTRIBUTED_TYPES)
        errors.append(
            f"{path}: distributed_type {kind!r} has no recipe here{near}; use one of {', '.join(DISTRIBUTED_TYPES)}"
        )
    if raw.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        errors.append(f"{path}: compute_environment must be LOCAL_MACHINE, not {raw['compute_environment']!r}")
    _precision(raw, path, values, errors)
    _accumulation(raw, path, values, errors)
    _dynamo(raw, path, values, errors)
    _fsdp(raw, path, values, errors)
    if raw.get("num_processes", 1) < 1:
        errors.append(f"{path}: num_processes must be at least 1, not {raw.pop('num_processes')}")
    for name in ("use_cpu", "num_processes"):
        if name in raw:
            values[name] = raw[name]
    return values, errors


def _load(path: str) -> tuple[dict[str, Any], str | None]:
    try:
        raw = read_yaml(path)
    except FileNotFoundError:
        shipped = sorted(str(file) for file in Path("accelerate_configs").glob("*.yaml"))
        near = closest_file(path, "accelerate_configs")
        hint = f"; shipped here: {', '.join(shipped)}" if shipped else "; give the path of an Accelerate YAML file"
        return {}, f"--config {path}: no such file{near}{hint}"
    except OSError as error:
        return {}, f"--config {path}: cannot be read ({error.strerror}); give the path of an Accelerate YAML file"
    except ValueError as error:
        return {}, f"--config {path}: {error}; write `key: value` lines, as in accelerate_configs/bf16.yaml"
    if not isinstance(raw, dict):
        return {}, (
            f"--config {path}: holds {type(raw).__name__}, not `key: value` lines; "
            "start from accelerate_configs/bf16.yaml"
        )
    return raw, None


def _well_typed(raw: dict[str, Any], path: str, errors: list[str]) -> dict[str, Any]:
    """The entries that are read here, of the right type. All others that change something become errors."""
    kept = {}
    for name, value in raw.items():
        key = KEYS.get(name) or installed_key(name)
        if key is None:
            errors.append(f"{path}: unknown key {name!r}{closest(str(name), KEYS)}; remove it or correct its name")
        elif name in ("mixed_precision", "distributed_type") and value is False:
            word = "no" if name == "mixed_precision" else "NO"
            errors.append(f"{path}: YAML reads an unquoted {word} as false; write {name}: '{word}'")
        elif value is None or _is_off(value, key):
            continue  # Accelerate writes None for what was not chosen.
        elif not isinstance(value, key.kind) or (key.kind is int and isinstance(value, bool)):
            errors.append(f"{path}: {name} must be {WORDS[key.kind]}, not {value!r}")
        elif key.read:
            kept[name] = value
        elif not key.launcher:
            errors.append(f"{path}: {name} {key.remedy}")
    return kept


def _is_off(value: Any, key: Key) -> bool:
    """Whether a value of a key that has no recipe here asks for nothing. True is no 1."""
    asked = any(type(value) is type(off) and value == off for off in key.off)
    return not key.read and (asked or value in ("", [], {}))


def _precision(raw: dict[str, Any], path: str, values: dict[str, Any], errors: list[str]) -> None:
    precision = raw.get("mixed_precision")
    if precision is None:
        return
    if precision in PRECISIONS:
        values["mixed_precision"] = precision
    else:
        why = "has no recipe here" if precision == "fp8" else f"does not exist{closest(precision, PRECISIONS)}"
        quoted = ", ".join(repr(name) for name in PRECISIONS)
        errors.append(f"{path}: mixed_precision {precision!r} {why}; use one of {quoted}")


def _accumulation(raw: dict[str, Any], path: str, values: dict[str, Any], errors: list[str]) -> None:
    deepspeed = raw.get("deepspeed_config") or {}
    # Of a file for DeepSpeed it is said once that there is no recipe.
    for key in deepspeed if raw.get("distributed_type") != "DEEPSPEED" else ():
        if key != ACCUMULATION:
            errors.append(f"{path}: deepspeed_config: {key} has no effect, since DeepSpeed is not used; remove it")
    found = {}
    if ACCUMULATION in raw:
        found[ACCUMULATION] = raw[ACCUMULATION]
    if ACCUMULATION in deepspeed:
        found[f"deepspeed_config: {ACCUMULATION}"] = deepspeed[ACCUMULATION]
    for name, steps in found.items():
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            errors.append(f"{path}: {name} must be a whole number of at least 1, not {steps!r}")
            return
    if len(set(found.values())) > 1:
        stated = " and ".join(f"{name}: {steps}" for name, steps in found.items())
        errors.append(f"{path}: says both {stated}; keep one")
    elif found:
        values[ACCUMULATION] = next(iter(found.values()))


def _without_prefix(config: dict[str, Any] | None, prefix: str) -> dict[str, Any]:
    chosen = {key: value for key, value in (config or {}).items() if value is not None}
    return {str(key).removeprefix(prefix): value for key, value in chosen.items()}


def _dynamo(raw: dict[str, Any], path: str, values: dict[str, Any], errors: list[str]) -> None:
    config = _without_prefix(raw.get("dynamo_config"), "dynamo_")
    if not config:
        return
    for key in config:
        if key not in DYNAMO_KEYS:
            errors.append(f"{path}: dynamo_config: unknown key {key!r}{closest(key, DYNAMO_KEYS)}; remove it")
    for key in ("use_regional_compilation", "use_fullgraph", "use_dynamic"):
        if not isinstance(config.get(key, False), bool):
            errors.append(f"{path}: dynamo_config: {key} must be true or false, not {config[key]!r}")
    for key in ("use_fullgraph", "use_dynamic"):
        if config.get(key) is True:
            errors.append(f"{path}: dynamo_config: {key} has no recipe here and would have no effect; remove it")
    backend = config.get("backend", "NO")
    backend = "NO" if backend is False else str(backend).upper()
    if backend not in ("NO", "INDUCTOR"):
        errors.append(f"{path}: dynamo_config: backend {config['backend']!r} has no recipe here; use INDUCTOR or 'NO'")
    values["torch_compile"] = backend == "INDUCTOR"
    if config.get("mode", "default") != "default":
        values["torch_compile_mode"] = config["mode"]
    if config.get("use_regional_compilation") is True:
        values["torch_compile_scope"] = "regional"


def _fsdp(raw: dict[str, Any], path: str, values: dict[str, Any], errors: list[str]) -> None:
    config = _without_prefix(raw.get("fsdp_config"), "fsdp_")
    if raw.get("distributed_type") != "FSDP":
        if config:
            errors.append(f"{path}: fsdp_config has no effect without distributed_type: FSDP; add it, or remove this")
        return
    config.setdefault("version", 1)  # as Accelerate does
    values["fsdp"] = True
    classes = config.pop(FSDP_CLASSES, "")
    if not isinstance(classes, str):
        errors.append(f"{path}: fsdp_config: fsdp_{FSDP_CLASSES} must be text, not {classes!r}")
    elif classes.strip():
        values[f"fsdp_{FSDP_CLASSES}"] = ",".join(name.strip() for name in classes.split(","))
    if str(config.get("auto_wrap_policy")).upper() == "SIZE_BASED_WRAP":
        config.pop("min_num_params", None)  # goes with the policy, which is refused
    # What FSDP1 was asked for besides says nothing of what is meant for FSDP2.
    keys = config if config["version"] == 2 else ("version",)
    for key, value in ((key, config[key]) for key in keys):
        known = FSDP_VALUES.get(key)
        value = value.upper() if isinstance(value, str) else value
        if known is None:
            near = closest(key, FSDP_VALUES)
            errors.append(f"{path}: fsdp_config: fsdp_{key} has no recipe here{near}; remove it")
        elif type(value) is not type(known[0]) or value not in known:
            wanted = " or ".join(str(option).lower() if isinstance(option, bool) else str(option) for option in known)
            why = f" ({FSDP_REMEDIES[key]})" if key in FSDP_REMEDIES else ""
            errors.append(f"{path}: fsdp_config: fsdp_{key} must be {wanted}, not {value!r}{why}")
        elif key == "activation_checkpointing":
            # Transformers' own does the same to each block, under every engine.
            values |= {"gradient_checkpointing": True} if value else {}
        elif len(known) > 1:
            values[f"fsdp_{key}"] = value
