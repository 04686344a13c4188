"""Result files to a table, checks and pictures: `report.md`, `report.json`, `ladder.csv` and PNGs."""

import csv
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import SettingsError
from ..result_file import write_json
from .captions import CAPTIONS
from .checks import Check, run_checks, tally
from .compiled import compiled_lines, compiled_rows
from .forecasts import forecast_rows, forecast_section
from .profiles import profile_rows, profile_section
from .rung_result import RungResult, load
from .table import COLUMNS, conditions, table
from .table_text import disturbed_line, escaped, markdown_table, terminal_rows


@dataclass
class Report:
    """A ladder's results, compared. Pictures are there once it is written."""

    rungs: list[RungResult]
    rows: list[dict[str, Any]]
    compiled: list[dict[str, Any]]
    checks: list[Check]
    pictures: list[Path] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Whether a rung or a check failed, or rungs were skipped until none was left to compare."""
        rungs = any(rung.status not in ("ok", "skipped") for rung in self.rungs)
        checks = any(check.verdict == "FAIL" for check in self.checks)
        return rungs or checks or self.nothing_compared is not None

    @property
    def nothing_compared(self) -> str | None:
        """Says so if rungs were skipped and fewer than two ran to their end; None otherwise."""
        ended = [rung.name for rung in self.rungs if rung.ok]
        skipped = [rung.name for rung in self.rungs if rung.status == "skipped"]
        if len(ended) > 1 or not skipped:
            return None
        return (
            f"Nothing was compared: {f'{ended[0]} alone' if ended else 'no rung'} ran to its end, skipped: "
            f"{', '.join(skipped)}; run the ladder where what they need is there, or ask for other techniques"
        )


def read_report(folder: Path) -> Report:
    """Reads the result files in a ladder's folder and compares them.

    Raises:
        SettingsError: the folder holds no results.
    """
    rungs = load(folder)
    if not rungs:
        raise SettingsError([f"{folder} holds no <rung>/round-N/result.json; give the folder of a ladder"])
    return Report(rungs, table(rungs), compiled_rows(rungs), run_checks(rungs))


def write_report(report: Report, folder: Path, pictures: bool = True) -> None:
    """Draws the report's pictures and writes `report.md`, `report.json` and `ladder.csv` into a ladder's folder."""
    if pictures:
        # Matplotlib takes longer to import than the table to be read: who only wants that does not wait for it.
        from .plots import draw

        report.pictures = draw(report.rungs, folder)
    (folder / "report.md").write_text(markdown(report, folder.name), encoding="utf-8")
    content = {
        "schema": 1,
        "conditions": conditions(report.rungs),
        "nothing_compared": report.nothing_compared,
        "rows": report.rows,
        "forecasts": forecast_rows(report.rungs),
        "compiled": report.compiled,
        "profiles": profile_rows(report.rungs),
        "checks": [asdict(check) for check in report.checks],
    }
    write_json(folder / "report.json", content)
    with (folder / "ladder.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(report.rows)


def markdown(report: Report, title: str) -> str:
    """The report as a page."""
    about = conditions(report.rungs)
    environment = about["environment"]
    lines = [f"# Ladder: {title}", ""]
    if environment:
        versions = ", ".join(
            f"{name} {environment.get(name)}" for name in ("python", "torch", "transformers", "accelerate")
        )
        lines += [
            f"{environment['device_name']} ({environment['device']}, {environment['threads']} threads, "
            f"products in hardware: {', '.join(environment['native_precision'])}); {versions}; "
            f"{environment['date'][:10]}; {about['rounds']} round{'s' * (about['rounds'] > 1)}.",
            "",
            f"Studied: {', '.join(about['differs']) or 'nothing'}. Fixed: "
            + ", ".join(f"{name} {value}" for name, value in about["settings"].items())
            + ".",
            "",
            *(line for why in about["elsewhere"] for line in (f"{NOT_COMPARED}: {why}.", "")),
        ]
    lines += [*markdown_table(report.rows), "", NOTES, ""]
    if report.nothing_compared:
        lines += [f"**{escaped(report.nothing_compared)}.**", ""]
    if disturbed := [escaped(f"- {disturbed_line(row)}") for row in report.rows if row["disturbed"]]:
        lines += [*disturbed, ""]
    if lost := [escaped(f"- {line}") for line in _lost_lines(report)]:
        lines += [*lost, ""]
    lines += forecast_section(forecast_rows(report.rungs))
    if report.compiled:
        lines += ["## Compiling", "", *compiled_lines(report.compiled), "", COMPILE_NOTES, ""]
    lines += profile_section(profile_rows(report.rungs))
    lines += ["## Checks", "", "| check | rungs | verdict | measured | bound |", "| --- | --- | --- | --- | --- |"]
    for check in report.checks:
        cells = (check.claim, " → ".join(check.rungs), f"**{check.verdict}**", check.measured, check.bound)
        lines.append(f"| {' | '.join(escaped(cell) for cell in cells)} |")
    for picture in report.pictures:
        title, reading = CAPTIONS[picture.name]
        lines += ["", f"## {title}", "", f"![{title}]({picture.name})", "", reading]
    return "\n".join(lines) + "\n"


def terminal_table(report: Report) -> str:
    """The same table, short, and the checks that did not pass."""
    lines = terminal_rows(report.rows)
    for row in report.rows:
        if row["status"] != "ok":
            lines.append(f"{row['rung']}: {row['reason']}")
        if row["disturbed"]:
            lines.append(disturbed_line(row))
    lines += _lost_lines(report)
    for row in report.compiled:
        against = f" against {row['eager']}" if row["eager"] else ""
        lines.append(f"{row['rung']}: break-even {row['break_even']}{against}")
    lines += [f"{NOT_COMPARED}: {why}" for why in conditions(report.rungs)["elsewhere"]]
    lines += ["", f"checks: {tally(report.checks)}"]
    for check in report.checks:
        if check.verdict == "FAIL":
            lines.append(f"FAIL {check.claim} ({' → '.join(check.rungs)}): {check.measured}; bound: {check.bound}")
    lines += [report.nothing_compared] if report.nothing_compared else []
    return "\n".join(lines)


NOT_COMPARED = "Speeds are not compared"
NOTES = """\
Memory is the allocator's peak; activations are what the other owners leave of it, temporaries included. The spread of
a step is from the 10th to the 90th percentile of its steps, over several rounds from the lowest to the highest. Speed
is compared by the median step; ≈ marks steps whose spreads overlap, or of which one was disturbed: no difference is
claimed. A rung is disturbed if p90 is over twice p10, or if mean and median lie over 10% apart. Losses are compared at
the last step. Model FLOPs leave out what is computed again; utilization is their rate over a square product's."""

COMPILE_NOTES = """\
Compile seconds are those in which the compiler was at work, forward and backward; no timed step is among them. They
are comparable with a fresh cache alone. Break-even is the step at which what compiling saves a step has paid for them.
"""


def _lost_lines(report: Report) -> list[str]:
    """What some rungs' meters failed to measure."""
    lost = [(rung.name, name.replace("_", " "), why) for rung in report.rungs for name, why in rung.lost.items()]
    return [f"{rung}: {name} not measured: {why}" for rung, name, why in lost]
