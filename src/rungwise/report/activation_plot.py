"""The picture of who owns each rung's activations, told apart by colour, and by hatching where there is none."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .rung_result import RungResult
from .style import (
    COLOURS,
    GREY,
    HATCHES,
    WIDTH,
    behind,
    filled,
    inside,
    make_room,
    name_bars,
    number,
    scale_bars,
    wrapped,
)

OTHER = "other"
MOST_NAMED = 7
# A segment shows its size if it takes this share of the longest bar.
LABELLED = 0.08


def activations(rungs: list[RungResult]) -> Figure | None:
    """What one micro-batch keeps for backward, by kind of module: one bar a rung, the first rung on top."""
    sizes = [rung.activations for rung in rungs]
    if not any(sizes):
        return None
    figure = Figure(figsize=(WIDTH, 2.0 + 0.46 * len(rungs)), layout="constrained")
    axes = figure.subplots()
    kinds = largest_kinds(sizes)
    longest = max(sum(owned.values()) for owned in sizes)
    for y, owned in enumerate(sizes):
        if owned:
            module_bar(axes, y, owned, kinds, longest)
        else:
            behind(axes, 0, y, "not known", style="italic")
    name_bars(axes, [rung.name for rung in rungs])
    axes.set_xlabel("kept for backward by one micro-batch (MiB), by module")
    scale_bars(axes)
    explain_modules(figure, axes)
    make_room(figure)
    return figure


def module_bar(axes: Axes, y: float, owned: dict[str, float], kinds: list[str], longest: float) -> None:
    """One bar, its kinds of modules beside one another and all others behind them, with its sum in words."""
    start = 0.0
    other = sum(mib for name, mib in owned.items() if name not in kinds)
    for name, size, look in zip(
        [*kinds, OTHER], [*(owned.get(kind, 0.0) for kind in kinds), other], module_looks(len(kinds)), strict=True
    ):
        axes.barh(y, size, left=start, height=0.7, label=name, **filled(look))
        if size > LABELLED * longest:
            inside(axes, start + size / 2, y, number(size))
        start += size
    behind(axes, start, y, number(start))


def module_looks(kinds: int) -> list[tuple[str, str]]:
    """Colour and hatch of so many kinds of modules, and of all others."""
    return [*zip(COLOURS[:kinds], HATCHES[:kinds], strict=True), (GREY, "")]


def explain_modules(figure: Figure, axes: Axes) -> None:
    """Names the kinds of modules above the bars."""
    handles, names = axes.get_legend_handles_labels()
    shown = dict(zip(names, handles, strict=True))
    labels = [wrapped(name, 40, lines=1) for name in shown]
    columns = max(1, min(4, 88 // (4 + max(len(label) for label in labels))))
    look = {"loc": "outside upper left", "ncols": columns, "columnspacing": 1.2, "handlelength": 1.8}
    figure.legend(shown.values(), labels, **look)


def largest_kinds(sizes: list[dict[str, float]]) -> list[str]:
    """The kinds of modules that are named: those that own the largest share of some rung's bar."""
    most: dict[str, float] = {}
    for owned in sizes:
        for name, mib in owned.items():
            most[name] = max(mib / sum(owned.values()), most.get(name, 0.0))
    return sorted(most, key=lambda name: -most[name])[:MOST_NAMED]
