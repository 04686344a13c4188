"""The picture of where a step's time goes: one stacked bar a rung, the first rung on top."""

from matplotlib.figure import Figure

from .profiles import LABELS, known, profile_rows, shown_classes
from .rung_result import RungResult
from .style import (
    COLOURS,
    HATCHES,
    LIGHT,
    WIDTH,
    behind,
    filled,
    inside,
    make_room,
    name_bars,
    number,
    scale_bars,
)

LOOKS = dict(zip(LABELS, [*zip(COLOURS, HATCHES, strict=True), (LIGHT, "")], strict=True))
# A share is written into its part of a bar where it fits: this much of the longest bar.
LEAST_WRITTEN = 0.07


def profile_bars(rungs: list[RungResult]) -> Figure | None:
    """The ms of each class in the profiled step, with their shares of it, of the rungs that have a profile."""
    rows = known(profile_rows(rungs))
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 2.1 + 0.46 * len(rows)), layout="constrained")
    axes = figure.subplots()
    longest = max(row["step_ms"] for row in rows)
    left = [0.0] * len(rows)
    for name in shown_classes(rows):
        sizes = [row[f"{name}_ms"] for row in rows]
        axes.barh(range(len(rows)), sizes, left=left, height=0.7, label=LABELS[name], **filled(LOOKS[name]))
        for y, (row, size, start) in enumerate(zip(rows, sizes, left, strict=True)):
            if size >= LEAST_WRITTEN * longest:
                inside(axes, start + size / 2, y, f"{size / row['step_ms']:.0%}")
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    for y, row in enumerate(rows):
        behind(axes, row["step_ms"], y, number(row["step_ms"]))
    name_bars(axes, [row["rung"] for row in rows])
    axes.set_xlabel("one profiled step (ms), and what share of it each class takes")
    scale_bars(axes)
    figure.legend(loc="outside upper left", ncols=4, columnspacing=1.2, handlelength=1.8)
    make_room(figure)
    return figure
