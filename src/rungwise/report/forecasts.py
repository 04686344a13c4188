"""What each rung's memory was forecast to be, beside what was measured."""

from typing import Any

from ..result_file import THIS_RUN
from .rung_result import OWNERS, RungResult

TITLE = "Forecast against measured"
FIGURES = ("peak_allocated", *OWNERS)


def why_no_forecast(rung: RungResult) -> str:
    """Why a rung has no forecast, in words; "" where it has one."""
    if not rung.forecast:
        return "its result is older than forecasts" if rung.ok else f"it ended as {rung.status.replace('_', ' ')}"
    return rung.forecast["reason"] if rung.forecast["peak_allocated_mib"] is None else ""


def why_not_its_own(rung: RungResult) -> str:
    """Why there is no forecast that a rung's memory can be held against, in words; "" where there is one."""
    if why := why_no_forecast(rung):
        return f"{rung.name} has no forecast: {why}"
    if rung.forecast["of"] != THIS_RUN:
        return f"the forecast of {rung.name} is of {rung.forecast['of']}"
    # As of a device on which no forecast was ever measured.
    return f"{rung.name}: {rung.forecast['note']}" if rung.forecast.get("note") else ""


def forecast_rows(rungs: list[RungResult]) -> list[dict[str, Any]]:
    """One row a rung: MiB by figure, forecast and measured, and how far the one is from the other in per cent.

    Figures are those of `result.json`. What is not known is None; `reason` says why there is no forecast.
    """
    rows = []
    for rung in rungs:
        found = rung.forecast
        rows.append(
            {
                "rung": rung.name,
                "status": rung.status,
                "of": found.get("of"),
                "note": found.get("note"),
                "measured_mib": {name: rung.memory(f"{name}_mib") if rung.ok else None for name in FIGURES},
                "forecast_mib": {name: found.get(f"{name}_mib") for name in FIGURES},
                "error_percent": {name: found.get(f"{name}_error_percent") if rung.ok else None for name in FIGURES},
                "reason": why_no_forecast(rung) or None,
            }
        )
    return rows


def any_known(rows: list[dict[str, Any]]) -> bool:
    """Whether any rung has a forecast."""
    return any(row["reason"] is None for row in rows)


def forecast_section(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a section of a Markdown page, and why some rungs have none. Empty where all are older."""
    if not any_known(rows):
        return []
    heads = ("rung", "forecast of", "measured MiB", "forecast MiB", "error")
    heads += tuple(owner.replace("_", " ") for owner in OWNERS)
    lines = [f"## {TITLE}", "", f"| {' | '.join(heads)} |", f"| --- | --- {'| ---: ' * (len(heads) - 2)}|"]
    for row in (row for row in rows if row["reason"] is None):
        measured = row["measured_mib"]["peak_allocated"]
        cells = (
            row["rung"],
            row["of"],
            row["status"].replace("_", " ") if measured is None else f"{measured:,.1f}",
            f"{row['forecast_mib']['peak_allocated']:,.1f}",
            *(error_words(row["error_percent"][name]) for name in FIGURES),
        )
        lines.append(f"| {' | '.join(cells)} |")
    reasons = [f"- {row['rung']}: no forecast, {row['reason']}" for row in rows if row["reason"] is not None]
    reasons += [f"- {row['rung']}: {row['note']}" for row in rows if row["note"]]
    return [*lines, "", *reasons, *([""] if reasons else []), NOTES, ""]


def error_words(error: float | None) -> str:
    """An error in per cent, for reading."""
    return "" if error is None else f"{error:+.2f}%"


NOTES = """\
Forecasts are made without running anything; errors are in per cent of what was measured, that of the peak first, then
each owner's. Where a forecast is not of this run, as that of the eager run beside a compiled one, its distance is what
the difference between the two makes, and no error."""
