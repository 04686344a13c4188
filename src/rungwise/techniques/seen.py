"""What a technique says of itself: that it cannot be had, or what was seen of it in a run's steps."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from ..loop import Step
from ..settings.fields import Settings
from .compile_notes import CompileNotes
from .observe import ForwardNotes
from .update_notes import UpdateNotes


class UnavailableTechnique(RuntimeError):
    """A technique that was asked for cannot be had with this model, device or release."""


class InactiveTechnique(RuntimeError):
    """A technique that was asked for did not act, so the run would carry a false label."""


# How far a gradient or its norm may be from what it should be: rounding of half precision.
TOLERANCE = 0.02


@dataclass
class Seen:
    """A run, and the notes of its steps, for each technique to compare with what was asked for.

    Attributes:
        step: the step that the notes are of.
        weights: a fingerprint of each parameter after the step, (parameters,), int64.
        changed: which parameters are others than before the first step, on any process, (parameters,), bool.
    """

    settings: Settings
    accelerator: Accelerator
    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    compiled: CompileNotes | None
    forward: ForwardNotes
    updates: UpdateNotes
    step: Step | None = None
    weights: torch.Tensor | None = None
    changed: torch.Tensor | None = None

    @property
    def trained_share(self) -> float:
        """The share of the parameters that are trained."""
        trained = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return trained / sum(p.numel() for p in self.model.parameters())


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype as it stands in `result.json`."""
    return str(dtype).removeprefix("torch.")
