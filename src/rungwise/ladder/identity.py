"""What must be the same whenever a rung of a folder is run: arguments, Accelerate file, data, machine."""

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.fingerprint import changes, fingerprints
from ..data.opened import Opening
from ..environment import machine
from ..errors import SettingsError
from ..redact import redacted
from ..report.comparable import differences
from ..run.configure import check
from ..settings.fields import Settings
from .ladder_file import Rung

REMEDY = "give another --output_dir, or --fresh to start it anew"


def check_rungs(rungs: Sequence[Rung], opening: Opening) -> dict[str, Settings]:
    """Checks every rung as its own run will. Returns their settings by name.

    Raises:
        SettingsError: with all that is wrong; what is not wrong with every rung, by the names of those it is.
    """
    errors: dict[str, list[str]] = {}
    settings: dict[str, Settings] = {}
    for rung in rungs:
        tracker = {name: value for name, value in os.environ.items() if name.startswith("WANDB_")}
        environ = tracker | {"WORLD_SIZE": str(rung.processes)}
        settings[rung.name], found, _ = check(rung.arguments, environ=environ, opening=opening, engine=rung.engine)
        for problem in found or rung.launch_errors():
            errors.setdefault(problem, []).append(rung.name)
    if errors:
        raise SettingsError(
            problem if len(names) == len(rungs) else f"{', '.join(names)}: {problem}"
            for problem, names in errors.items()
        )
    return settings


def identify(rungs: Sequence[Rung], settings: dict[str, Settings], opening: Opening) -> dict[str, Any]:
    """The machine, and of each rung its command, the text of its Accelerate file and its data's fingerprints."""
    made = {}
    for rung in rungs:
        config = Path(rung.config).read_text(encoding="utf-8")
        data = fingerprints(settings[rung.name], opening)
        made[rung.name] = {"command": shlex.join(rung.command()), "config": config, "data": data}
    # As it is written: what is compared later is what was kept.
    return redacted({"machine": machine(), "rungs": made})


def read(path: Path) -> dict[str, Any]:
    """What `identify` said when a ladder was begun, in its `ladder.json`.

    Raises:
        SettingsError: the file is damaged.
    """
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        whole = isinstance(known["machine"], dict) and all(
            isinstance(rung["command"], str)
            and isinstance(rung["config"], str)
            and isinstance(rung.get("data", {}), dict)
            for rung in known["rungs"].values()
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise SettingsError([f"{path} is damaged; {REMEDY}"])
    return known


def refuse_changes(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuses to mix figures of other settings, configs, data, versions or machines with those of a folder.

    Raises:
        SettingsError: with each rung and each part of the machine that is not as it was.
    """
    changed = [
        f"{rung}: {_difference(before['rungs'][rung], identity)}"
        for rung, identity in now["rungs"].items()
        if before["rungs"].get(rung, identity) != identity
    ]
    changed += [
        f"{name}: it was {then} and is now {value}"
        for name, (then, value) in differences(before["machine"], now["machine"]).items()
    ]
    if changed:
        raise SettingsError([f"{folder} was made otherwise ({line}); {REMEDY}" for line in changed])


def refuse_changed_data(rung: Rung, settings: Settings, before: dict[str, str]) -> None:
    """Refuses to run a rung whose data has changed while the ladder runs: rungs of other data cannot be compared.

    Raises:
        SettingsError: with each text that is not as it was.
    """
    lines = changes(before, fingerprints(settings))
    if lines:
        raise SettingsError([f"{rung.name}: {line} since the ladder began; {REMEDY}" for line in lines])


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before["command"] != now["command"]:
        return f"it was `{before['command']}` and is now `{now['command']}`"
    if before["config"] == now["config"]:
        known = before.get("data", {})
        return "; ".join(changes(known, now["data"])) or "what its data was is not known"
    return "its Accelerate file has changed"
