"""The picture of an answer: memory by owner, a bar a candidate, against the line of what there is."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from ..report.rung_result import OWNERS
from ..report.style import COLOURS, STYLE, WIDTH, name_bars, scale_bars
from .choice import Row
from .memory import Room

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

# A bar longer than so many times what there is, is cut off.
LONGEST = 2.0


def draw(rows: Sequence[Row], chosen: Row | None, room: Room, path: Path) -> list[Path]:
    """Writes the picture of those candidates that have a forecast. Returns the file, if there is one."""
    shown = [row for row in rows if row.forecast is not None]
    if not shown:
        path.unlink(missing_ok=True)
        return []
    with plt.rc_context(STYLE):
        figure = _bars(shown, chosen, room)
        figure.savefig(path)
        plt.close(figure)
    return [path]


def _bars(rows: Sequence[Row], chosen: Row | None, room: Room) -> Figure:
    """Peak memory by owner, the first candidate on top. Bars that would hide the others are cut off."""
    figure, axes = plt.subplots(figsize=(WIDTH, 1.9 + 0.45 * len(rows)), layout="constrained")
    longest = LONGEST * room.mib
    for y, row in enumerate(rows):
        start = 0.0
        for owner, colour in zip(OWNERS, COLOURS, strict=False):
            size = row.forecast.owners[owner]
            label = owner.replace("_", " ") if y == 0 else None
            axes.barh(y, max(0.0, min(size, longest - start)), left=start, color=colour, height=0.7, label=label)
            start = min(start + size, longest)
        peak = row.forecast.peak_mib
        note = " (cut off)" if peak > longest else ""
        text = f"{peak:,.0f}{note}{'  fits first' if row is chosen else ''}"
        # The line of what there is stays out of the words.
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
        weight = "bold" if row is chosen else "normal"
        axes.annotate(text, (start, y), (5, 0), textcoords="offset points", va="center", weight=weight, bbox=paper)
    axes.axvline(room.free, color="black", linewidth=1.8, label=f"there is: {room.free:,.0f}")
    if room.reserve:
        axes.axvline(room.mib, color="black", linewidth=1.2, linestyle=":", label=f"with the reserve: {room.mib:,.0f}")
    name_bars(axes, [row.candidate.name for row in rows])
    axes.set_xlabel("forecast peak of allocated memory (MiB)")
    scale_bars(axes, margin=0.24)
    axes.locator_params(axis="x", nbins=6)
    lines, bars = axes.get_lines(), axes.containers[: len(OWNERS)]
    figure.legend(handles=[*bars, *lines], loc="outside upper left", ncols=4, columnspacing=1.2, handlelength=1.2)
    return figure
