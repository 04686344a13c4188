"""A ladder's report as a run of its own, beside those of its rungs."""

from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState

from ..report.report import Report
from ..report.rung_result import RungResult
from ..report.table import conditions
from .safe import SafeTracker
from .wandb_run import WandbTracker, wandb_images, wandb_table

# Bars of a column of the table, by their names in W&B.
BARS = {"peak_mib": "Peak memory, MiB", "step_ms": "Step time, ms", "tokens_per_second": "Tokens a second"}


def track_report(report: Report, folder: Path, group: str) -> list[str]:
    """One W&B run of type `report` beside the rungs', if those were tracked there. Returns lines that say where it is.

    Args:
        report: written, so that its pictures are there.
        folder: of the ladder.
        group: of its rungs' runs.
    """
    tracked = [rung.settings for rung in report.rungs if rung.settings.get("report_to") == "wandb"]
    if not tracked:
        return []
    PartialState(cpu=True)  # Accelerate's trackers log through it; this process trains nothing.
    shared = conditions(report.rungs)
    # One report a group, also when a ladder is continued.
    names = {"name": "report", "group": group, "job_type": "report", "id": f"{group}-report", "resume": "allow"}
    config = {**shared["settings"], **shared}
    begin = partial(WandbTracker, tracked[0]["project"], folder, config, several=True, **names)
    tracker = SafeTracker("W&B", begin)
    checks = {f"check/{c.claim} ({' to '.join(c.rungs)})": f"{c.verdict}: {c.measured}" for c in report.checks}
    paid = {f"break_even/{row['rung']}": f"{row['break_even']} ({row['eager']})" for row in report.compiled}
    tracker.log(_content(report), step=0)
    tracker.summary(checks | paid)
    return tracker.finish(failed=report.failed)


def _content(report: Report) -> dict[str, Any]:
    """The table with where each rung's run is, its figures as bars and as a map, and the pictures."""
    import wandb

    rows = [{"run": _run_of(rung), **row} for rung, row in zip(report.rungs, report.rows, strict=True)]
    found: dict[str, Any] = {"report/table": wandb_table(rows)}
    for column, title in BARS.items():
        if known := [{"rung": row["rung"], column: row[column]} for row in rows if row[column] is not None]:
            found[f"report/{column}"] = wandb.plot.bar(wandb_table(known), "rung", column, title=title)
    names = ("rung", "step_ms", "peak_mib")
    if known := [{name: row[name] for name in names} for row in rows if None not in (row["step_ms"], row["peak_mib"])]:
        table = wandb_table(known)
        found["report/map"] = wandb.plot.scatter(table, "step_ms", "peak_mib", title="Peak memory over step time")
    return found | wandb_images("report", report.pictures)


def _run_of(rung: RungResult) -> str | None:
    """Where the run of a rung's first round is: its address, or, of one that was not sent yet, its id."""
    # Older results do not tell.
    tracker = rung.rounds[0].get("tracker", {})
    return tracker.get("url") or tracker.get("id")
