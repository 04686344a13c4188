"""`result.json`, by which everyone knows a run: how it is written, and how it is read.

Its groups have the names of `GROUPS`; a figure has one name from the meter to the CSV.
"""

import itertools
import json
import math
import re
from pathlib import Path
from typing import Any

from filelock import FileLock

from .redact import redacted
from .settings.choices import compute_precision
from .settings.cli import plain_type
from .settings.fields import FIELDS, HINTS

NAME = "result.json"
SCHEMA = 1
# The reason in a result file until its run has ended.
UNFINISHED = "ended before it was finished (killed?)"
# What a forecast is `of` where it is that of the run itself, and not of one that was traced in its place.
THIS_RUN = "this run"
# Groups of figures, and what their names start with where steps have figures of the same names.
PREFIXES = {"throughput": "perf"} | {name: name for name in ("memory", "forecast", "compile", "amp", "profile")}
# What every result has had.
WRITTEN = {"reason", "settings", "environment", "evidence", "loss", "throughput", "memory", "compile", "amp"}
# Settings that every run has had, and that are never unset.
DECIDING = {"mixed_precision", "num_processes", "gradient_accumulation_steps", "global_batch_size", "torch_compile"}
# What every run that began has said of its machine.
MACHINE = {"device_name": str, "device": str, "threads": int | str, "native_precision": list | str, "date": str}
# What is a number, by the end of its name.
FIGURE = re.compile(
    r".*(_mib|_ms|_ms_\w+|_percent|seconds|_per_second\w*|_tflops|utilization|_steps|tokens|loss_scale)"
)
GROUPS = (
    "settings",
    "origins",
    "environment",
    "data",
    "evidence",
    "loss",
    *PREFIXES,
    "activations",
    "not_measured",
    "tracker",
)


def failed_result(name: str, reason: str) -> dict[str, Any]:
    """The result of a run that ended before it could write one: a reason, and nothing in its groups."""
    head = {"schema": SCHEMA, "name": name, "status": "failed", "reason": reason}
    return head | {group: {} for group in GROUPS}


def plain(value: Any) -> Any:
    """`value` as JSON has it: what is not a finite number becomes null."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Writes a file beside itself and renames it, so that a reader never sees half of one. No secret is written."""
    temporary = path.with_suffix(".json.tmp")
    try:
        temporary.write_text(json.dumps(redacted(content), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # a full disk has no room for half of one
        raise


def write_result(folder: Path, content: dict[str, Any]) -> None:
    """Writes `content` as the result of the run in a folder."""
    write_json(folder / NAME, content)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Reads the result in a run's folder. None if there is none, or not a whole one.

    Results from before `precision` and `engine` stood among the settings are given them here, and nowhere else.
    """
    try:
        result = redacted(json.loads((folder / NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not all(isinstance(result.get(key), str) for key in ("name", "status")):
        return None
    # Older results lack the groups that are newer.
    if not all(isinstance(result.get(group, {}), dict) for group in GROUPS) or not result.keys() >= WRITTEN:
        return None
    machine = result["environment"]
    described = not machine or all(isinstance(machine.get(name), kind) for name, kind in MACHINE.items())
    if not (described and _has_figures(result) and isinstance(result["reason"], str | None)):
        return None
    settings = result["settings"]
    if not _are_settings(settings):
        return None
    if settings and "precision" not in settings:
        dtype = settings.get("dtype", "float32")
        settings["precision"] = compute_precision(settings["mixed_precision"], dtype)
    if settings:
        settings.setdefault("engine", "rungwise")
    return result


def _are_settings(settings: dict[str, Any]) -> bool:
    """Whether these are settings of their own kinds, if there are any; older results lack those that are newer."""
    if settings and not settings.keys() >= DECIDING:
        return False
    for name in settings.keys() & FIELDS.keys():
        value, kind = settings[name], plain_type(HINTS[name])
        if not isinstance(value, int | float if kind is float else kind) and (value is not None or name in DECIDING):
            return False
    return True


def _has_figures(result: dict[str, Any]) -> bool:
    """Whether what is to be a number is one, or None where it is not known."""
    named = [value for group in PREFIXES for key, value in result.get(group, {}).items() if FIGURE.fullmatch(key)]
    named += [result["loss"].get(key) for key in ("first", "last")]
    losses = [result["loss"].get(key, []) for key in ("trajectory", "updates")]
    if not all(isinstance(each, list) for each in losses):
        return False
    return all(isinstance(value, int | float | None) for value in (*named, *itertools.chain(*losses)))


def write_reason(folder: Path, reason: str) -> None:
    """Puts the reason why a run ended into its result, on behalf of a main process that may not come to do it."""
    with held(folder):
        result = read_result(folder)
        if result is not None and result["reason"] == UNFINISHED:
            write_result(folder, {**result, "reason": reason})


def held(folder: Path) -> FileLock:
    """Keeps the processes of a run from writing its result over one another."""
    return FileLock(folder / ".result.lock")
