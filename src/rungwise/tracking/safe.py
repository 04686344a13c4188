"""A tracker that costs a run nothing but itself."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from ..redact import redacted
from .tracker import Tracker

P, T = ParamSpec("P"), TypeVar("T")


class SafeTracker(Tracker):
    """Hands all on to a tracker until that fails: then it is told no more, a line says so, and the run goes on.

    Attributes:
        lost: that line; None while nothing has failed.
    """

    def __init__(self, name: str, build: Callable[[], Tracker]):
        """Begins the run that `build` begins.

        Args:
            name: of the tracker, for a person.
            build: makes it.
        """
        self.lost: str | None = None
        self._name, self._tracker, self._last = name, Tracker(), 0
        self._tracker = self._attempt(build) or self._tracker
        self.id, self.known = self._tracker.id, self._tracker.known

    def log(self, values: dict[str, Any], step: int) -> None:
        self._attempt(self._tracker.log, values, step=step)
        self._last = step

    def summary(self, values: dict[str, Any]) -> None:
        self._attempt(self._tracker.summary, values)

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        self._attempt(self._tracker.table, name, rows)

    def pictures(self, files: list[Path]) -> None:
        self._attempt(self._tracker.pictures, files)

    def about(self) -> dict[str, Any]:
        return self._attempt(self._tracker.about) or {}

    def finish(self, failed: bool) -> list[str]:
        where = self._attempt(self._tracker.finish, failed) or []
        return [*where, self.lost] if self.lost else where

    def _attempt(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        if self.lost:
            return None
        try:
            return part(*args, **kwargs)
        except Exception as error:
            # Each tracker fails in ways of its own: its service is gone, its disk is full.
            words = (str(error).strip() or "without a word").splitlines()[0]
            self.lost = redacted(
                f"{self._name} failed after step {self._last} ({type(error).__name__}: {words}) and is told no more"
            )
            print(self.lost, file=sys.stderr, flush=True)
            self._tracker.abandon()
            return None
