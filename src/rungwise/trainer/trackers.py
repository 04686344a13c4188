"""Our figures in the trackers of a Trainer under our names, where a Trainer would put `train/` before them."""

from typing import Any

from transformers import Trainer, TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK, TensorBoardCallback, TrackioCallback, WandbCallback

# The step as the Trainer's own figures have it in these trackers.
STEP = "train/global_step"


def log(trainer: Trainer, figures: dict[str, Any]) -> None:
    """Logs the figures of the last step. In a tracker that is not known here they stand below `train/`."""
    step = trainer.state.global_step
    for tracker in _trackers(trainer) if figures else []:
        if isinstance(tracker, WandbCallback):
            tracker._wandb.log({**figures, STEP: step})
        elif isinstance(tracker, TrackioCallback):
            tracker._trackio.log({**figures, STEP: step})
        elif isinstance(tracker, TensorBoardCallback):
            for name, value in figures.items():
                tracker.tb_writer.add_scalar(name, value, step)
        else:
            tracker.on_log(trainer.args, trainer.state, trainer.control, model=trainer.model, logs=dict(figures))


def summary(trainer: Trainer, figures: dict[str, Any]) -> None:
    """The figures of the whole run, where a tracker has a place for them."""
    for tracker in _trackers(trainer):
        if isinstance(tracker, WandbCallback) and tracker._wandb.run is not None:
            tracker._wandb.run.summary.update(figures)


def _trackers(trainer: Trainer) -> list[TrainerCallback]:
    kinds = tuple(INTEGRATION_TO_CALLBACK.values())
    return [callback for callback in trainer.callback_handler.callbacks if isinstance(callback, kinds)]
