"""The files of one run: `result.json`, `metrics.jsonl`, the memory of one step over time. For the main process."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from ..metrics.memory import MIB
from ..metrics.phases import Timeline
from ..result_file import UNFINISHED, plain, read_result
from . import saved_checkpoints as saved
from .record import Record

# Bytes that a run keeps free for its result, should the disk be full when it ends.
RESERVE = 2**20
# What a run writes at its end, if it comes to it.
OF_THE_END = ("memory_timeline.csv", "memory.png", "memory_step.png")


class Files:
    """What a run writes into its folder. What an earlier one left there stays until this one has `begin`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.begun = False
        self._metrics, self._reserve = folder / "metrics.jsonl", folder / ".reserve"

    def begin(self, record: Record, done: int = 0) -> None:
        """Takes over the folder. Of the steps of an earlier run the first ones stay, if they are this run's, too.

        Args:
            record: of this run.
            done: how many those are.
        """
        self.begun = True
        for name in OF_THE_END:
            (self.folder / name).unlink(missing_ok=True)
        rows = self._metrics.read_text(encoding="utf-8").splitlines() if done and self._metrics.exists() else []
        kept = [f"{row}\n" for row in rows if (step := _step(row)) is not None and step <= done]
        self._metrics.write_text("".join(kept), encoding="utf-8")
        record.write(self.folder)
        self._reserve.write_bytes(bytes(RESERVE))

    def set_aside(self, resumed: Path | None) -> None:
        """Sets an earlier run's checkpoints aside, but those that this run goes on from, and says so."""
        if words := saved.set_aside(self.folder, resumed):
            print(words, flush=True)

    def add(self, step: int, row: dict[str, Any]) -> None:
        """Keeps the metrics of one step: all of them, or none where the disk is full."""
        size = self._metrics.stat().st_size
        try:
            with self._metrics.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **plain(row)}) + "\n")
        except OSError:
            os.truncate(self._metrics, size)
            raise

    def write(self, record: Record) -> str | None:
        """Writes the result. Returns why it could not, if so.

        An earlier run's is left alone where this one could not begin.
        """
        before = None if self.begun else read_result(self.folder)
        if before is not None and before["reason"] != UNFINISHED:
            return f"the result in {self.folder} is still the earlier run's"
        try:
            self._reserve.unlink(missing_ok=True)
            record.write(self.folder)
        except OSError as error:
            return f"the result cannot be written: {error}"
        return None

    def end(self, record: Record, timeline: Timeline) -> None:
        """Writes the result, and the bytes that are held over the milliseconds of one step, if they are known.

        A result that cannot be written is no success; what it would have said goes to stderr.
        """
        why_not = self.write(record)
        if why_not:
            print(f"{record.reason or record.status}\n{why_not}", file=sys.stderr)
            if record.status == "ok":
                record.status, record.reason = "failed", why_not
        elif timeline:
            lines = [f"{ms:.3f},{held / MIB:.3f},{phase}" for ms, held, phase in timeline]
            text = "\n".join(["ms,allocated_mib,phase", *lines]) + "\n"
            path = self.folder / "memory_timeline.csv"
            try:
                path.write_text(text, encoding="utf-8")
            except OSError:  # a picture less, and no half of one
                path.unlink(missing_ok=True)


def _step(row: str) -> int | None:
    """The number of a row of metrics; None of one that a killed process has left half written."""
    try:
        return json.loads(row)["step"]
    except (ValueError, TypeError, KeyError):
        return None
