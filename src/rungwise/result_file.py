"""`result.json`, by which everyone knows a run: how it is written, and how it is read.

Its groups have the names of `GROUPS`; a figure has one name from the meter to the CSV.
"""

import json
import math
from pathlib import Path
from typing import Any

from filelock import FileLock

from .settings.choices import compute_precision

NAME = "result.json"
SCHEMA = 1
# The reason in a result file until its run has ended.
UNFINISHED = "ended before it was finished (killed?)"
# What a forecast is `of` where it is that of the run itself, and not of one that was traced in its place.
THIS_RUN = "this run"
# Groups of figures, and what their names start with where steps have figures of the same names.
PREFIXES = {"throughput": "perf"} | {name: name for name in ("memory", "forecast", "compile", "amp", "profile")}
# What every result has had.
WRITTEN = {"name", "status", "reason", "settings", "environment", "evidence", "loss", "throughput", "memory", "compile"}
GROUPS = ("settings", "origins", "environment", "data", "evidence", "loss", *PREFIXES, "activations")


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
    """Writes a file beside itself and renames it, so that a reader never sees half of one."""
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def write_result(folder: Path, content: dict[str, Any]) -> None:
    """Writes `content` as the result of the run in a folder."""
    write_json(folder / NAME, content)


def read_result(folder: Path) -> dict[str, Any] | None:
    """Reads the result in a run's folder. None if there is none, or not a whole one.

    Results from before `precision` stood among the settings are given it here, and nowhere else.
    """
    try:
        result = json.loads((folder / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(result, dict) or not all(isinstance(result.get(key), str) for key in ("name", "status")):
        return None
    # Older results lack the groups that are newer.
    if not all(isinstance(result.get(group, {}), dict) for group in GROUPS) or not WRITTEN <= result.keys():
        return None
    settings = result["settings"]
    if settings and "precision" not in settings:
        dtype = settings.get("dtype", "float32")
        settings["precision"] = compute_precision(settings["mixed_precision"], dtype)
    return result


def write_reason(folder: Path, reason: str) -> None:
    """Puts the reason why a run ended into its result, on behalf of a main process that may not come to do it."""
    with held(folder):
        result = read_result(folder)
        if result is not None and result["reason"] == UNFINISHED:
            write_result(folder, {**result, "reason": reason})


def held(folder: Path) -> FileLock:
    """Keeps the processes of a run from writing its result over one another."""
    return FileLock(folder / ".result.lock")
