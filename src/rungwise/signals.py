"""Signals as exceptions, for runs and ladders: they tear no piece of bookkeeping in two, nor a run's last words."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import Any


class Terminated(BaseException):
    """The process was asked to end (SIGTERM), or its terminal was closed (SIGHUP)."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__(signal.Signals(number).name)
        self.number = number


def exit_code(error: KeyboardInterrupt | Terminated) -> int:
    """What a shell says of a process that such a signal ended: 128 and the signal's number."""
    return 128 + (error.number if isinstance(error, Terminated) else signal.SIGINT)


class Signals:
    """A context in which SIGINT raises `KeyboardInterrupt` and SIGTERM `Terminated`, but not inside `deferred()`.

    Works in the main thread alone, as all handling of signals in Python.

    Args:
        at_once: called in a thread of its own at each SIGTERM, before the exception. Python raises nothing while the
            main thread is inside a call of a library, such as one that waits for another rank.
        hang_up: whether SIGHUP raises `Terminated`, too; not where it is ignored, as under `nohup`.
    """

    def __init__(self, at_once: Callable[[], None] | None = None, hang_up: bool = False) -> None:
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if hang_up and hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        self._at_once = at_once
        self._previous: dict[int, Any] = {}
        self._around: Signals | None = None
        self._holding = self._over = False
        self._waiting: BaseException | None = None

    # Who handles signals now, if anyone of this kind.
    _current: "Signals | None" = None

    def __enter__(self) -> "Signals":
        self._around, Signals._current = Signals._current, self
        if self._at_once is not None:
            self._sender, receiver = socket.socketpair()
            self._sender.setblocking(False)
            self._previous_sender = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(receiver, self._at_once), daemon=True).start()
        for number in self._numbers:  # last, since from here on they raise
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._at_once is not None:
            signal.set_wakeup_fd(self._previous_sender)
            self._sender.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        Signals._current = self._around

    def _handle(self, number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
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
    def deferred(self) -> Iterator[None]:
        """Around work that is done as a whole or not at all: a signal waits for its end and is raised then."""
        around, self._holding = self._holding, True
        try:
            yield
        finally:
            self._holding = around
            if not around and self._waiting is not None:
                waiting, self._waiting = self._waiting, None
                raise waiting

    def end(self) -> None:
        """Lets no signal raise anything from here on: what ends by itself needs its time to say why."""
        self._over = True

    def interruptible(self) -> None:
        """Gives Ctrl-C back to who had it, where all is written and what is left may take long."""
        signal.signal(signal.SIGINT, self._previous[signal.SIGINT])


def deferred() -> AbstractContextManager[None]:
    """`Signals.deferred` of who handles signals now, for those who do not know of it; else nothing is deferred."""
    return Signals._current.deferred() if Signals._current else nullcontext()
