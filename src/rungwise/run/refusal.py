"""How a call is refused by each of its processes, before there is a run and before PyTorch is loaded."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SettingsError


def rank() -> str:
    """The number of this process among those that were launched together."""
    return os.environ.get("RANK", "0")


def is_main() -> bool:
    """Whether this is the process that writes and prints."""
    return rank() == "0"


def speaker() -> str:
    """What goes before a reason, so that its reader knows whose it is: nothing for the main process."""
    return "" if is_main() else f"rank {rank()}: "


@contextmanager
def exit_on_errors() -> Iterator[None]:
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
