"""The processes of the engines: each is started anew for one rung, and holds still while another has its turn."""

import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from .. import imports

# Seconds that a process has for what is not training once it was told that there are no turns left.
ENDING = 300
# And to leave, after that.
LEAVING = 5


class Failed(RuntimeError):
    """An engine has ended without its figures."""


class Player:
    """One engine in a process of its own, on one rung. What it prints goes into `log.txt` of its folder."""

    def __init__(self, engine: str, flags: Sequence[str], folder: Path):
        """Starts the process.

        Args:
            engine: a key of `engines.ENGINES`.
            flags: of `ablate.py`, without those that name the run and its folder.
            folder: of the run.
        """
        self.engine = engine
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "log.txt"
        # A new interpreter: what this process has imported and opened is not the engine's.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (engine, [*flags, "--output_dir", str(folder)], str(self._log), theirs)
        self._process = context.Process(target=_play, args=arguments)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Waits until the untimed steps are done.

        Raises:
            Failed: they will never be.
        """
        self._receive()

    def turn(self, steps: int) -> float:
        """Has it train so many steps; returns the seconds that they took.

        Raises:
            Failed: it did not come to their end.
        """
        self._pipe.send(steps)
        return self._receive()

    def release(self) -> None:
        """Tells it that there are no turns left."""
        self._pipe.send(0)

    def figures(self) -> dict[str, Any]:
        """Waits for its end; returns what it knows beside its speed.

        Raises:
            Failed: it ended without.
        """
        return self._receive(ENDING)

    def end(self) -> None:
        """Ends the process, whatever it does. One that waits for its turn, or is done, leaves by itself."""
        self._pipe.close()
        self._process.join(LEAVING)
        self._process.kill()
        self._process.join()

    def _receive(self, seconds: float | None = None) -> Any:
        try:
            if not self._pipe.poll(seconds):
                raise Failed(f"not finished {seconds:.0f} s after its last step")
            word = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
            said = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
            raise Failed(f"exit code {self._process.exitcode}: {said}") from None
        return word


def _play(engine: str, flags: list[str], log: str, pipe: Connection) -> None:
    """The process: trains, in the turns that come through the pipe, and sends its figures."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # With PyTorch and Transformers, which the process that started this one is without.
    with imports.kept():
        from .engines import ENGINES
        from .turns import Turns

    pipe.send(
        ENGINES[engine](flags, lambda device, untimed, meter: Turns(device, untimed, pipe.recv, pipe.send, meter))
    )
