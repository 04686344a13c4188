"""The files of one run: `result.json`, `metrics.jsonl`, the memory of one step over time. For the main process."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..metrics.memory import MIB
from ..result_file import UNFINISHED, plain, read_result
from . import saved_checkpoints as saved
from .record import Record


class Files:
    """What a run writes into its folder. What an earlier one left there stays until this one has `begin`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.begun = False

    def begin(self, record: Record, done: int = 0) -> None:
        """Takes over the folder. Of the steps of an earlier run the first ones stay, if they are this run's, too.

        Args:
            record: of this run.
            done: how many those are.
        """
        self.begun = True
        metrics = self.folder / "metrics.jsonl"
        rows = metrics.read_text(encoding="utf-8").splitlines(keepends=True) if done and metrics.exists() else []
        metrics.write_text("".join(row for row in rows if json.loads(row)["step"] <= done), encoding="utf-8")
        record.write(self.folder)

    def set_aside(self, resumed: Path | None) -> None:
        """Sets an earlier run's checkpoints aside, but those that this run goes on from, and says so."""
        if words := saved.set_aside(self.folder, resumed):
            print(words, flush=True)

    def add(self, step: int, row: dict[str, Any]) -> None:
        """Keeps the metrics of one step."""
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **plain(row)}) + "\n")

    def write(self, record: Record) -> bool:
        """Writes the result, but not over an earlier run's where this one could not begin. Returns whether it did."""
        before = None if self.begun else read_result(self.folder)
        if before is not None and before["reason"] != UNFINISHED:
            return False
        record.write(self.folder)
        return True

    def end(self, record: Record, timeline: Sequence[tuple[float, int]]) -> None:
        """Writes the result, and the bytes that are held over the milliseconds of one step, if they are known.

        The result of an earlier run is left alone by one that could not begin: its reason goes to stderr.
        """
        if not self.write(record):
            print(f"{record.reason}\nthe result in {self.folder} is still the earlier run's", file=sys.stderr)
        elif timeline:
            lines = [f"{ms:.3f},{held / MIB:.3f}" for ms, held in timeline]
            text = "\n".join(["ms,allocated_mib", *lines]) + "\n"
            (self.folder / "memory_timeline.csv").write_text(text, encoding="utf-8")
