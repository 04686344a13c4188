"""Checkpoints: what a later process needs to go on with a run as if it had never stopped.

Accelerate saves the model, the optimizer, the gradient scaler and every process's random state; beside them stand the
steps so far, so that the result of a resumed run is the whole run's, and what its data was.
"""

import dataclasses
import json
import logging
import platform
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object, load
from torch.optim.lr_scheduler import LRScheduler

from ..data import fingerprint
from ..errors import SettingsError
from ..loop import Step
from ..settings.fields import NAMING, Settings
from .as_data import foreign, weights_only
from .record import Record
from .refusal import is_main
from .saved_checkpoints import (
    PARTIAL,
    STEPS,
    damage,
    digest,
    find_checkpoint,
    is_in,
    keep_newest,
    put_in_place,
    read,
    sizes,
)
from .status import lost_a_rank, outcome

FLAG = "--resume_from_checkpoint"
_REMEDY = "give a checkpoint-N folder that is whole, or start anew without it"
# Settings that may change between the parts of one run: where it is kept, how long it is, what is only looked at. None
# of them changes which row comes when. The micro-batch follows from others, and is named with them.
FREE = {
    *NAMING,
    "max_steps",
    "untimed_steps",
    "checkpointing_steps",
    "save_total_limit",
    "resume_from_checkpoint",
    "eval_steps",
} - {"micro_batch_size", "precision"}


def save_checkpoint(accelerator: Accelerator, scheduler: LRScheduler, record: Record, tracked: str | None) -> None:
    """Saves `<output_dir>/checkpoint-N` after step N, whole or not at all. Call it in every process.

    Args:
        accelerator: has prepared the model and the optimizer.
        scheduler: not prepared.
        record: the steps so far, and the data.
        tracked: the tracker's name of the run, by which a later process goes on with it.
    """
    target = Path(record.settings.output_dir) / f"checkpoint-{record.steps[-1].number}"
    # A process that is killed while it writes leaves a folder that nobody takes for a checkpoint.
    partial = target.with_name(target.name + PARTIAL)
    if accelerator.is_main_process:
        shutil.rmtree(partial, ignore_errors=True)
    accelerator.wait_for_everyone()
    try:
        with _without_advice():
            accelerator.save_state(str(partial), safe_serialization=True)
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            content = {
                "settings": record.settings.as_dict(),
                "scheduler": scheduler.state_dict(),
                "steps": [dataclasses.asdict(step) for step in record.steps],
                "evaluations": record.evaluations,
                "data": record.data,
                "tracked": tracked,
                "files": sizes(partial),
            }
            # A learning rate may be a tensor, as torchao's optimizers keep it.
            (partial / STEPS).write_text(json.dumps(content, default=float), encoding="utf-8")
            put_in_place(partial, target)
            if record.settings.save_total_limit:
                keep_newest(target.parent, record.settings.save_total_limit)
    except BaseException:
        # On a full disk, what is left of it takes the room of the result.
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextmanager
def _without_advice() -> Iterator[None]:
    """A tied parameter is saved once, as it is to be; Accelerate would advise to check it, at each checkpoint."""
    logger = logging.getLogger("accelerate.utils.other")
    logger.addFilter(_not_about_tied)
    try:
        yield
    finally:
        logger.removeFilter(_not_about_tied)


def _not_about_tied(record: logging.LogRecord) -> bool:
    return "Removed shared tensor" not in record.getMessage()


