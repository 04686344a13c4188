"""The picture of who owns each rung's activations, told apart by colour, and by hatching where there is none."""

from matplotlib.figure import Figure

from .rung_result import RungResult
from .style import COLOURS, WIDTH, name_bars, scale_bars

OTHER = "other"
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo")
# A segment shows its size if it takes this share of the longest bar.
LABELLED = 0.06


def activations(rungs: list[RungResult]) -> Figure | None:
    """What one micro-batch keeps for backward, by kind of module: one bar a rung, the first rung on top."""
    sizes = [rung.activations for rung in rungs]
    if not any(sizes):
        return None
    kinds = largest_kinds(sizes)
    figure = Figure(figsize=(WIDTH, 2.0 + 0.5 * len(rungs)), layout="constrained")
    axes = figure.subplots()
    longest = max(sum(owned.values()) for owned in sizes)
    for y, owned in enumerate(sizes):
        if not owned:
            axes.text(0, y, " not known", va="center", style="italic")
            continue
        start = 0.0
        for kind, colour, hatch in zip(
            [*kinds, OTHER], _colours(len(kinds)), [*HATCHES[: len(kinds)], ""], strict=True
        ):
            size = sum(mib for name, mib in owned.items() if name == kind or (kind == OTHER and name not in kinds))
            axes.barh(y, size, left=start, color=colour, hatch=hatch, edgecolor="white", height=0.7, label=kind)
            if size > LABELLED * longest:
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
                axes.text(start + size / 2, y, f"{size:,.0f}", ha="center", va="center", fontsize=9, bbox=box)
            start += size
        axes.text(start, y, f" {start:,.0f}", va="center")
    name_bars(axes, [rung.name for rung in rungs])
    axes.set_xlabel("kept for backward by one micro-batch (MiB), by module")
    scale_bars(axes, margin=0.1)
    bars, names = axes.get_legend_handles_labels()
    shown = dict(zip(reversed(names), reversed(bars), strict=True))
    handles = [shown[kind] for kind in (*kinds, OTHER)]
    figure.legend(handles, [*kinds, OTHER], loc="outside upper left", ncols=4, columnspacing=1.2, handlelength=1.6)
    return figure


def largest_kinds(sizes: list[dict[str, float]]) -> list[str]:
    """The kinds of modules that are named: those that own the largest share of some rung's bar."""
    most: dict[str, float] = {}
    for owned in sizes:
        for name, mib in owned.items():
            most[name] = max(mib / sum(owned.values()), most.get(name, 0.0))
    return sorted(most, key=lambda name: -most[name])[: len(HATCHES)]


def _colours(kinds: int) -> list[str]:
    return [*COLOURS[:kinds], "#999999"]
