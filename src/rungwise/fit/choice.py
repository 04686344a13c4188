"""Looks for the first candidate that fits, with as few forecasts as answer that."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..errors import SettingsError
from ..forecast import Forecast, NoForecast
from .candidates import Candidate, Level

# What is held between two steps, however small a micro-batch is and whatever is computed again.
ALWAYS_HELD = ("parameters", "gradients", "optimizer_state", "buffers")


@dataclass(frozen=True)
class Row:
    """A candidate and its forecast, or why there is none."""

    candidate: Candidate
    forecast: Forecast | None
    reason: str | None
    free: float

    @property
    def fits(self) -> bool:
        return self.forecast is not None and self.forecast.peak_mib <= self.free


@dataclass
class Choice:
    """What was forecast, in order of the candidates, and the first of them that fits.

    Args:
        candidate: makes one of a level and a number of micro-batches.
        foresee: its forecast; raises NoForecast.
        counts: the numbers of micro-batches to try, the fewest first.
        free: the MiB that there are.
    """

    candidate: Callable[[Level, int], Candidate]
    foresee: Callable[[Candidate], Forecast]
    counts: Sequence[int]
    free: float
    rows: list[Row] = field(default_factory=list)
    chosen: Row | None = None

    def look(self, levels: Sequence[Level], further: bool = False) -> None:
        """Goes through the levels until one fits; or `further`, for fewer micro-batches at more FLOPs, through all
        that are the same training.

        Micro-batches that are smaller take less, from two on: with more than one, gradients are there while the next
        one runs forward. So a level is looked through by halves. None of it fits if what is always held does not: nor
        does then any other of the same optimizer and processes.
        """
        hopeless, found = set(), None
        for level in levels:
            kind = (level.changes, level.launch.sharded)
            if kind in hopeless or (self.chosen and (not further or level.changes)):
                continue
            fewer = [count for count in self.counts if self.chosen is None or count < found.candidate.accumulation]
            if not fewer:
                break
            found = self._first(level, fewer) or found
            if found is None and any(self._too_large(row) for row in self._of(level)):
                hopeless.add(kind)
            self.chosen = self.chosen or found
        self._sort(levels)

    def look_for_least(self, levels: Sequence[Level]) -> None:
        """Forecasts what may take least where nothing fits: of the levels that are like the last, the smallest."""
        last = levels[-1]
        for level in levels:
            alike = (level.changes, level.launch.sharded) == (last.changes, last.launch.sharded)
            if alike and self.counts[-1] not in [row.candidate.accumulation for row in self._of(level)]:
                self._add(level, self.counts[-1])
        self._sort(levels)

    def promising(self) -> list[Row]:
        """Of those that fit, in order, each that has fewer micro-batches than all that add fewer FLOPs."""
        found: list[Row] = []
        for row in self.rows:
            if row.fits and all(row.candidate.accumulation < other.candidate.accumulation for other in found):
                found.append(row)
        return found

    def least(self) -> Row | None:
        """The one with the lowest peak."""
        known = [row for row in self.rows if row.forecast is not None]
        return min(known, key=lambda row: row.forecast.peak_mib, default=None)

    def see(self, candidate: Candidate) -> Row:
        """Forecasts a candidate."""
        try:
            return Row(candidate, self.foresee(candidate), None, self.free)
        except NoForecast as error:
            return Row(candidate, None, str(error), self.free)

    def _first(self, level: Level, counts: Sequence[int]) -> Row | None:
        """Of a level's candidates that fit the one with the fewest micro-batches."""
        fewest, *more = counts
        row = self._add(level, fewest)
        if row is None or row.fits or row.forecast is None or self._too_large(row) or not more:
            return row if row is not None and row.fits else None
        last = self._add(level, more[-1])
        if last is None or not last.fits:
            return None
        seen = {more[-1]: last}

        def fits(count: int) -> bool:
            if count not in seen:
                seen[count] = self._add(level, count)
            return seen[count] is not None and seen[count].fits

        return seen[more[bisect_left(more, True, key=fits)]]

    def _add(self, level: Level, count: int) -> Row | None:
        try:
            row = self.see(self.candidate(level, count))
        except SettingsError:
            return None
        self.rows.append(row)
        return row

    def _sort(self, levels: Sequence[Level]) -> None:
        order = {id(level): place for place, level in enumerate(levels)}
        self.rows.sort(key=lambda row: (order[id(row.candidate.level)], row.candidate.accumulation))

    def _of(self, level: Level) -> list[Row]:
        return [row for row in self.rows if row.candidate.level is level]

    def _too_large(self, row: Row) -> bool:
        return row.forecast is not None and sum(row.forecast.owners[name] for name in ALWAYS_HELD) > self.free
