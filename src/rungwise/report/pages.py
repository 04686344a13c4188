"""What commands have measured as sections of the guides: tables, and the words of a terminal."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..settings.fields import FIELDS, NAMING
from .checks import tally
from .report import Report, read_report
from .rung_result import OWNERS, RungResult
from .table_text import CELLS, disturbed_line, escaped, markdown_table

# What goes with another setting, and would say the same twice.
BESIDE = {"config", "precision", "micro_batch_size", "output_dir"}
PRECISIONS = {"no": "fp32"}
TURNED_ON = "turned on"


def ladder_section(folder: Path, columns: Sequence[str]) -> str:
    """A ladder's table, what its checks came to, and what is to be known of its rungs.

    Args:
        folder: of the ladder.
        columns: keys of `table_text.CELLS`; `turned on` is what a rung has and the one before has not.
    """
    report = read_report(folder)
    on = [changed(before, rung) for before, rung in zip([None, *report.rungs], report.rungs, strict=False)]
    # Where a status says more than that all is well, it has its column.
    status = ["status"] if any(CELLS["status"][1](row, row) != "ok" for row in report.rows) else []
    lines = markdown_table(report.rows, [columns[0], *status, *columns[1:]], {TURNED_ON: on})
    notes = [f"- {escaped(disturbed_line(row))}" for row in report.rows if row["disturbed"]]
    return "\n".join([*lines, "", *notes, *([""] if notes else []), checks_line(report)])


def checks_line(report: Report) -> str:
    """How many checks came out how, and those that failed."""
    failed = [check for check in report.checks if check.verdict == "FAIL"]
    wrong = "".join(f" {c.claim} ({' → '.join(c.rungs)}): {c.measured}, bound {c.bound}." for c in failed)
    return f"Checks: {tally(report.checks)}.{wrong}"


def changed(before: RungResult | None, rung: RungResult) -> str:
    """What a rung asks for that the one before does not, as flags; of the first its precision."""
    now = rung.settings
    if before is None or not before.settings:
        return PRECISIONS.get(now.get("precision", ""), now.get("precision", ""))
    names = [n for n in now if n in FIELDS and n not in {*NAMING, *BESIDE} and now[n] != before.settings.get(n)]
    plain = now.get("dtype", "float32") == "float32"  # else no mixed precision is no fp32
    return ", ".join(filter(None, (_flag(name, now[name], plain) for name in names)))


def _flag(name: str, value: Any, plain: bool) -> str:
    if name == "mixed_precision" and (plain or value != "no"):
        return PRECISIONS.get(value, value)
    if value is None:
        return ""
    if not FIELDS[name].metadata["group"]:  # of the Accelerate file alone
        return f"`{name}: {json.dumps(value)}`"
    if isinstance(value, bool):
        return f"`--{name}`" if value else f"no `--{name}`"
    words = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return f"`--{name} {shlex.quote(words)}`"


def owners_section(result: dict[str, Any]) -> str:
    """Who owns a run's peak, each with its share."""
    peak = result["memory"]["peak_allocated_mib"]
    lines = ["| owner | MiB | share of the peak |", "| --- | ---: | ---: |"]
    for owner in OWNERS:
        mib = result["memory"][f"{owner}_mib"]
        lines.append(f"| {owner.replace('_', ' ')} | {mib:,.1f} | {mib / peak:.1%} |")
    return "\n".join([*lines, f"| **peak** | **{peak:,.1f}** | |"])


def activations_section(result: dict[str, Any], largest: int) -> str:
    """The largest rows of what the first micro-batch keeps for its backward pass."""
    found = result["activations"]
    lines = ["| module | operator | tensors | MiB | share |", "| --- | --- | ---: | ---: | ---: |"]
    for row in found["rows"][:largest]:
        share = row["mib"] / found["total_mib"]
        names = f"`{escaped(row['module'])}` | {escaped(row['operator'])}"
        lines.append(f"| {names} | {row['tensors']} | {row['mib']:,.1f} | {share:.1%} |")
    rest = found["rows"][largest:]
    more = f"| {len(rest)} rows more | | {sum(r['tensors'] for r in rest)} | {sum(r['mib'] for r in rest):,.1f} | |"
    return "\n".join([*lines, *([more] if rest else []), f"| **all** | | | **{found['total_mib']:,.1f}** | |"])


def terminal_section(text: str, first: str = "", last: str = "") -> str:
    """What a command has printed, as it stands: from the line that holds `first` to the one that holds `last`.

    Raises:
        ValueError: there is no such line.
    """
    lines = text.rstrip().splitlines()
    begin = next((n for n, line in enumerate(lines) if first in line), None)
    end = next((n for n, line in reversed([*enumerate(lines)]) if last in line), None)
    if begin is None or end is None or end < begin:
        raise ValueError(f"no lines from {first!r} to {last!r} in what was printed:\n{text}")
    return "\n".join(["```text", *(line.rstrip() for line in lines[begin : end + 1]), "```"])
