"""The engines of one rung take turns: what is run, in which order, and what comes out of it."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .players import Failed, Player

# Seconds before a turn: a thread that waits for its next product keeps a core busy for some milliseconds more.
PAUSE = 0.1
CACHE = "TORCHINDUCTOR_CACHE_DIR"


@dataclass
class Lap:
    """How one engine came out on one rung.

    Attributes:
        engine: a key of `engines.ENGINES`.
        seconds: of each round's steps.
        peak_mib: the allocator's peak over building the model and one whole step.
        loss: of the weights after the last step.
        threads: that it computed with.
        kernels: whose kernels computed its products, by precision, where that was chosen.
        failed: why it has no figures.
    """

    engine: str
    seconds: list[float] = field(default_factory=list)
    peak_mib: float | None = None
    loss: float | None = None
    threads: int | None = None
    kernels: dict[str, str] = field(default_factory=dict)
    failed: str | None = None


def race(
    entries: dict[str, Sequence[str]],
    folder: Path,
    rounds: int,
    steps: int,
    start: Callable[[str, Sequence[str], Path], Any] = Player,
) -> list[Lap]:
    """Trains by each engine in turns, round after round, so that a drifting machine favours none.

    Args:
        entries: the flags of `ablate.py` by engine. The first engine is started alone, since `ablate.py` measures the
            machine before it trains; the others then start together.
        folder: for their runs.
        rounds: how often each has a turn. The one that begins is another each time.
        steps: optimizer steps a turn.
        start: makes the player of an engine, with its flags and its folder.
    """
    playing = _Playing({name: Lap(name) for name in entries})
    names = list(entries)
    with _compiler_cache():
        try:
            for together in (names[:1], names[1:]):
                for name in together:
                    playing.players[name] = start(name, entries[name], folder / name)
                for name in together:
                    playing.ask(name, lambda player: player.ready())
            for number in range(rounds):
                first = number % len(names)
                for name in [*names[first:], *names[:first]]:
                    time.sleep(PAUSE)
                    if (seconds := playing.ask(name, lambda player: player.turn(steps))) is not None:
                        playing.laps[name].seconds.append(seconds)
            for name in names:
                playing.ask(name, lambda player: player.release())
            for name in names:
                for figure, value in (playing.ask(name, lambda player: player.figures()) or {}).items():
                    setattr(playing.laps[name], figure, value)
        finally:
            for player in playing.players.values():
                player.end()
    return list(playing.laps.values())


def joined(heats: Sequence[Sequence[Lap]]) -> list[Lap]:
    """The laps of several heats, whose processes are others, as one lap an engine.

    Their rounds follow one another, the peak is the largest, the rest is the first one's. An engine that failed in one
    heat has failed.
    """
    laps = []
    for each in zip(*heats, strict=True):
        failed = next((lap.failed for lap in each if lap.failed), None)
        seconds = [] if failed else [one for lap in each for one in lap.seconds]
        peak = None if failed else max(lap.peak_mib for lap in each)
        laps.append(replace(each[0], seconds=seconds, peak_mib=peak, failed=failed))
    return laps


@dataclass
class _Playing:
    """The players that are left, and how each of all came out."""

    laps: dict[str, Lap]
    players: dict[str, Any] = field(default_factory=dict)

    def ask(self, name: str, action: Callable[[Any], Any]) -> Any:
        """What a player says. None of one that fails with it, which is out then, or has failed before."""
        if name not in self.players:
            return None
        try:
            return action(self.players[name])
        except Failed as error:
            self.laps[name].failed = str(error)
            self.players.pop(name).end()
            return None


@contextmanager
def _compiler_cache() -> Iterator[None]:
    """Has the processes that start inside share what they compile, and no more: no time of a compiler is a figure."""
    # Inductor writes its default into the environment, where this process has imported it.
    before = {CACHE: os.environ[CACHE]} if CACHE in os.environ else {}
    with tempfile.TemporaryDirectory(prefix="rungwise-bench-", ignore_cleanup_errors=True) as folder:
        os.environ[CACHE] = folder
        try:
            yield
        finally:
            os.environ.pop(CACHE)
            os.environ.update(before)
