"""One call of the ladder as a person sees it: rungs in turn, a report after each, a summary, and an exit code."""

import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from accelerate import PartialState

from ..errors import SettingsError
from ..report.report import Report, terminal_table, write_report
from ..report.table import conditions
from ..tracking import WandbTracker
from .ladder import Ladder
from .ladder_file import Rung

ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Climb:
    """Runs what a ladder has left to run, for a number of rounds."""

    def __init__(self, ladder: Ladder, repeats: int):
        self.ladder, self.repeats = ladder, repeats
        self.outside: list[float] = []
        self.ran = False

    def run(self) -> int:
        """Climbs, reports and returns the exit code: 0 only if no rung and no check failed; 130 or 143 if stopped."""
        stopped = 0
        # A terminal that is closed, and a scheduler that ends its job, are like Ctrl-C.
        for name in ENDING_SIGNALS:
            signal.signal(name, _stop)
        try:
            self.ladder.climb(self.repeats, self._after)
        except KeyboardInterrupt as interrupt:
            stopped = 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)
            # The report is written now; another Ctrl-C must not leave half of it.
            for name in (*ENDING_SIGNALS, signal.SIGINT):
                signal.signal(name, signal.SIG_IGN)
        try:
            report = write_report(self.ladder.folder)
        except SettingsError:
            print("\nstopped before the first rung had a result")
            return stopped
        self._summary(report, stopped)
        return stopped or int(report.failed)

    def _after(self, rung: Rung, result: dict[str, Any], started: float) -> None:
        """After each rung: the report so far, and one line."""
        self.ran = True
        write_report(self.ladder.folder)
        took = time.monotonic() - started
        line = result["status"]
        peak, speed, loss = (
            result["memory"].get("peak_allocated_mib"),
            result["throughput"],
            result["loss"].get("last"),
        )
        line += f", peak {peak:,.1f} MiB" if peak else ""
        if speed.get("step_ms_median"):
            line += f", {speed['step_ms_median']:,.0f} ms a step"
            line += f" ({speed['step_ms_p10']:,.0f}–{speed['step_ms_p90']:,.0f})"
            line += f", disturbed: {speed['disturbed']}" if speed["disturbed"] else ""
        line += f", loss {loss:.4f}" if loss else ""
        if result["status"] == "ok":
            outside = took - speed["all_steps_seconds"]
            self.outside.append(outside)
            line += f"; took {took:,.0f} s, {outside:,.1f} s of it outside training"
        else:
            line += f": {result['reason']}"
        print(f"  {line}", flush=True)

    def _summary(self, report: Report, stopped: int) -> None:
        print(f"\n{terminal_table(report)}\n")
        if self.outside:
            each = sum(self.outside) / len(self.outside)
            print(f"outside training (imports, starting, reporting): {each:,.1f} s a rung")
        print(f"report: {self.ladder.folder / 'report.md'}")
        if stopped:
            print("stopped; the same command continues")
            return
        # A finished ladder that was only looked at again has nothing new to tell.
        for line in _track(report, self.ladder.folder, self.ladder.group) if self.ran else ():
            print(f"W&B: {line}")


def _track(report: Report, folder: Path, group: str) -> list[str]:
    """One W&B run of type `report` beside the rungs', if those were tracked there. Returns where it is."""
    tracked = [rung.settings for rung in report.rungs if rung.settings.get("report_to") == "wandb"]
    if not tracked:
        return []
    PartialState(cpu=True)  # Accelerate's trackers log through it; this process trains nothing.
    shared = conditions(report.rungs)
    # One report a group, also when a ladder is continued.
    names = {"name": "report", "group": group, "job_type": "report", "id": f"{group}-report", "resume": "allow"}
    tracker = WandbTracker(tracked[0]["project"], folder, {**shared["settings"], **shared}, **names)
    checks = {f"check/{c.claim} ({' to '.join(c.rungs)})": f"{c.verdict}: {c.measured}" for c in report.checks}
    paid = {f"break_even/{row['rung']}": f"{row['break_even']} ({row['eager']})" for row in report.compiled}
    tracker.log_report(report.rows, checks | paid, report.pictures)
    return tracker.finish(failed=report.failed)


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(signum)
