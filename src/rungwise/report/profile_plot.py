"""The picture of where a step's time goes: one stacked bar a rung, the first rung on top."""

from matplotlib.figure import Figure

from .profiles import LABELS, known, profile_rows, shown_classes
from .rung_result import RungResult
from .style import COLOURS, WIDTH, name_bars, scale_bars

# Told apart without colours; the rest is grey.
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++", "oo", "")
REST = "#dddddd"
# A share is written into its part of a bar where it fits: this much of the longest bar.
LEAST_WRITTEN = 0.055


def profile_bars(rungs: list[RungResult]) -> Figure | None:
    """The ms of each class in the profiled step, with their shares of it, of the rungs that have a profile."""
    rows = known(profile_rows(rungs))
    if not rows:
        return None
    figure = Figure(figsize=(WIDTH, 2.1 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    styles = dict(zip(LABELS, zip((*COLOURS[: len(LABELS) - 1], REST), HATCHES, strict=True), strict=True))
    longest = max(row["step_ms"] for row in rows)
    left = [0.0] * len(rows)
    for name in shown_classes(rows):
        sizes = [row[f"{name}_ms"] for row in rows]
        colour, hatch = styles[name]
        look = {"color": colour, "hatch": hatch, "edgecolor": "white", "height": 0.7, "label": LABELS[name]}
        axes.barh(range(len(rows)), sizes, left=left, **look)
        for y, (row, size, start) in enumerate(zip(rows, sizes, left, strict=True)):
            if size >= LEAST_WRITTEN * longest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
                share = f"{size / row['step_ms']:.0%}"
                axes.text(start + size / 2, y, share, ha="center", va="center", fontsize=9, bbox=box)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    for y, row in enumerate(rows):
        axes.text(row["step_ms"], y, f" {row['step_ms']:,.0f}", va="center")
    name_bars(axes, [row["rung"] for row in rows])
    axes.set_xlabel("one profiled step (ms), and what share of it each class takes")
    scale_bars(axes, margin=0.08)
    figure.legend(loc="outside upper left", ncols=5, columnspacing=1.2, handlelength=1.6)
    return figure
