"""Memory over one optimizer step: what is held in its forward and backward passes and as the optimizer steps."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .rung_result import RungResult
from .style import GREY, PHASE_LOOKS, PLAIN, SMALL, WIDTH, filled, number, wrapped
from .timelines import Timeline

MOST_COLUMNS = 3
NOT_KNOWN = (GREY, "")
PHASE_WORDS = {"forward": "forward", "backward": "backward", "optimizer": "clipping and the optimizer's step"}


def timelines(rungs: list[RungResult]) -> Figure | None:
    """A panel for each rung, all on the same axes; None where no rung's step is known.

    Each step is stretched to the same length, since the meter slows some more than others.
    """
    shown = [rung for rung in rungs if len(rung.timeline) > 1 and rung.ok]
    if not shown:
        return None
    columns = min(MOST_COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    figure = Figure(figsize=(WIDTH, 1.2 + 1.9 * rows + (columns < MOST_COLUMNS)), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    highest = [max(mib for _, mib, _ in rung.timeline) for rung in shown]
    for n, axes in enumerate(grid.flat):
        if n >= len(shown):
            axes.set_visible(False)
            continue
        end = shown[n].timeline[-1][0]
        axes.grid(axis="y")
        fill(axes, [(100 * ms / end, mib, phase) for ms, mib, phase in shown[n].timeline])
        axes.axhline(highest[0], color="black", linestyle=":", linewidth=1)
        name = wrapped(shown[n].name, 24)
        axes.set_title(f"{name}\n{number(highest[n])} MiB", fontsize=SMALL, loc="left")
        # The last panel of a column has the ticks, also where there is none in the row below.
        axes.tick_params(labelbottom=n + columns >= len(shown))
    scale(grid[0][0], max(highest))
    grid[0][0].set_xlim(0, 100)
    figure.supxlabel("part of one optimizer step (%)", fontsize=11)
    figure.supylabel("allocated memory (MiB)", fontsize=11)
    dots = Line2D([], [], color="black", linestyle=":", linewidth=1)
    handles = {**phases_of(shown), f"highest in {wrapped(shown[0].name, lines=1)}": dots}
    figure.legend(handles.values(), handles, loc="outside upper left", ncols=2, columnspacing=1.5)
    return figure


def fill(axes: Axes, points: Timeline) -> None:
    """Fills what is held over time, each phase in its look, from where it begins to where the next one does."""
    begins = [n for n in range(len(points)) if n == 0 or points[n][2] != points[n - 1][2]]
    for begin, end in zip(begins, [*begins[1:], len(points) - 1], strict=True):
        part = points[begin : end + 1]
        times, held = [x for x, _, _ in part], [mib for _, mib, _ in part]
        look = filled(PHASE_LOOKS.get(points[begin][2], NOT_KNOWN))
        axes.fill_between(times, held, step="post", **{**look, "linewidth": 0})
    axes.step([x for x, _, _ in points], [mib for _, mib, _ in points], where="post", color="black", linewidth=0.8)


def scale(axes: Axes, highest: float) -> None:
    """Lets memory begin at 0, in whole numbers."""
    axes.set_ylim(0, 1.08 * highest)
    axes.yaxis.set_major_formatter(PLAIN)


def phases_of(rungs: Sequence[RungResult]) -> dict[str, Patch]:
    """What a legend says of the phases that are known, in a step's order."""
    known = {phase for rung in rungs for _, _, phase in rung.timeline}
    found = {PHASE_WORDS[name]: Patch(**filled(look)) for name, look in PHASE_LOOKS.items() if name in known}
    return found | ({"older results: no phases": Patch(**filled(NOT_KNOWN))} if "" in known else {})