def load_checkpoint(
    accelerator: Accelerator, scheduler: LRScheduler, folder: Path, record: Record
) -> tuple[list[Step], str | None]:
    """Puts model, optimizer, scaler, scheduler, random numbers and evaluations back to where a checkpoint left them.

    Returns:
        The steps that were taken by then, and the tracker's name of the run. From a checkpoint of another folder than
        the run's own goes on another run, and there is no such name.

    Raises:
        SettingsError: it cannot be loaded.
    """
    try:
        with weights_only():
            accelerator.load_state(str(folder))
        content = read(folder)
        scheduler.load_state_dict(content["scheduler"])
        # Accelerate goes on without random numbers that it cannot load.
        saved = load(folder / f"random_states_{accelerator.process_index}.pkl")
        if not torch.equal(saved["torch_manual_seed"], torch.get_rng_state()):
            raise ValueError("its random numbers do not fit this machine")
    except Exception as error:
        # Whoever reads tensors raises errors of its own.
        if lost_a_rank(error) or outcome(error, [])[0] == "out_of_memory":
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SettingsError([f"{FLAG} {folder}: it cannot be loaded ({reason}); {_REMEDY}"]) from error
    record.evaluations = content["evaluations"]
    tracked = content["tracked"] if is_in(folder, Path(record.settings.output_dir)) else None
    return [Step(**step) for step in content["steps"]], tracked


def agree(folder: Path | None) -> Path | None:
    """The checkpoint that the main process goes on from, for all processes. Call it in every process.

    Raises:
        SettingsError: some process does not find it, as on a node that does not see the main one's folder.
    """
    [chosen] = broadcast_object_list([str(folder) if folder else None])
    if chosen is None:
        return None
    folder = Path(chosen)
    found = gather_object([(platform.node(), digest(folder))])
    others = [f"rank {rank} (on {node})" for rank, (node, seen) in enumerate(found) if seen != found[0][1]]
    if others:
        remedy = "keep it where every node sees it, or copy it to each"
        raise SettingsError([f"{FLAG} {folder}: not found, or another one, by {', '.join(others)}; {remedy}"])
    return folder


def validate(settings: Settings) -> list[str]:
    """Why a run cannot go on from the checkpoint that was asked for."""
    folder = find_checkpoint(settings)
    return [] if folder is None else _resuming(folder, settings)


def _resuming(folder: Path, settings: Settings) -> list[str]:
    try:
        content = read(folder)
        before, done = content["settings"], content["steps"][-1]["number"]
        parts = {part["source"]: part["fingerprint"] for part in content["data"].values() if "fingerprint" in part}
        damaged = damage(folder) + foreign(folder)
    except (OSError, ValueError, LookupError, TypeError):
        return [f"{FLAG} {folder}: not a whole checkpoint of such a run; give a checkpoint-N folder, or latest"]
    found = [f"{FLAG} {folder}: {line}; {_REMEDY}" for line in damaged]
    now = settings.as_dict()
    found += [
        f"{FLAG} {folder}: {name} was {before.get(name)} and is now {now[name]}; resume with the same settings"
        for name in now
        if name not in FREE and before.get(name) != now[name]
    ]
    evaluated = before.get("eval_steps")
    if (evaluated is None) != (settings.eval_steps is None):
        found.append(
            f"{FLAG} {folder}: eval_steps was {evaluated} and is now {settings.eval_steps}, which changes "
            "the rows to train on; resume with the same, or with another number where there was one"
        )
    schedule, steps = settings.lr_scheduler_type, before.get("max_steps")
    if not schedule.startswith("constant") and steps != settings.max_steps:
        found.append(f"{FLAG} {folder}: its {schedule} schedule was made for --max_steps {steps}; keep that")
    if done >= settings.max_steps:
        found.append(f"{FLAG} {folder}: {done} steps are done, --max_steps {settings.max_steps} leaves none; raise it")
    return found + _changed_data(folder, parts, settings)


def _changed_data(folder: Path, before: dict[str, str], settings: Settings) -> list[str]:
    # Reading all of the data is for one process of them.
    if not before or not is_main():
        return []
    try:
        now = fingerprint.fingerprints(settings)
    except SettingsError:
        # `open_data` says what is wrong with it.
        return []
    remedy = "resume with the same data, or start anew without it"
    return [f"{FLAG} {folder}: {line}; {remedy}" for line in fingerprint.changes(before, now)]
