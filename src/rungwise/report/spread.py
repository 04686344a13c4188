"""When two times are called different, and when one is not to be trusted: one rule for claims, tables and pictures."""

from dataclasses import dataclass, field, replace
from typing import Any

from .comparable import why_not_comparable

# What shares its machine with nothing else stays well within these: p90 over p10, and mean over median.
WIDE = 2.0
SKEWED = 0.10


@dataclass(frozen=True)
class Spread:
    """A step time in ms with the range that it moved in, why it was disturbed, if so, and where it was measured."""

    median: float
    low: float
    high: float
    disturbed: str | None = None
    environment: dict[str, Any] = field(default_factory=dict, compare=False)

    def __mul__(self, factor: float) -> "Spread":
        return replace(self, median=self.median * factor, low=self.low * factor, high=self.high * factor)

    def undecided(self, other: "Spread") -> str | None:
        """Why neither of two times is called larger than the other, or None where one is."""
        if why := why_not_comparable(other.environment, self.environment):
            return why
        if self.disturbed or other.disturbed:
            return f"a rung was disturbed ({self.disturbed or other.disturbed})"
        apart = self.low > other.high or self.high < other.low
        return None if apart else "the spreads overlap"


def disturbance(median: float, low: float, high: float, mean: float | None = None) -> str | None:
    """Why steps of one run are too unequal for their time to be compared, or None. All in the same unit.

    Args:
        median: of the steps.
        low: their 10th percentile.
        high: their 90th percentile.
        mean: of the steps, where it is known. It tells of few long steps, which percentiles do not see.
    """
    if high > WIDE * low:
        return f"p90 is {high / low:.1f} times p10"
    if mean is not None and abs(mean / median - 1) > SKEWED:
        return f"the mean is {abs(mean / median - 1):.0%} {'over' if mean > median else 'under'} the median"
    return None
