"""Which rungs are left to run in a folder, each in a fresh process; picks up where it was stopped."""

import contextlib
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock, Timeout

from ..data.fingerprint import changes, fingerprints
from ..environment import machine
from ..errors import SettingsError
from ..report.comparable import differences
from ..result_file import failed_result, read_result, write_json, write_result
from ..run.configure import check
from ..settings.fields import Settings
from .ladder_file import ONE_PROCESS, Rung
from .processes import end_processes, last_words, wait_for

ROOT = Path(__file__).parents[3]
MEND = "give another --output_dir, or --fresh to start it anew"
# What the user's shell says of one W&B run; each rung is a run of its own.
ONE_RUN = ("WANDB_RUN_ID", "WANDB_RESUME")
# A rung with one of these has said what it has to say; any other is run again.
FINISHED = ("ok", "out_of_memory", "diverged", "skipped")


class Ladder:
    """The rungs of one folder: what was run there, with which arguments, and what is left to run.

    A context that holds the folder, so that no other ladder writes into it.

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

    def __enter__(self) -> "Ladder":
        problems: dict[str, list[str]] = {}
        self._settings: dict[str, Settings] = {}
        for rung in self.rungs:
            environ = {"WORLD_SIZE": str(rung.processes)}
            self._settings[rung.name], found = check(rung.arguments, environ=environ)
            for problem in found or rung.launch_problems():
                problems.setdefault(problem, []).append(rung.name)
        if problems:
            everywhere = len(self.rungs)
            raise SettingsError(
                problem if len(names) == everywhere else f"{', '.join(names)}: {problem}"
                for problem, names in problems.items()
            )
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
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _take_folder(self) -> None:
        path = self.folder / "ladder.json"
        results = list(self.folder.glob("*/round-*"))
        if self.fresh:
            for made in {*(round_.parent for round_ in results), path, *self.folder.glob("report.*")}:
                shutil.rmtree(made) if made.is_dir() else made.unlink(missing_ok=True)
        now = {"machine": machine(), "rungs": {r.name: self._identity(r) for r in self.rungs}}
        before = now
        if path.exists():
            try:
                before = json.loads(path.read_text(encoding="utf-8"))
            except json.JSONDecodeError as error:
                raise SettingsError(
                    [f"{path} is damaged; give another --output_dir, or --fresh to start anew"]
                ) from error
        elif results and not self.fresh:
            raise SettingsError(
                [f"{self.folder} holds results of no known ladder; give another --output_dir, or --fresh"]
            )
        self._refuse_changes(before, now)
        self._data = {name: identity["data"] for name, identity in now["rungs"].items()}
        orphans = [p.pid for p in psutil.process_iter() if self._runs_here(p)]
        if orphans:
            raise SettingsError(
                [f"a rung of an earlier ladder still runs in {self.folder} (process {orphans[0]}); end it"]
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {"schema": 1, "name": self.name, "group": self.group, "order": [r.name for r in self.rungs], **now}
        content["rungs"] = {**before["rungs"], **now["rungs"]}
        write_json(path, content)

    def _refuse_changes(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Figures of other settings, configs, versions or machines are never mixed with these."""
        changed = [
            f"{rung}: {_difference(before['rungs'][rung], identity)}"
            for rung, identity in now["rungs"].items()
            if before["rungs"].get(rung, identity) != identity
        ]
        changed += [
            f"{name}: it was {then} and is now {value}"
            for name, (then, value) in differences(before["machine"], now["machine"]).items()
        ]
        if changed:
            raise SettingsError([f"{self.folder} was made otherwise ({line}); {MEND}" for line in changed])

    def _runs_here(self, process: psutil.Process) -> bool:
        """Whether a process is a rung in this folder, left by a ladder that was killed."""
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            ours = any(word.startswith(f"{self.folder}{os.sep}") for word in words)
            return ours and any(word.endswith("ablate.py") for word in words) and process.cwd() == str(Path.cwd())
        return False

    def _identity(self, rung: Rung) -> dict[str, Any]:
        config = Path(rung.config).read_text(encoding="utf-8")
        data = fingerprints(self._settings[rung.name])
        return {"command": shlex.join(rung.command()), "config": config, "data": data}

    def climb(self, repeats: int, after_each: Callable[[Rung, dict[str, Any], float], None]) -> None:
        """Runs every rung that is not finished, round after round, so that a drifting machine favours none.

        `after_each` is given the rung, its result and the monotonic time at which it was started.
        """
        for number in range(1, repeats + 1):
            for rung in self.rungs:
                folder = round_folder(self.folder / rung.name, number)
                result = read_result(folder)
                if result and result["status"] in FINISHED:
                    print(f"{rung.name}{_round(number, repeats)}: finished before ({result['status']})", flush=True)
                    continue
                print(f"\n{rung.name}{_round(number, repeats)}\n  {shlex.join(rung.command(folder))}", flush=True)
                started = time.monotonic()
                self._refuse_changed_data(rung)
                after_each(rung, self._run(rung, folder), started)

    def _refuse_changed_data(self, rung: Rung) -> None:
        """Rungs of other data cannot be compared: one that changes while the ladder is climbed ends it."""
        lines = changes(self._data[rung.name], fingerprints(self._settings[rung.name]))
        if lines:
            raise SettingsError([f"{rung.name}: {line} since the ladder began; {MEND}" for line in lines])

    def _run(self, rung: Rung, folder: Path) -> dict[str, Any]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The command that was printed, by this Python and from any folder. --quiet leaves out the launcher's own
        # traceback: the reason stands in the rung's result.
        launcher = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
        shipped = ("recipes/ablate.py", ONE_PROCESS)
        command = [str(ROOT / part) if part in shipped else part for part in rung.command(folder)[2:]]
        log = folder / "log.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={name: value for name, value in os.environ.items() if name not in ONE_RUN}
                | {"PYTHONIOENCODING": "utf-8"},
                # Ctrl-C is the ladder's: it ends the rung itself and waits for it.
                start_new_session=True,
            )
            try:
                wait_for(process, folder)
            finally:
                end_processes(process)
        result = read_result(folder)
        if result is None:
            said = last_words(log.read_text(encoding="utf-8", errors="replace"))
            result = failed_result(rung.name, f"exit code {process.returncode} before the run began: {said}")
            write_result(folder, result)
        return result


def round_folder(folder: Path, number: int) -> Path:
    """Where one round of a rung is kept."""
    return folder / f"round-{number}"


def group_of(name: str, folder: Path, fresh: bool) -> str:
    """The tracker's group: that of the ladder which was begun in this folder, else a new one."""
    try:
        if not fresh:
            return json.loads((folder / "ladder.json").read_text(encoding="utf-8"))["group"]
    except (OSError, json.JSONDecodeError, KeyError):
        pass
    return f"{name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def _round(number: int, repeats: int) -> str:
    return f" (round {number} of {repeats})" if repeats > 1 else ""


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before["command"] != now["command"]:
        return f"it was `{before['command']}` and is now `{now['command']}`"
    if before["config"] == now["config"]:
        known = before.get("data", {})
        return "; ".join(changes(known, now["data"])) or "what its data was is not known"
    return "its Accelerate file has changed"
