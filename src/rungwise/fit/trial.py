"""Runs candidates in fresh processes, as a ladder its rungs: to measure what was forecast, or who is fastest."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..ladder.ladder import Ladder
from ..report.rung_result import OWNERS, RungResult, load
from ..report.table import step_columns
from ..settings.fields import FIELDS
from .choice import Row

# The fewest steps that have a memory figure, and that have a speed.
MEMORY_STEPS = {"untimed_steps": 2, "max_steps": 3}
TIMED_STEPS = {"max_steps": FIELDS["untimed_steps"].default + 10}
ROUNDS = 2


@dataclass(frozen=True)
class Measured:
    """A peak or an owner of it, in MiB: what was forecast, what was measured, and the error in per cent."""

    name: str
    forecast: float
    measured: float

    @property
    def error(self) -> float | None:
        if self.forecast == self.measured:
            return 0.0
        return 100 * (self.forecast / self.measured - 1) if self.measured else None


def run(rows: Sequence[Row], folder: Path, steps: dict[str, int], rounds: int = 1) -> Iterator[dict[str, Any]]:
    """Runs candidates in turns. Yields each run's result.

    Args:
        rows: the candidates.
        folder: gets a folder for each; what an earlier call left there goes.
        steps: flags of `ablate.py` that say how many.
        rounds: how often each is run.

    Raises:
        SettingsError: a candidate cannot be run as it is.
        SystemExit: a signal has ended it.
    """
    rungs = [row.candidate.trial(report_to="none", **steps) for row in rows]
    with Ladder("fit", rungs, folder, "fit", fresh=True) as ladder:
        for _, result in ladder.run(rounds):
            yield result
        if ladder.exit_code:
            raise SystemExit(ladder.exit_code)


def compare(row: Row, result: dict[str, Any]) -> list[Measured]:
    """A candidate's forecast beside the memory of its run."""
    memory, owners = result["memory"], row.forecast.owners
    pairs = {"peak": row.forecast.peak_mib, **{owner: owners[owner] for owner in OWNERS}}
    names = {"peak": "peak_allocated_mib", **{owner: f"{owner}_mib" for owner in OWNERS}}
    return [Measured(name, size, memory[names[name]]) for name, size in pairs.items()]


@dataclass(frozen=True)
class Fastest:
    """The run with the shortest median step, and those that are not told apart from it, with the reason."""

    rung: RungResult
    undecided: dict[str, str]


def fastest(folder: Path) -> Fastest | None:
    """Who is fastest of those that were run in a folder; None where none has a speed."""
    timed = [rung for rung in load(folder) if rung.step_ms is not None]
    if not timed:
        return None
    first = min(timed, key=lambda rung: rung.step_ms.median)
    others = {rung.name: rung.step_ms.undecided(first.step_ms) for rung in timed if rung is not first}
    return Fastest(first, {name: why for name, why in others.items() if why})


def figures(folder: Path, found: Fastest | None) -> dict[str, Any]:
    """The times of those that were run, as they stand in `fit.json`."""
    rows = {
        rung.name: {"status": rung.status, **step_columns(rung.step_ms)}
        | {"disturbed": rung.step_ms and rung.step_ms.disturbed}
        for rung in load(folder)
    }
    return {"name": found.rung.name if found else None, "undecided": found.undecided if found else {}, "runs": rows}
