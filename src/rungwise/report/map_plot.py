"""The map of a ladder: each rung's step time against its peak memory, the way through them, the Pareto frontier."""

import itertools
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from .frontier import frontier
from .names_on_map import name_points
from .rung_result import RungResult
from .style import COLOURS, GREY, PLAIN, WIDTH, wrapped

# Of the ends of an axis over what lies in it, at least; ticks of an axis whose ends are further apart than the second.
ROOM, WIDE = 1.3, 6.0
ON = {"marker": "o", "markersize": 9, "color": COLOURS[0], "linestyle": ""}
OFF = {**ON, "markerfacecolor": "white", "markeredgewidth": 1.6}
DISTURBED = {**ON, "marker": "X", "color": "black"}
WHISKER = {"color": "black", "linewidth": 0.8, "marker": "|", "markersize": 5}
WAY = {"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2, "shrinkA": 7, "shrinkB": 7}
EDGE = {"where": "post", "color": COLOURS[0], "linewidth": 5, "alpha": 0.25, "zorder": 1}


def rung_map(rungs: list[RungResult]) -> Figure | None:
    """The rungs that have a peak and a step time, numbered in the ladder's order; None where fewer than two have."""
    shown = [(n, rung) for n, rung in enumerate(rungs, 1) if rung.peak is not None and rung.step_ms is not None]
    if len(shown) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 4.8 + 0.14 * len(shown)), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel("step time (ms, logarithmic)")
    axes.set_ylabel("peak allocated memory (MiB, logarithmic)")
    times = [rung.step_ms for _, rung in shown]
    _scale(axes, "x", [end for time in times for end in (time.low, time.high)])
    _scale(axes, "y", [rung.peak for _, rung in shown])
    points = [(time.median, rung.peak) for time, (_, rung) in zip(times, shown, strict=True)]
    best = frontier([rung for _, rung in shown])
    looks = [DISTURBED if rung.step_ms.disturbed else ON if rung in best else OFF for _, rung in shown]
    for point, time, look in zip(points, times, looks, strict=True):
        axes.plot([time.low, time.high], [point[1]] * 2, **WHISKER)
        axes.plot(*point, zorder=3, **look)
    for before, after in itertools.pairwise(points):
        axes.annotate("", after, before, arrowprops=WAY).set_in_layout(False)
    corners = sorted((rung.step_ms.median, rung.peak) for rung in best)
    if len(corners) > 1:
        axes.step(*zip(*corners, strict=True), **EDGE)
    _explain(figure, looks)
    whiskers = [((time.low, peak), (time.high, peak)) for time, (_, peak) in zip(times, points, strict=True)]
    names = [f"{n}  {wrapped(rung.name, 24)}" for n, rung in shown]
    name_points(axes, points, names, [*whiskers, *itertools.pairwise(points)])
    return figure


def _explain(figure: Figure, looks: list[dict[str, Any]]) -> None:
    """The legend, of what is there."""
    words = {
        "Pareto frontier: lower left is better": ON,
        "other rungs": OFF,
        "disturbed: no speed is claimed": DISTURBED,
        "p10 to p90": WHISKER,
    }
    handles = [Line2D([], [], **look, label=text) for text, look in words.items() if look in (*looks, WHISKER)]
    figure.legend(handles=handles, loc="outside upper left", ncols=2, columnspacing=1.5)


def _scale(axes: Axes, name: str, values: list[float]) -> None:
    """A logarithmic axis, on which the same share is the same way, with room around its values and round ticks."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.15, ROOM)
    low, high = low / room, high * room
    if high / low < WIDE:
        ticks = MaxNLocator(6).tick_values(low, high)
    else:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
        ticks = [factor * 10**power for power in powers for factor in (1, 2, 5)]
    axis = axes.xaxis if name == "x" else axes.yaxis
    axes.set(**{f"{name}scale": "log"})
    axis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(PLAIN)
    axes.set(**{f"{name}lim": (low, high)})
    axes.grid(axis=name)
