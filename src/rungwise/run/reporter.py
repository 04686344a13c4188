"""What the main process of a run writes and prints: its files, its tracker, the terminal."""

import copy
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from .. import tracking
from ..loop import Step
from ..metrics.phases import Timeline
from ..redact import redacted
from ..settings.fields import Settings
from ..tracking.safe import SafeTracker
from . import console
from . import rank_errors as ranks
from .files import Files
from .record import Record
from .refusal import is_main


class Reporter:
    """Reports one run in every place. In any other process than the main one it does nothing.

    Attributes:
        tracker: the run in W&B or another tracker, once it is begun.
        progress: the bar or the lines of a run that has started.
    """

    def __init__(self, settings: Settings, folder: Path):
        self.tracker = tracking.Tracker()
        self.progress: console.Progress | None = None
        self._settings, self._folder = settings, folder
        self._config: PreTrainedConfig | None = None
        self._files = Files(folder)

    def enter(self, record: Record, resumed: Path | None) -> None:
        """Takes the run's folder; one that goes on from a checkpoint leaves all in it until that is loaded."""
        if is_main():
            self._folder.mkdir(parents=True, exist_ok=True)
            ranks.clear_rank_errors(self._folder)
            if resumed is None:
                self._files.set_aside(None)
                self._files.begin(record)

    def start(self, record: Record, resumed: Path | None, first_row: str | None) -> None:
        """Shows the settings and the data, and begins the tracker of a run that is not a resumed one."""
        if is_main():
            block = console.settings_block(self._settings, record.environment, record.data, first_row)
            print(redacted(block), flush=True)
            self.progress = console.Progress(self._settings.max_steps)
            if resumed is None:
                self._track(record)

    def resume(self, record: Record, resumed: Path, tracked: str | None, done: int) -> None:
        """Takes over the files and the tracked run of an earlier process, after so many steps."""
        if is_main():
            self._files.set_aside(resumed)
            self._files.begin(record)
            self._track(record, tracked)
            self.progress.resume(done)

    def _track(self, record: Record, tracked: str | None = None) -> None:
        name, config = self._settings.report_to, record.config()
        build = partial(tracking.build_tracker, self._settings, config, tracked)
        self.tracker = SafeTracker("W&B" if name == "wandb" else name, build)
        record.tracker = self.tracker.about()

    def add(self, step: int, row: dict[str, Any], evaluation: Mapping[str, float]) -> None:
        """Keeps the metrics of a step, and of an evaluation after it."""
        if is_main():
            self._files.add(step, row)
            self.tracker.add({**row, **evaluation}, step=step)

    def show(self, step: Step) -> None:
        """Shows a finished step."""
        if is_main():
            self.progress.show(step)

    def evaluated(self, step: int, loss: float) -> None:
        """Keeps and shows the loss of held-out rows."""
        if is_main():
            self.tracker.add({"eval/loss": loss}, step=step)
            self.progress.show_evaluation(step, loss)

    def write(self, record: Record) -> None:
        """Writes the result, before all that takes time."""
        self._files.write(record)

    def end(self, record: Record, error: BaseException | None, exit_code: int, timeline: Timeline) -> None:
        """Writes all that is known at the end, and says why a run failed where nobody foresaw it."""
        if self.progress:
            self.progress.close()
        if exit_code == 1 and record.status == "failed":
            # Its place in the code is what its reader needs.
            print(redacted("".join(traceback.format_exception(error))), file=sys.stderr, flush=True)
        self._files.end(record, timeline)

    def watch(self, config: PreTrainedConfig) -> None:
        """Keeps the config of the model that is trained, as it is now."""
        self._config = copy.deepcopy(config)

    def forecast(self, record: Record) -> None:
        """Adds the forecast of the memory of a run that came to its end, or ran out of it: all else is written."""
        wanted = self._settings.forecast and self._config is not None
        if not wanted or record.status not in ("ok", "out_of_memory"):
            return
        from ..forecast.beside import beside_measured  # here, since it imports much that no run needs before

        record.forecast = beside_measured(self._settings, self._config, record.memory)
        self._files.write(record)

    def _draw(self, record: Record) -> list[Path]:
        """Draws the run's own pictures, if it came to its end. Returns the files."""
        if not (self._settings.plots and record.status == "ok"):
            return []
        from ..report.plots import draw_run  # here, since no run needs what draws before its end

        try:
            return draw_run(self._folder)
        except Exception as error:
            # As where the disk is full. A picture is no figure: all of those are written.
            words = (str(error).strip() or "without a word").splitlines()[0]
            print(redacted(f"no pictures: {type(error).__name__}: {words}"), file=sys.stderr, flush=True)
            return []

    def finish(self, record: Record, exit_code: int) -> None:
        """Draws, ends the tracked run and prints the summary: what may take long, after all is written."""
        self.tracker.pictures(self._draw(record))
        if record.activations:
            self.tracker.table("activations/by_module", record.activations["rows"])
        self.tracker.summary(record.summary())
        where = self.tracker.finish(failed=exit_code != 0)
        print(redacted(console.summary_block(record.as_dict(), where)), flush=True)
