"""How a run ended: an exception to a status, a reason and an exit code."""

import traceback

import torch
from accelerate.utils.memory import should_reduce_batch_size

from ..errors import SettingsError
from ..loop import Diverged, Step
from ..settings.fields import FIELDS
from ..signals import Terminated
from ..techniques.seen import UnavailableTechnique

# What a step is at, by the name of a function that it calls.
PARTS = {"forward": "forward", "backward": "backward", "step": "the optimizer"}


def lost_a_rank(error: BaseException | None) -> bool:
    """Whether this process ended because another one no longer answered."""
    if isinstance(error, torch.distributed.DistError):
        return True
    # gloo raises plain errors.
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("gloo", "Connection closed by peer")
    )


def outcome(error: BaseException | None, steps: list[Step], processes: int = 1) -> tuple[str, str | None, int]:
    """Status, reason and exit code of a run of so many processes that ended with `error`, or with none."""
    words = str(error).strip() or type(error).__name__
    match error:
        case None if steps and not any(step.tokens for step in steps):
            remedy = "check the labels of the rows, or their attention_mask, which masks labels where there are none"
            return "failed", f"no token of {len(steps)} steps carries a loss: every label is -100; {remedy}", 1
        case None if steps and all(step.skipped for step in steps):
            return "diverged", f"fp16 overflowed in all {len(steps)} steps, no weight was changed", 1
        case None:
            return "ok", None, 0
        case SettingsError() if steps:
            return "failed", f"after step {len(steps)}: {'; '.join(error.errors)}", 1
        case SettingsError():
            return "failed", words, 2
        case Diverged():
            return "diverged", words, 1
        case UnavailableTechnique():
            return "skipped", words, 1
        case KeyboardInterrupt():
            return "failed", f"interrupted after {len(steps)} steps", 130
        case Terminated():
            # A launcher ends all ranks when one is gone, and often before this one has missed it.
            why = "; asked to from outside, or another rank ended without a word (killed?)" if processes > 1 else ""
            return "failed", f"terminated after {len(steps)} steps{why}", 143
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or should_reduce_batch_size(error):
        remedy = ", or ".join(advice for f in FIELDS.values() if (advice := f.metadata["saves_memory"]))
        when = _when(error, len(steps))
        return "out_of_memory", f"out of memory {when} ({words.splitlines()[0]}); {remedy}", 1
    if lost_a_rank(error):
        first = words.splitlines()[0]
        return "failed", f"another rank ended without a word (killed?) after {len(steps)} steps: {first}", 1
    return "failed", f"{type(error).__name__}: {words}", 1


def _when(error: BaseException, done: int) -> str:
    """What a run was at when an error came, after so many steps, by names of what had been called; a Trainer's too."""
    names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)]
    if "train" not in names or "evaluate" in names:
        return f"after step {done}" if done else "before step 1"
    part = next((PARTS[name] for name in names[names.index("train") :] if name in PARTS), None)
    return f"in {part} of step {done + 1}" if part else f"in step {done + 1}"
