"""From laps to ratios: how the speeds of two engines compare, with the spread over rounds."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..report.spread import disturbance
from .race import Lap

# As they are called where a person reads of them.
ENGINES = {
    "ours": "ablate.py",
    "bare": "the bare loop",
    "trainer": "Trainer",
    "trainer_default": "Trainer by its defaults",
}


@dataclass(frozen=True)
class Ratio:
    """One speed in times another: the median of the rounds, their 10th and 90th percentile.

    `disturbed` says why it is not to be trusted, and is None where it is.
    """

    median: float
    low: float
    high: float
    disturbed: str | None = None

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f}–{self.high:.3f})"


@dataclass(frozen=True)
class Rung:
    """One rung with the laps of its engines.

    Attributes:
        name: as in its ladder.
        flags: of `ablate.py`, as they are typed.
        tokens: with a loss, of one round.
        laps: by engine.
    """

    name: str
    flags: str
    tokens: int
    laps: dict[str, Lap]

    def lap(self, engine: str) -> Lap | None:
        """What an engine did here, or None if it has no figures."""
        lap = self.laps.get(engine)
        return lap if lap and not lap.failed else None

    def tokens_per_second(self, engine: str) -> float | None:
        """Those of the median round."""
        lap = self.lap(engine)
        return self.tokens / statistics.median(lap.seconds) if lap and lap.seconds else None

    def speed(self, engine: str, other: str) -> Ratio | None:
        """An engine's tokens a second in times another's, round by round. None where one of them has no speed."""
        a, b = self.lap(engine), self.lap(other)
        if not (a and b and a.seconds and b.seconds):
            return None
        times = [y / x for x, y in zip(a.seconds, b.seconds, strict=True)]
        low, high = _tenths(times)
        return Ratio(statistics.median(times), low, high, _why_not_compared(a, b))

    def as_dict(self) -> dict[str, Any]:
        """As it stands in `bench.json`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Rung":
        """As `as_dict` has it."""
        return cls(**{**content, "laps": {name: Lap(**lap) for name, lap in content["laps"].items()}})


def _why_not_compared(a: Lap, b: Lap) -> str | None:
    """Why two engines' times are not to be compared: other threads, or rounds that are too unequal, by steps' rule."""
    if a.threads != b.threads:
        return f"{ENGINES[a.engine]} has {a.threads} threads, {ENGINES[b.engine]} {b.threads}"
    for lap in (a, b):
        low, high = _tenths(lap.seconds)
        if why := disturbance(statistics.median(lap.seconds), low, high, statistics.fmean(lap.seconds)):
            return f"of the rounds of {ENGINES[lap.engine]} {why}"
    return None


def _tenths(values: Sequence[float]) -> tuple[float, float]:
    """The 10th and the 90th percentile."""
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return tenths[0], tenths[-1]
