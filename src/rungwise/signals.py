"""Signals as exceptions that never tear a piece of bookkeeping in two, nor a run's last words."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Terminated(BaseException):
    """The process was asked to end (SIGTERM)."""


class Signals:
    """A context in which SIGINT raises `KeyboardInterrupt` and SIGTERM raises `Terminated`, but not inside `whole()`.

    Works in the main thread alone, as all handling of signals in Python.

    Args:
        at_once: called in a thread of its own at each SIGTERM, before the exception. Python raises nothing while the
            main thread is inside a call of a library, such as one that waits for another rank.
    """

    def __init__(self, at_once: Callable[[], None] | None = None) -> None:
        self._kinds = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
        self._at_once = at_once
        self._holding = self._over = False
        self._waiting: BaseException | None = None

    def __enter__(self) -> "Signals":
        self._previous = {number: signal.signal(number, self._handle) for number in self._kinds}
        if self._at_once is not None:
            self._sender, receiver = socket.socketpair()
            self._sender.setblocking(False)
            self._previous_sender = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(receiver, self._at_once), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._at_once is not None:
            signal.set_wakeup_fd(self._previous_sender)
            self._sender.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        error = self._kinds[signal.Signals(number)]()
        if self._over:
            return
        if not self._holding:
            raise error
        self._waiting = error

    @staticmethod
    def _watch(receiver: socket.socket, at_once: Callable[[], None]) -> None:
        """Python's own handler writes the number of each signal, whatever the main thread does."""
        with receiver:
            while number := receiver.recv(1):
                if number[0] == signal.SIGTERM:
                    at_once()

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

    def end(self) -> None:
        """Lets no signal raise anything from here on: what ends by itself needs its time to say why."""
        self._over = True

    def interruptible(self) -> None:
        """Gives Ctrl-C back to who had it, where all is written and what is left may take long."""
        signal.signal(signal.SIGINT, self._previous[signal.SIGINT])
