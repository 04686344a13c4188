"""The picture of forecast against measured memory: two bars a rung, by owner, the first rung on top."""

from typing import Any

from matplotlib.figure import Figure

from ..result_file import THIS_RUN
from .forecasts import any_known, error_words, forecast_rows
from .owner_bars import explain_owners, owner_bar
from .rung_result import RungResult
from .style import SMALL, WIDTH, behind, make_room, name_bars, outlined, scale_bars
from .table_text import MARK

# What was measured is filled, what was forecast is drawn in outline.
HEIGHT = 0.38


def forecast_bars(rungs: list[RungResult]) -> Figure | None:
    """Peak memory of each rung as measured and, below it, as forecast; None where no rung has a forecast."""
    rows = forecast_rows(rungs)
    if not any_known(rows):
        return None
    figure = Figure(figsize=(WIDTH, 2.0 + 0.62 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, row in enumerate(rows):
        if row["measured_mib"]["peak_allocated"] is None:
            behind(axes, 0, y - HEIGHT / 2, row["status"].replace("_", " "), style="italic", fontsize=SMALL)
        else:
            end = owner_bar(axes, y - HEIGHT / 2, row["measured_mib"], HEIGHT)
            behind(axes, end, y - HEIGHT / 2, f"{row['measured_mib']['peak_allocated']:,.1f} measured", fontsize=SMALL)
        if row["reason"] is not None:
            behind(axes, 0, y + HEIGHT / 2, "no forecast", style="italic", fontsize=SMALL)
        else:
            end = owner_bar(axes, y + HEIGHT / 2, row["forecast_mib"], HEIGHT, outlined)
            behind(axes, end, y + HEIGHT / 2, forecast_words(row), fontsize=SMALL)
    name_bars(axes, [row["rung"] for row in rows])
    notes = sorted({f"{MARK} {row['note']}" for row in rows if row["note"]})
    axes.set_xlabel("\n".join(["peak allocated memory (MiB)", *notes]))
    scale_bars(axes)
    explain_owners(figure)
    make_room(figure)
    return figure


def forecast_words(row: dict[str, Any]) -> str:
    """What a row's forecast is, and how far from what was measured."""
    whose = ("forecast" if row["of"] == THIS_RUN else f"forecast of {row['of']}") + (MARK if row["note"] else "")
    far = error_words(row["error_percent"]["peak_allocated"])
    return f"{row['forecast_mib']['peak_allocated']:,.1f} {whose}{f', {far}' if far else ''}"
