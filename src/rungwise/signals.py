"""Signals as exceptions that never tear a piece of bookkeeping in two."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """The process was asked to end (SIGTERM)."""


class Signals:
    """A context in which SIGINT raises `KeyboardInterrupt` and SIGTERM raises `Terminated`, but not inside `whole()`.

    Works in the main thread alone, as all handling of signals in Python.
    """

    def __init__(self) -> None:
        self._kinds = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
        self._holding = False
        self._waiting: BaseException | None = None

    def __enter__(self) -> "Signals":
        self._previous = {number: signal.signal(number, self._handle) for number in self._kinds}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        error = self._kinds[signal.Signals(number)]()
        if not self._holding:
            raise error
        self._waiting = error

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Around work that is done as a whole or not at all: a signal waits for its end and is raised then."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
            waiting, self._waiting = self._waiting, None
            if waiting is not None:
                raise waiting
