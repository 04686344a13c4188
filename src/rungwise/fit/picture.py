"""The picture of an answer: memory by owner, a bar a candidate, against the line of what there is."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..report.owner_bars import explain_owners, owner_bar
from ..report.rung_result import OWNERS
from ..report.style import PAPER, STYLE, WIDTH, behind, make_room, name_bars, scale_bars
from .choice import Row
from .memory import Room

# A bar longer than so many times what there is, is cut off.
LONGEST = 2.0


def draw(rows: Sequence[Row], chosen: Row | None, room: Room, path: Path) -> list[Path]:
    """Writes the picture of those candidates that have a forecast. Returns the file, if there is one."""
    shown = [row for row in rows if row.forecast is not None]
    if not shown:
        path.unlink(missing_ok=True)
        return []
    with rc_context(STYLE):
        bars(shown, chosen, room).savefig(path)
    return [path]


def bars(rows: Sequence[Row], chosen: Row | None, room: Room) -> Figure:
    """Peak memory by owner, the first candidate on top. Bars that would hide the others are cut off."""
    figure = Figure(figsize=(WIDTH, 1.9 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    longest = LONGEST * room.mib
    for y, row in enumerate(rows):
        end = owner_bar(axes, y, _cut(row.forecast.owners, longest))
        peak = row.forecast.peak_mib
        note = " (cut off)" if peak > longest else ""
        text = f"{peak:,.0f}{note}{'  fits first' if row is chosen else ''}"
        # The line of what there is stays out of the words.
        behind(axes, end, y, text, weight="bold" if row is chosen else "normal", bbox=PAPER)
    axes.axvline(room.free, color="black", linewidth=1.8, label=f"there is: {room.free:,.0f}")
    if room.reserve:
        axes.axvline(room.mib, color="black", linewidth=1.2, linestyle=":", label=f"with the reserve: {room.mib:,.0f}")
    name_bars(axes, [row.candidate.name for row in rows])
    axes.set_xlabel("forecast peak of allocated memory (MiB)")
    scale_bars(axes)
    explain_owners(figure, axes.get_lines(), columns=4)
    make_room(figure)
    return figure


def _cut(owners: Mapping[str, float], longest: float) -> dict[str, float]:
    """What a bar shows of its owners, up to its longest."""
    shown: dict[str, float] = {}
    for owner in OWNERS:
        shown[owner] = max(0.0, min(owners[owner], longest - sum(shown.values())))
    return shown
