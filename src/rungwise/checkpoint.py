"""Checkpoints: what a later process needs to go on with a run as if it had never stopped.

Accelerate saves the model, the optimizer, the gradient scaler and every process's random state; beside them stand the
steps so far, so that the result of a resumed run is the whole run's.
"""

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from torch.optim.lr_scheduler import LRScheduler

from .compare import NAMING
from .loop import Step
from .result import Record
from .settings import Settings

LATEST = "latest"
STEPS = "steps.json"
# Settings that may change between the parts of one run: where it is kept, how long it is, what is only looked at. The
# micro-batch follows from others, and is named with them.
FREE = {
    *NAMING,
    "max_steps",
    "untimed_steps",
    "checkpointing_steps",
    "resume_from_checkpoint",
    "eval_steps",
} - {"micro_batch_size"}


def save_checkpoint(accelerator: Accelerator, scheduler: LRScheduler, record: Record) -> None:
    """Saves `<output_dir>/checkpoint-N` after step N, whole or not at all. Call it in every process."""
    target = Path(record.settings.output_dir) / f"checkpoint-{record.steps[-1].number}"
    # A process that is killed while it writes leaves a folder that nobody takes for a checkpoint.
    partial = target.with_name(f"{target.name}.partial")
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    accelerator.save_state(str(partial), safe_serialization=True)
    if accelerator.is_main_process:
        content = {
            "settings": record.settings.as_dict(),
            "scheduler": scheduler.state_dict(),
            "steps": [dataclasses.asdict(step) for step in record.steps],
            "evaluations": record.evaluations,
        }
        (partial / STEPS).write_text(json.dumps(content), encoding="utf-8")
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)


def load_checkpoint(
    accelerator: Accelerator, scheduler: LRScheduler, settings: Settings
) -> tuple[list[Step], list[dict[str, float]]]:
    """Puts model, optimizer, scaler, scheduler and random numbers back to where a checkpoint left them.

    Returns:
        The steps that were taken by then, and the evaluations; none if no checkpoint was asked for.
    """
    folder = find_checkpoint(settings)
    if folder is None:
        return [], []
    accelerator.load_state(str(folder))
    content = _read(folder)
    scheduler.load_state_dict(content["scheduler"])
    return [Step(**step) for step in content["steps"]], content["evaluations"]


def find_checkpoint(settings: Settings) -> Path | None:
    """The folder that `resume_from_checkpoint` means; `latest`: the last whole one of the run's own folder, if any."""
    if settings.resume_from_checkpoint is None:
        return None
    if settings.resume_from_checkpoint != LATEST:
        return Path(settings.resume_from_checkpoint)
    found = {
        int(match[1]): path
        for path in Path(settings.output_dir).glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and (path / STEPS).is_file()
    }
    return found[max(found)] if found else None


def problems(settings: Settings) -> list[str]:
    """Why a run cannot go on from the checkpoint that was asked for."""
    folder, flag = find_checkpoint(settings), "--resume_from_checkpoint"
    if folder is None:
        return []
    try:
        content = _read(folder)
        before, done = content["settings"], content["steps"][-1]["number"]
    except (OSError, ValueError, LookupError, TypeError):
        return [f"{flag} {folder}: not a whole checkpoint of such a run; give a checkpoint-N folder, or latest"]
    now = settings.as_dict()
    found = [
        f"{flag} {folder}: {name} was {before.get(name)} and is now {now[name]}; resume with the same settings"
        for name in now
        if name not in FREE and before.get(name) != now[name]
    ]
    schedule, steps = settings.lr_scheduler_type, before["max_steps"]
    if not schedule.startswith("constant") and steps != settings.max_steps:
        found.append(f"{flag} {folder}: its {schedule} schedule was made for --max_steps {steps}; keep that")
    if done >= settings.max_steps:
        found.append(f"{flag} {folder}: {done} steps are done, --max_steps {settings.max_steps} leaves none; raise it")
    return found


def _read(folder: Path) -> dict[str, Any]:
    return json.loads((folder / STEPS).read_text(encoding="utf-8"))
