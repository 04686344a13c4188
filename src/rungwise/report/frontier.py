"""Which rungs of a ladder are worth a look, where one has memory and time to weigh."""

from .rung_result import RungResult


def frontier(rungs: list[RungResult]) -> list[RungResult]:
    """The Pareto frontier of peak memory and step time, from the least memory on.

    A rung is on it if its step is shorter, by more than the spreads, than that of every rung on it with less memory: a
    speed that cannot be told apart is no reason to take more. Of what was disturbed, or not timed, nothing is claimed.
    """
    found: list[RungResult] = []
    timed = [rung for rung in rungs if rung.peak is not None and rung.step_ms and not rung.step_ms.disturbed]
    for rung in sorted(timed, key=lambda rung: (rung.peak, rung.step_ms.median)):
        if all(rung.step_ms.undecided(less.step_ms) is None and _faster(rung, less) for less in found):
            found.append(rung)
    return found


def _faster(a: RungResult, b: RungResult) -> bool:
    return a.step_ms.median < b.step_ms.median
