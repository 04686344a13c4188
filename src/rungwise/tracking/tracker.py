"""A tracker's small interface, the one that reports to nothing, and those of Accelerate that are no more than it."""

from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker


class Tracker:
    """Reports to nothing. The others report to something."""

    # What a later process goes on with the same run by, and the last step that the run has from earlier ones.
    id: str | None = None
    known = 0

    def add(self, values: dict[str, Any], step: int) -> None:
        """Logs a row of metrics, unless the run has it from an earlier process."""
        if step > self.known:
            self.log(values, step=step)

    def log(self, values: dict[str, Any], step: int) -> None:
        """One row of metrics; steps must increase."""

    def summary(self, values: dict[str, Any]) -> None:
        """The figures of the whole run."""

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Rows of equal keys, where there are tables."""

    def pictures(self, files: list[Path]) -> None:
        """Pictures, where they are shown."""

    def about(self) -> dict[str, Any]:
        """What another process finds the run by: the tracker's name, the run's id, its address where it has one."""
        return {}

    def finish(self, failed: bool) -> list[str]:
        """Ends the run. Returns lines that tell a person where it is."""
        return []

    def abandon(self) -> None:
        """Lets go of a run that has failed, so that it is not tried again when the process ends."""


class AccelerateTracker(Tracker):
    """One of Accelerate's trackers. It has no summary of its own, so the figures are a last row."""

    def __init__(self, tracker: GeneralTracker, config: dict[str, Any], hint: str):
        self._tracker, self._hint, self._last = tracker, hint, 0
        tracker.start()
        tracker.store_init_configuration(config)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._tracker.log(values, step=step)
        self._last = step

    def summary(self, values: dict[str, Any]) -> None:
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        self._tracker.log({f"summary/{key}": value for key, value in numbers.items()}, step=self._last)

    def finish(self, failed: bool) -> list[str]:
        self._tracker.finish()
        return [self._hint]
