"""The picture of a ladder: peak memory by owner beside step time, a pair of bars a rung, the first rung on top."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .owner_bars import explain_owners, owner_bar
from .rung_result import OWNERS, RungResult
from .style import GREY, WIDTH, behind, change, make_room, name_bars, number, scale_bars
from .table import longer


def memory_and_speed(rungs: list[RungResult]) -> Figure | None:
    """Each rung's figures, and what they save against the first rung; None where no rung ran to its end.

    A time that is not told apart from the first rung's is marked ≈.
    """
    if not any(rung.ok for rung in rungs):
        return None
    figure = Figure(figsize=(WIDTH, 1.7 + 0.46 * len(rungs)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(5, 4))
    for y, rung in enumerate(rungs):
        if rung.peak is not None:
            _peak(left, y, rung, rungs[0])
        else:
            behind(left, 0, y, "not measured" if rung.ok else rung.status.replace("_", " "), style="italic")
        if rung.step_ms is not None:
            _time(right, y, rung, rungs[0])
        elif rung.ok:
            behind(right, 0, y, "not claimed", style="italic")
    name_bars(left, [rung.name for rung in rungs])
    left.set_xlabel("peak allocated memory (MiB)")
    right.set_xlabel("step time (ms), p10 to p90")
    for axes in (left, right):
        scale_bars(axes)
    explain_owners(figure)
    make_room(figure)
    return figure


def _peak(axes: Axes, y: float, rung: RungResult, first: RungResult) -> None:
    """A rung's peak by owner, and how much less it is than the first one's."""
    end = owner_bar(axes, y, {owner: rung.memory(f"{owner}_mib") for owner in OWNERS})
    words = [number(rung.peak)]
    if rung is not first and first.peak:
        words.append(change(rung.peak / first.peak - 1))
    behind(axes, end, y, "  ".join(words))


def _time(axes: Axes, y: float, rung: RungResult, first: RungResult) -> None:
    """A rung's step time with its spread, and how much shorter it is than the first one's."""
    time = rung.step_ms
    error = [[max(0, time.median - time.low)], [max(0, time.high - time.median)]]
    axes.barh(y, time.median, color=GREY, height=0.7, xerr=error, ecolor="black", capsize=3)
    words = [number(time.median)]
    if rung is not first and first.step_ms is not None:
        told_apart = longer(first.step_ms, time)
        words.append("≈" if told_apart is None else change(told_apart))
    if time.disturbed:
        words.append("disturbed")
    behind(axes, max(time.median, time.high), y, "  ".join(words))
