"""What the processes of one run tell one another about its end: reasons through its folder, memory through figures."""

import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from accelerate import Accelerator

from ..redact import redacted
from ..result_file import write_reason
from .refusal import rank, speaker
from .status import lost_a_rank


def write_rank_error(folder: Path, reason: str | None, error: BaseException | None) -> None:
    """Another rank's reason, for the main process, which writes the result, and for the person at the terminal."""
    text = redacted(f"{speaker()}{reason}")
    # One that was left alone knows less than the one that left it.
    if isinstance(error, Exception) and not lost_a_rank(error):
        (folder / f"rank-{rank()}.txt").write_text(text, encoding="utf-8")
    # The main process may be gone, or wait for this one where no signal reaches it, and be killed there.
    write_reason(folder, text)
    print(text, file=sys.stderr)
    if isinstance(error, Exception):
        print(redacted("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)


def read_rank_error(folder: Path) -> str | None:
    """Why another rank ended, if one did: its launcher then terminates all others.

    One that failed has left its reason in the run's folder; one that was refused, with the launcher of this machine.
    """
    for path in sorted(folder.glob("rank-*.txt")):
        return path.read_text(encoding="utf-8")
    if own := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        for note in sorted(Path(own).parents[1].glob(f"*/{Path(own).name}")):
            return json.loads(note.read_text(encoding="utf-8"))["message"]["message"]
    return None


def leave_group(accelerator: Accelerator) -> None:
    """Leaves the process group, at exit: the caller's DDP model must be gone by then.

    A DDP model that outlives its group destroys it while it holds Python's lock, and waits for a gloo thread that
    needs the lock to free its tensors.
    """
    accelerator.free_memory()
    accelerator.end_training()


def clear_rank_errors(folder: Path) -> None:
    """Removes what ranks of an earlier run have left."""
    for word in folder.glob("rank-*.txt"):
        word.unlink()


def combined(memory: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Each memory figure of the rank where it is largest and, of several ranks, the sum of their peaks, in MiB.

    Where a rank lacks its own, nobody knows the largest.
    """
    first = next((rank for rank in memory if rank["peak_allocated_mib"] is None), memory[0])
    largest = {name: None if first[name] is None else max(rank[name] for rank in memory) for name in first}
    if len(memory) > 1 and first["peak_allocated_mib"] is not None:
        largest["peak_allocated_sum_mib"] = sum(rank["peak_allocated_mib"] for rank in memory)
    return largest
