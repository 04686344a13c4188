"""The picture of forecast against measured memory: two bars a rung, by owner, the first rung on top."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..result_file import THIS_RUN
from .forecasts import any_known, error_words, forecast_rows
from .rung_result import OWNERS, RungResult
from .style import COLOURS, WIDTH, name_bars, scale_bars
from .table_text import MARK

# Told apart without colours. What was measured is filled, what was forecast is drawn in outline.
HATCHES = ("", "///", "...", "xx", "\\\\")
HEIGHT = 0.36


def forecast_bars(rungs: list[RungResult]) -> Figure | None:
    """Peak memory of each rung as measured and, below it, as forecast; None where no rung has a forecast."""
    rows = forecast_rows(rungs)
    if not any_known(rows):
        return None
    figure = Figure(figsize=(WIDTH, 2.0 + 0.75 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        if row["measured_mib"]["peak_allocated"] is None:
            axes.text(0, y - HEIGHT / 2, f" {row['status'].replace('_', ' ')}", va="center", style="italic")
        else:
            _bar(axes, y - HEIGHT / 2, row["measured_mib"], " {:,.1f} measured", filled=True)
        if row["reason"] is not None:
            axes.text(0, y + HEIGHT / 2, " no forecast", va="center", style="italic")
        else:
            _bar(axes, y + HEIGHT / 2, row["forecast_mib"], f" {{:,.1f}} {_words(row)}", filled=False)
    name_bars(axes, [row["rung"] for row in rows])
    notes = sorted({f"{MARK} {row['note']}" for row in rows if row["note"]})
    axes.set_xlabel("\n".join(["peak allocated memory (MiB)", *notes]))
    scale_bars(axes, margin=0.45)
    bars, names = axes.get_legend_handles_labels()
    shown = dict(zip(reversed(names), reversed(bars), strict=True))
    owners = [_label(owner) for owner in OWNERS]
    handles = [shown[owner] for owner in owners]
    figure.legend(handles, owners, loc="outside upper left", ncols=5, columnspacing=1.2, handlelength=1.6)
    return figure


def _label(owner: str) -> str:
    return owner.replace("_", " ")


def _words(row: dict[str, Any]) -> str:
    """What a forecast is, and how far from what was measured."""
    whose = ("forecast" if row["of"] == THIS_RUN else f"forecast of {row['of']}") + (MARK if row["note"] else "")
    return ", ".join(filter(None, (whose, error_words(row["error_percent"]["peak_allocated"]))))


def _bar(axes: Axes, y: float, sizes: dict[str, float], words: str, filled: bool) -> None:
    """One bar, its owners beside one another, with its peak in words behind it."""
    start = 0.0
    for owner, colour, hatch in zip(OWNERS, COLOURS, HATCHES, strict=False):
        look = {"facecolor": colour, "edgecolor": "white"} if filled else {"facecolor": "white", "edgecolor": colour}
        axes.barh(y, sizes[owner], left=start, height=HEIGHT, hatch=hatch, label=_label(owner), **look)
        start += sizes[owner]
    axes.text(start, y, words.format(sizes["peak_allocated"]), va="center", fontsize=9)
