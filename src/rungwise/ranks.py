"""What the processes of one run tell one another about its end: reasons through its folder, memory through figures."""

import os
import sys
import traceback
from pathlib import Path

from .result import write_reason


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return os.environ.get("RANK", "0") == "0"


def leave_word(folder: Path, reason: str | None, error: BaseException | None) -> None:
    """Another rank's reason, for the person at the terminal and for the main process, which writes the result."""
    rank = os.environ["RANK"]
    text = f"rank {rank}: {reason}"
    print(text, file=sys.stderr)
    if isinstance(error, Exception):
        traceback.print_exception(error)
        (folder / f"rank-{rank}.txt").write_text(text, encoding="utf-8")
    # The main process may be gone, or wait for this one where no signal reaches it, and be killed there.
    write_reason(folder, text)


def word_of_another(folder: Path) -> str | None:
    """Why another rank ended, if one did: its launcher then terminates all others."""
    for path in sorted(folder.glob("rank-*.txt")):
        return path.read_text(encoding="utf-8")
    return None


def forget_words(folder: Path) -> None:
    """Removes what ranks of an earlier run have left."""
    for word in folder.glob("rank-*.txt"):
        word.unlink()


def combined(memory: list[dict[str, float | None]]) -> dict[str, float | None]:
    """Each memory figure of the rank where it is largest and, of several ranks, the sum of their peaks, in MiB."""
    first = memory[0]
    largest = {name: None if first[name] is None else max(rank[name] for rank in memory) for name in first}
    if len(memory) > 1 and first["peak_allocated_mib"] is not None:
        largest["peak_allocated_sum_mib"] = sum(rank["peak_allocated_mib"] for rank in memory)
    return largest
