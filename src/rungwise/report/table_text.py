"""A ladder's table as text: for a page, and short for a terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..result_file import THIS_RUN
from .rung_result import OWNERS
from .table import step_words

# Behind a forecast that is of another run, or was never measured on its device.
MARK = "*"


def markdown_table(
    rows: list[dict[str, Any]], columns: Sequence[str] = (), more: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """The rows as a Markdown table, its figures rounded for reading.

    Args:
        rows: of `report.table.table`.
        columns: keys of `CELLS` or of `more`; all of `CELLS` where none is named.
        more: cells of columns that a row does not have, by the column's head.
    """
    more = more or {}
    chosen = tuple(columns) or tuple(CELLS)
    heads = [CELLS[key][0] if key in CELLS else key for key in chosen]
    rules = ["---" if key in ("rung", "status", *more) else "---:" for key in chosen]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(rules)} |"]
    for number, row in enumerate(rows):
        cells = [CELLS[key][1](row, rows[0]) if key in CELLS else more[key][number] for key in chosen]
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    return lines


def terminal_rows(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as aligned lines, heads first. Forecasts have a column where there are any."""
    forecast = any(row["forecast_peak_mib"] is not None for row in rows)
    heads = ("rung", "status", "peak MiB", *(("forecast",) if forecast else ()), "", "step ms", "tokens/s", "", "loss")
    body = [
        (
            row["rung"],
            row["status"],
            _number(row["peak_mib"], 1),
            *((_forecast(row),) if forecast else ()),
            _share(row["peak_vs_first"]),
            _step(row),
            _number(row["tokens_per_second"]),
            _speed_change(row, rows[0]),
            _number(row["last_loss"], 4),
        )
        for row in rows
    ]
    widths = [max(len(line[n]) for line in (heads, *body)) for n in range(len(heads))]
    lines = []
    for line in (heads, *body):
        cells = [
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return [*lines, *(f"{MARK} {words}" for words in sorted({words for row in rows for words in _reserves(row)}))]


def disturbed_line(row: dict[str, Any]) -> str:
    """Says of a disturbed rung why it is one, and what to do about it."""
    return f"{row['rung']}: disturbed, {row['disturbed']}; its speed is not compared: run it again on a quiet machine"


def escaped(text: str) -> str:
    """The text as a cell of a Markdown table, on one line."""
    return " ".join(text.replace("|", "\\|").split())


def _speed_change(row: dict[str, Any], first: dict[str, Any]) -> str:
    if row is first or row["tokens_per_second"] is None or first["tokens_per_second"] is None:
        return ""
    return "≈" if row["speed_vs_first"] is None else _share(row["speed_vs_first"])


def _step(row: dict[str, Any]) -> str:
    return f"{step_words(row)} disturbed" if row["disturbed"] else step_words(row)


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:+.1%}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.4f}"


def _forecast(row: dict[str, Any]) -> str:
    return _number(row["forecast_peak_mib"], 1) + (MARK if _reserves(row) else "")


def _reserves(row: dict[str, Any]) -> list[str]:
    """What has to be said of a row's forecast."""
    of = [f"the forecast is of {row['forecast_of']}"] if row["forecast_of"] not in (None, THIS_RUN) else []
    return of + ([row["forecast_note"]] if row["forecast_note"] else [])


def _status(row: dict[str, Any]) -> str:
    status = f"{row['status']}: {row['reason']}" if row["reason"] else row["status"]
    if row["loss_scale"] is not None:
        status += f" (loss scale {row['loss_scale']:,.0f}, {row['skipped_steps']} steps skipped)"
    return status


def _owners(row: dict[str, Any]) -> str:
    owners = (_number(row[f"{owner}_mib"], 1) for owner in OWNERS if owner != "buffers")
    return " / ".join(owners) if row["peak_mib"] is not None else ""


def _utilization(row: dict[str, Any]) -> str:
    return "" if row["utilization"] is None else f"{row['utilization']:.1%}"


# The columns of a page: the head, and the cell of a row beside the first row.
CELLS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], str]]] = {
    "rung": ("rung", lambda row, _: row["rung"]),
    "status": ("status", lambda row, _: _status(row)),
    "peak": ("peak MiB", lambda row, _: _number(row["peak_mib"], 1)),
    "peak_vs_first": ("vs first", lambda row, _: _share(row["peak_vs_first"])),
    "peak_vs_before": ("vs before", lambda row, _: _share(row["peak_vs_before"])),
    "owners": ("params / grads / optimizer / activations", lambda row, _: _owners(row)),
    "step": ("step ms (spread)", lambda row, _: _step(row)),
    "tokens_per_second": ("tokens/s", lambda row, _: _number(row["tokens_per_second"])),
    "speed_vs_first": ("speed vs first", lambda row, first: _speed_change(row, first)),
    "model_tflops": ("TFLOP/s", lambda row, _: _number(row["model_tflops"], 2)),
    "utilization": ("utilization", lambda row, _: _utilization(row)),
    "compile": ("compile s", lambda row, _: _number(row["compile_seconds"], 1)),
    "loss": ("last loss", lambda row, _: _number(row["last_loss"], 4)),
    "loss_vs_fp32": ("vs fp32", lambda row, _: _signed(row["loss_vs_fp32"])),
}
