"""What a person sees of a ladder: a line as each rung ends, and a summary."""

from pathlib import Path
from typing import Any

from ..report.report import Report, terminal_table


class Console:
    """Prints how the rungs of one call ended, and how much of their time was not training."""

    def __init__(self) -> None:
        self._outside: list[float] = []

    def show(self, result: dict[str, Any], seconds: float) -> None:
        """Shows a rung's result and the seconds that it took, with all that this process did for it."""
        line = result["status"]
        peak, speed = result["memory"].get("peak_allocated_mib"), result["throughput"]
        loss = result["loss"].get("last")
        line += f", peak {peak:,.1f} MiB" if peak else ""
        if speed.get("step_ms_median"):
            line += f", {speed['step_ms_median']:,.0f} ms a step"
            line += f" ({speed['step_ms_p10']:,.0f}–{speed['step_ms_p90']:,.0f})"
            line += f", disturbed: {speed['disturbed']}" if speed["disturbed"] else ""
        line += f", loss {loss:.4f}" if loss else ""
        if result["status"] == "ok":
            outside = seconds - speed["all_steps_seconds"]
            self._outside.append(outside)
            line += f"; took {seconds:,.0f} s, {outside:,.1f} s of it outside training"
        else:
            line += f": {result['reason']}"
        print(f"  {line}", flush=True)

    def summary(self, report: Report, folder: Path) -> None:
        """Shows the table, the time outside training, and where the report is."""
        print(f"\n{terminal_table(report)}\n")
        if self._outside:
            each = sum(self._outside) / len(self._outside)
            print(f"outside training (imports, starting, reporting): {each:,.1f} s a rung")
        print(f"report: {folder / 'report.md'}", flush=True)
