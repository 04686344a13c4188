"""W&B and the other trackers behind one small interface, on top of Accelerate's own.

Names of metrics are given by the caller; a run that reports to nothing has a `Tracker` too, so no caller asks.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

from accelerate.tracking import TensorBoardTracker, TrackioTracker

from ..redact import redacted
from ..settings.fields import Settings
from . import wandb_names
from .tracker import AccelerateTracker, Tracker
from .wandb_run import WandbTracker

EXTRAS = {"wandb": "wandb", "trackio": "rungwise[trackio]", "tensorboard": "rungwise[tensorboard]"}


def validate(settings: Settings) -> list[str]:
    """A tracker that is asked for and not installed, or that would not take what it is told."""
    name = settings.report_to
    if name != "none" and not importlib.util.find_spec(name):
        return [f"--report_to {name}: not installed; pip install '{EXTRAS[name]}', or --report_to none"]
    return wandb_names.problems(settings) if name == "wandb" else []


def build_tracker(settings: Settings, config: dict[str, Any], resumed: str | None = None) -> Tracker:
    """The tracker asked for. Call it in one process only, so that one training run is one tracked run.

    Args:
        settings: of the run.
        config: what is shown of them.
        resumed: the `id` of the tracker that had the run's earlier steps, to go on with.
    """
    if settings.report_to == "wandb":
        name, group = redacted([*wandb_names.run_name(settings).values(), settings.group])
        names = {"name": name, "group": group, "job_type": os.environ.get("WANDB_JOB_TYPE") or "train"}
        if resumed:
            # A run that the user has named goes before the one that the checkpoint is of.
            names |= {"id": os.environ.get("WANDB_RUN_ID") or resumed, "resume": "allow"}
        return WandbTracker(redacted(settings.project), Path(settings.output_dir), config, **names)
    if settings.report_to == "trackio":
        hint = f"look: trackio show --project {settings.project}"
        tracker = TrackioTracker(redacted(settings.project), name=settings.run_name, group=redacted(settings.group))
        return AccelerateTracker(tracker, config, hint)
    if settings.report_to == "tensorboard":
        tracker = TensorBoardTracker(settings.run_name, logging_dir=settings.output_dir)
        flat = {k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in config.items()}
        return AccelerateTracker(tracker, flat, f"look: tensorboard --logdir {settings.output_dir}")
    return Tracker()
