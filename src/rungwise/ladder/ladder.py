"""Runs the rungs that are left to run in a folder, each in a fresh process; picks up where it was stopped.

With `identity` come PyTorch and Transformers, which take seconds to import, and with `tracking` Accelerate. They are
imported where a ladder is run, so that who only reads its report does not wait for them.
"""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from .. import imports
from ..errors import SettingsError, no_folder
from ..report.report import Report
from ..result_file import read_result, write_json
from ..settings.choices import ENGINES
from ..settings.cli import checked
from ..signals import Signals, Terminated, exit_code
from .ladder_file import Rung
from .processes import run_rung

# A rung with one of these has said what it has to say; any other is run again.
FINISHED = ("ok", "out_of_memory", "diverged", "skipped")


class Ladder:
    """The rungs of one folder: what was run there, with which arguments, and what is left to run.

    A context that holds the folder, so that no other ladder writes into it. `exit_code` is not 0 once a signal has
    stopped it.

    Raises:
        SettingsError: a rung's settings are wrong, another ladder runs in the folder, or what it holds was made with
            other arguments, configs or versions. Nothing was run or changed then.
    """

    def __init__(
        self,
        name: str,
        rungs: Sequence[Rung],
        folder: Path,
        group: str,
        fresh: bool = False,
    ):
        self.name, self.rungs, self.folder, self.group, self.fresh = name, list(rungs), folder, group, fresh
        self.exit_code = 0
        # Ctrl-C, a scheduler that ends its job, and a terminal that is closed, stop a ladder alike.
        self.signals = Signals(hang_up=True)
        self._started: float | None = None

    def __enter__(self) -> "Ladder":
        with imports.kept():
            from ..data.opened import Opening
            from . import identity

        errors = folder_errors(self.folder)
        self._opening = Opening()  # rungs share their model and their data
        try:
            self._settings = identity.check_rungs(self.rungs, self._opening)
        except SettingsError as error:
            errors += error.errors
        if errors:
            raise SettingsError(errors)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder.parent / f".{self.folder.name}.lock", blocking=False)
        try:
            self._lock.acquire()
        except Timeout as busy:
            message = f"another ladder runs in {self.folder}; wait for it, or give another --output_dir"
            raise SettingsError([message]) from busy
        try:
            self._take_folder()
        except BaseException:
            self._lock.release()
            raise
        self.signals.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.signals.__exit__()
        self._lock.release()

    def _take_folder(self) -> None:
        from . import identity

        path = self.folder / "ladder.json"
        results = list(self.folder.glob("*/round-*"))
        if self.fresh:
            old = {path, *self.folder.glob("report.*"), *self.folder.glob("wandb")}
            for made in {*(round_.parent for round_ in results), *old}:
                shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        now = identity.identify(self.rungs, self._settings, self._opening)
        before = now
        if path.exists():
            before = identity.read(path)
        elif results and not self.fresh:
            raise SettingsError(
                [f"{self.folder} holds results of no known ladder; give another --output_dir, or --fresh"]
            )
        identity.refuse_changes(self.folder, before, now)
        self._data = {name: rung["data"] for name, rung in now["rungs"].items()}
        orphans = [p.pid for p in psutil.process_iter() if self._runs_here(p)]
        if orphans:
            raise SettingsError(
                [f"a rung of an earlier ladder still runs in {self.folder} (process {orphans[0]}); end it"]
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"schema": 1, "name": self.name, "group": self.group, "order": [r.name for r in self.rungs], **now}
        content["rungs"] = {**before["rungs"], **now["rungs"]}
        write_json(path, content)

    def _runs_here(self, process: psutil.Process) -> bool:
        """Whether a process is a rung in this folder, left by a ladder that was killed."""
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            ours = any(word.startswith(f"{self.folder}{os.sep}") for word in words)
            trains = any(word.endswith(tuple(ENGINES.values())) for word in words)
            return ours and trains and process.cwd() == str(Path.cwd())
        return False

    def run(self, repeats: int) -> Iterator[tuple[Rung, dict[str, Any]]]:
        """Runs every rung that is not finished, round after round, so that a drifting machine favours none.

        Yields each rung that was run, with its result. A signal ends the rung that runs, which keeps the reason, and
        the ladder with it; what the caller does between two rungs, and after the last, is not interrupted.

        Raises:
            SettingsError: the data of a rung has changed since the ladder began.
        """
        from . import identity

        try:
            for number in range(1, repeats + 1):
                for rung in self.rungs:
                    folder = round_folder(self.folder / rung.name, number)
                    result = read_result(folder)
                    turn = f" (round {number} of {repeats})" if repeats > 1 else ""
                    if result and result["status"] in FINISHED:
                        print(f"{rung.name}{turn}: finished before ({result['status']})", flush=True)
                        continue
                    print(f"\n{rung.name}{turn}\n  {shlex.join(rung.command(folder))}", flush=True)
                    self._started = time.monotonic()
                    identity.refuse_changed_data(rung, self._settings[rung.name], self._data[rung.name])
                    result = run_rung(rung, folder)
                    with self.signals.deferred():
                        yield rung, result
        except (KeyboardInterrupt, Terminated) as error:
            self.exit_code = exit_code(error)
        finally:
            self.signals.end()

    def has_results(self) -> bool:
        """Whether any rung has ever written a result here."""
        return any(self.folder.glob("*/round-*/result.json"))

    def took(self) -> float:
        """Seconds since the last rung was started."""
        return time.monotonic() - self._started

    def track(self, report: Report) -> list[str]:
        """Shows the report in W&B beside the rungs' runs, if they are there. Returns lines that say where it is.

        A finished ladder that was only looked at again has nothing new to tell.
        """
        from ..tracking.ladder_report import track_report

        return [] if self._started is None else track_report(report, self.folder, self.group)


def folder_errors(folder: Path) -> list[str]:
    """Why a ladder's folder cannot be made: its name is none, a file stands in the way, or nothing can be written."""
    errors: list[str] = []
    checked("output_dir", str(folder), "--output_dir", errors)
    if not errors and (why_not := no_folder(str(folder))):
        errors.append(f"--output_dir {folder}: {why_not}")
    return errors


def round_folder(folder: Path, number: int) -> Path:
    """Where one round of a rung is kept."""
    return folder / f"round-{number}"


def group_of(name: str, folder: Path, fresh: bool) -> str:
    """The tracker's group: that of the ladder which was begun in this folder, else a new one."""
    try:
        if not fresh:
            return str(json.loads((folder / "ladder.json").read_text(encoding="utf-8"))["group"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        pass  # there is none, or it is damaged, which is said later
    return f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
