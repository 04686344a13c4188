"""How a run ended: an exception to a status, a reason and an exit code."""

import torch
from accelerate.utils.memory import should_reduce_batch_size

from ..errors import SettingsError
from ..loop import Diverged, Step
from ..settings.fields import FIELDS
from ..signals import Terminated
from ..techniques.seen import UnavailableTechnique


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
        return "out_of_memory", f"out of memory in step {len(steps) + 1} ({words.splitlines()[0]}); {remedy}", 1
    if lost_a_rank(error):
        first = words.splitlines()[0]
        return "failed", f"another rank ended without a word (killed?) after {len(steps)} steps: {first}", 1
    return "failed", f"{type(error).__name__}: {words}", 1
