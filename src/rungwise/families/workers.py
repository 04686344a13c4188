"""A function on many arguments in a few processes; one that ends its process or takes too long costs only itself."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

# Seconds that an idle process has to leave.
LEAVING = 5


@dataclass(frozen=True)
class Lost:
    """Why there is no result."""

    reason: str


@dataclass
class _Worker:
    """A process with its end of the pipe, what it is busy with, and until when."""

    process: Any
    pipe: Connection
    argument: Any = None
    deadline: float = field(default=float("inf"))

    @property
    def busy(self) -> bool:
        return self.deadline < float("inf")

    def end(self) -> None:
        """At once if it is busy; an idle one leaves by itself when nobody is there to ask, or is made to."""
        self.pipe.close()
        if not self.busy:
            self.process.join(LEAVING)
        # What it has run may have left threads behind that never end.
        self.process.kill()
        self.process.join()


def each(
    function: Callable[[Any], Any],
    arguments: Iterable[Any],
    processes: int,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Any, Any]]:
    """Yields each argument and its result as they come, a `Lost` where there is none.

    Args:
        function: of a module that a new process can import. What it raises ends its process, and what that prints
            goes nowhere: only its results count.
        arguments: can be pickled, as the results.
        processes: how many at a time. Each is given many arguments, one after another.
        seconds: that one argument may take, by `clock`.
        clock: the time in seconds.
    """
    waiting = iter(arguments)
    workers: list[_Worker] = []
    try:
        while True:
            for argument in _first(waiting, processes - sum(w.busy for w in workers)):
                idle = next((w for w in workers if not w.busy), None)
                if idle is None:
                    workers.append(idle := _start(function))
                idle.argument, idle.deadline = argument, clock() + seconds
                idle.pipe.send(argument)
            busy = [worker for worker in workers if worker.busy]
            if not busy:
                return
            soonest = min(worker.deadline for worker in busy)
            ready = wait([worker.pipe for worker in busy], timeout=max(0.0, soonest - clock()))
            for worker in busy:
                if worker.pipe in ready or clock() >= worker.deadline:
                    result = _result(worker, seconds)
                    if isinstance(result, Lost):
                        worker.end()
                        workers.remove(worker)
                    worker.deadline = float("inf")
                    yield worker.argument, result
    finally:
        for worker in workers:
            worker.end()


def _first(waiting: Iterator[Any], count: int) -> Iterator[Any]:
    for _, argument in zip(range(count), waiting, strict=False):
        yield argument


def _start(function: Callable[[Any], Any]) -> _Worker:
    # A new interpreter: what this process has imported and opened is not the worker's.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(function, theirs))
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _result(worker: _Worker, seconds: float) -> Any:
    if not worker.pipe.poll():
        return Lost(f"not finished after {seconds:.0f} s")
    try:
        return worker.pipe.recv()
    except EOFError:
        worker.process.join()
        return Lost(f"its process ended with exit code {worker.process.exitcode}")


def _serve(function: Callable[[Any], Any], pipe: Connection) -> None:
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    while True:
        try:
            argument = pipe.recv()
        except EOFError:
            # Whoever asked has ended.
            return
        pipe.send(function(argument))
