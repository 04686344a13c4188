"""The checkpoints in a run's folder: which there are, which of them are whole, and how one takes another's place."""

import dataclasses
import hashlib
import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

from ..loop import Step
from ..redact import redacted
from ..settings.fields import Settings

LATEST = "latest"
# What is in a checkpoint beside Accelerate's files; written last, so that a folder without it is none.
STEPS = "steps.json"
# What it holds, by key, and each of the rows of its two lists.
CONTENT = {"settings": dict, "scheduler": dict, "steps": list, "evaluations": list, "data": dict, "files": dict}
STEP = {field.name for field in dataclasses.fields(Step)}
EVALUATION = {"step", "loss"}
# A checkpoint of the same step, while a newer one takes its place.
OLD = ".old"
# One that is being written.
PARTIAL = ".partial"


def find_checkpoint(settings: Settings) -> Path | None:
    """The folder that `resume_from_checkpoint` means; `latest`: the last whole one of the run's own folder, if any."""
    if settings.resume_from_checkpoint is None:
        return None
    if settings.resume_from_checkpoint != LATEST:
        return Path(settings.resume_from_checkpoint)
    found = _saved(Path(settings.output_dir))
    return found[max(found)] if found else None


def is_in(checkpoint: Path, folder: Path) -> bool:
    """Whether a checkpoint was left by the run of a folder."""
    return checkpoint.resolve().parent == folder.resolve()


def put_in_place(partial: Path, target: Path) -> None:
    """Renames first and removes then: a process that is killed between the two leaves a whole checkpoint."""
    old = target.with_name(target.name + OLD)
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    partial.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def keep_newest(folder: Path, limit: int) -> None:
    """Removes all but the last `limit` checkpoints."""
    saved = _saved(folder)
    for number in sorted(saved)[:-limit]:
        shutil.rmtree(saved[number])


def set_aside(folder: Path, resumed: Path | None) -> str | None:
    """Moves checkpoints that are not of this run out of the way, so that `latest` never means one of them.

    What a run that was killed had not written to its end is removed: it is of no use.

    Args:
        folder: the run's own.
        resumed: the checkpoint that the run goes on from. If it is in the same folder, those before it are the run's.

    Returns:
        What was done, in words, or None if there are none.
    """
    for partial in folder.glob(f"checkpoint-*{PARTIAL}"):
        shutil.rmtree(partial, ignore_errors=True)
    done = _step(resumed) if resumed and is_in(resumed, folder) else None
    steps = {path: _step(path) for path in sorted(folder.glob("checkpoint-*"))}
    others = [path for path, step in steps.items() if step is not None and (done is None or step > done)]
    if not others:
        return None
    aside = folder / f"checkpoints-before-{datetime.now():%Y%m%d-%H%M%S-%f}"
    aside.mkdir()
    for path in others:
        path.rename(aside / path.name)
    return f"{', '.join(path.name for path in others)} of an earlier run: set aside in {aside}"


def sizes(folder: Path) -> dict[str, int]:
    """The bytes of each file of a checkpoint, by its name within it."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != STEPS]
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def damage(folder: Path) -> list[str]:
    """What is wrong with the files of a checkpoint, as far as their sizes tell.

    Raises:
        OSError, ValueError, LookupError, TypeError: it is none.
    """
    found = sizes(folder)
    return [
        f"its {name} has {found[name]} bytes, not {size}" if name in found else f"its {name} is missing"
        for name, size in read(folder)["files"].items()
        if found.get(name) != size
    ]


def digest(folder: Path) -> str | None:
    """What tells this checkpoint from another; None if it is not there, or not whole."""
    try:
        return None if damage(folder) else hashlib.blake2b((folder / STEPS).read_bytes()).hexdigest()
    except (OSError, ValueError, LookupError, TypeError):
        return None


def read(folder: Path) -> dict[str, Any]:
    """What stands in a checkpoint beside Accelerate's files.

    Raises:
        OSError, ValueError: it is none, or not one that a run has left.
    """
    try:
        content = redacted(json.loads((folder / STEPS).read_text(encoding="utf-8")))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not (isinstance(content, dict) and all(isinstance(content.get(key), kind) for key, kind in CONTENT.items())):
        raise ValueError(f"it has not all of {', '.join(CONTENT)}")
    steps, evaluations = content["steps"], content["evaluations"]
    numbers = [step["number"] for step in steps if _is_row(step, STEP)]
    whole = numbers == list(range(1, len(steps) + 1)) and all(_is_row(row, EVALUATION) for row in evaluations)
    if not steps or not whole or not isinstance(content.get("tracked"), str | None):
        raise ValueError("its steps are not those of a run")
    return content


def _is_row(row: Any, names: set[str]) -> bool:
    """Whether a row of steps or evaluations has these numbers, and some of them none."""
    return (
        isinstance(row, dict) and row.keys() == names and all(isinstance(v, int | float | None) for v in row.values())
    )


def _step(folder: Path) -> int | None:
    match = re.fullmatch(rf"checkpoint-(\d+)(?:{re.escape(OLD)})?", folder.name)
    return int(match[1]) if match else None


def _saved(folder: Path) -> dict[int, Path]:
    """The checkpoints of a folder by their step."""
    whole = [path for path in folder.glob("checkpoint-*") if _step(path) is not None and (path / STEPS).is_file()]
    # The shorter name of a step is the newer checkpoint's, and wins as the later one here.
    return {_step(path): path for path in sorted(whole, key=lambda path: -len(path.name))}
