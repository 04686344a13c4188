"""What the processes of one run tell one another about its end: reasons through its folder, memory through figures."""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator

from ..errors import SettingsError
from ..result_file import write_reason
from .status import lost_a_rank


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return _rank() == "0"


def speaker() -> str:
    """What goes before a reason, so that its reader knows whose it is: nothing for the main process."""
    return "" if is_main() else f"rank {_rank()}: "


@contextmanager
def exit_on_problems() -> Iterator[None]:
    """Turns a `SettingsError` into its message and exit code 2."""
    try:
        yield
    except SettingsError as error:
        _refuse(error)
        raise SystemExit(2) from error


def _refuse(error: SettingsError) -> None:
    """Says why a call is refused, before there is a run: in print by the main process, and by each to its launcher.

    A launcher ends all ranks as soon as one is gone, and prints then what the first to go has told it.
    """
    launched = "RANK" in os.environ
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN) if launched else None
    if note := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        message = {"message": f"{speaker()}{error}", "extraInfo": {"timestamp": str(int(time.time()))}}
        Path(note).write_text(json.dumps({"message": message}), encoding="utf-8")
    if is_main() or not note:
        print(f"{speaker()}{error}", file=sys.stderr, flush=True)
    if launched:
        signal.signal(signal.SIGTERM, before)


def leave_word(folder: Path, reason: str | None, error: BaseException | None) -> None:
    """Another rank's reason, for the main process, which writes the result, and for the person at the terminal."""
    text = f"{speaker()}{reason}"
    # One that was left alone knows less than the one that left it.
    if isinstance(error, Exception) and not lost_a_rank(error):
        (folder / f"rank-{_rank()}.txt").write_text(text, encoding="utf-8")
    # The main process may be gone, or wait for this one where no signal reaches it, and be killed there.
    write_reason(folder, text)
    print(text, file=sys.stderr)
    if isinstance(error, Exception):
        traceback.print_exception(error)


def word_of_another(folder: Path) -> str | None:
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


def _rank() -> str:
    return os.environ.get("RANK", "0")


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
