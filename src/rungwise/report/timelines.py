"""Memory over one step of a run, as its file has it."""

import csv
from pathlib import Path

# ms since the step began, MiB, and the phase, "" in results that do not know it.
Timeline = list[tuple[float, float, str]]


def read_timeline(folder: Path) -> Timeline:
    """The memory of one step of the run in a folder; empty where it was not measured, or the file is damaged."""
    try:
        with (folder / "memory_timeline.csv").open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            return [(float(row["ms"]), float(row["allocated_mib"]), row.get("phase") or "") for row in rows]
    except (OSError, ValueError, LookupError, TypeError, csv.Error):
        return []
