"""Which rungs, in which order, each in a fresh process; picks up where it was stopped."""

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml
from filelock import FileLock, Timeout

from .environment import machine
from .flags import read_flags
from .problems import SettingsError, closest
from .resolve import parse
from .result import read_result, write_json
from .run import check
from .settings import FIELDS
from .techniques import MEASURED_ACCELERATORS

ROOT = Path(__file__).parents[2]
FILE_KEYS = ("flags", "rungs")
# What the ladder itself decides for each rung.
OWN_FLAGS = ("run_name", "group", "output_dir")
# A rung with one of these has said what it has to say; any other is run again.
FINISHED = ("ok", "out_of_memory", "diverged", "skipped")
SECONDS_TO_END = 30


@dataclass(frozen=True)
class Rung:
    """A name, and the arguments of `ablate.py` that make it, its folder aside."""

    name: str
    arguments: tuple[str, ...]

    def command(self, folder: Path | None = None) -> list[str]:
        """What a person would type. Port 0 lets Accelerate find a free one, should it need one."""
        place = ["--output_dir", str(folder)] if folder else []
        return ["accelerate", "launch", "--main_process_port", "0", "recipes/ablate.py", *self.arguments, *place]


def read_rungs(path: str, extra: Sequence[str], group: str | None) -> list[Rung]:
    """The rungs of a ladder file, with flags that go to each of them.

    Args:
        path: YAML with `rungs`, a mapping of names to the flags that differ, and `flags`, those that all share.
        extra: flags from the command line for every rung; they go before the file's shared ones.
        group: the tracker's group of all rungs.

    Raises:
        SettingsError: with all that is wrong with the file and the extra flags.
    """
    problems: list[str] = []
    shared, rungs = _load(path, problems)
    given, _ = read_flags(extra, problems, None)
    # What each rung sets by its flags or by its config.
    resolved = {rung: parse(_arguments({**shared, **flags}), {})[0] for rung, flags in rungs.items()} if given else {}
    for name in given:
        differs = len({str(getattr(settings, name)) for settings in resolved.values()}) > 1
        if name in OWN_FLAGS or differs:
            why = "the ladder makes it itself" if name in OWN_FLAGS else "the rungs differ in it"
            problems.append(f"--{name} cannot be given to every rung: {why}; change {path}, or a copy of it")
    if problems:
        raise SettingsError(problems)
    made = []
    for rung, flags in rungs.items():
        named = {**shared, **given, **flags, "run_name": rung, "group": group}
        made.append(Rung(rung, tuple(_arguments(named))))
    return made


def _load(path: str, problems: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The shared flags and the rungs' own, both checked for names; values are checked with each rung's settings."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        shipped = ", ".join(str(file) for file in sorted(Path("recipes/ladders").glob("*.yaml")))
        problems.append(f"--ladder {path}: no such file; shipped here: {shipped}")
        return {}, {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problems.append(f"--ladder {path}: cannot be read as YAML ({str(error).splitlines()[0]})")
        return {}, {}
    rungs = content.get("rungs") if isinstance(content, dict) else None
    if not isinstance(rungs, dict) or not rungs:
        problems.append(f"--ladder {path}: needs `rungs:`, names with the flags that differ, as in default.yaml")
        return {}, {}
    for key in content:
        if key not in FILE_KEYS:
            problems.append(
                f"--ladder {path}: unknown key {key!r}{closest(str(key), FILE_KEYS)}; it takes flags and rungs"
            )
    groups = {"flags": content.get("flags") or {}, **{name: flags or {} for name, flags in rungs.items()}}
    for group, flags in groups.items():
        if (
            not isinstance(group, str)
            or not re.fullmatch(r"\w[\w.+=-]*", group)
            or (group == "flags" and group in rungs)
        ):
            problems.append(
                f"--ladder {path}: rung {group!r}: a name must be text, not `flags`, and name a folder "
                "(letters, digits and . _ - + =)"
            )
        if not isinstance(flags, dict):
            problems.append(f"--ladder {path}: {group}: must be `flag: value` lines, not {flags!r}")
            groups[group] = {}
            continue
        for flag in flags:
            if flag not in FIELDS or FIELDS[flag].metadata["group"] is None or flag in OWN_FLAGS:
                problems.append(f"--ladder {path}: {group}: no flag {flag!r}{closest(str(flag), FIELDS)}")
    return groups.pop("flags"), groups


def _processes() -> int:
    """How many processes `accelerate launch` starts here when it is told nothing: one a GPU."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return torch.accelerator.device_count() if device is not None and device.type in MEASURED_ACCELERATORS else 1


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a person types them."""
    typed = []
    for name, value in flags.items():
        if value is True:
            typed.append(f"--{name}")
        elif value is not None:
            text = json.dumps(value) if isinstance(value, dict | bool) else str(value)
            typed += [f"--{name}", text]
    return typed


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
        for rung in self.rungs:
            for problem in check(rung.arguments, environ={"WORLD_SIZE": str(_processes())})[1]:
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
            f"{name}: it was {before['machine'].get(name)} and is now {value}"
            for name, value in now["machine"].items()
            if before["machine"].get(name) != value
        ]
        if changed:
            mend = "give another --output_dir, or --fresh to start it anew"
            raise SettingsError([f"{self.folder} was made otherwise ({line}); {mend}" for line in changed])

    def _runs_here(self, process: psutil.Process) -> bool:
        """Whether a process is a rung in this folder, left by a ladder that was killed."""
        with contextlib.suppress(psutil.Error, OSError):
            words = process.cmdline()
            ours = any(word.startswith(f"{self.folder}{os.sep}") for word in words)
            return ours and any(word.endswith("ablate.py") for word in words) and process.cwd() == str(Path.cwd())
        return False

    def _identity(self, rung: Rung) -> dict[str, Any]:
        config = rung.arguments[rung.arguments.index("--config") + 1]
        return {"command": shlex.join(rung.command()), "config": Path(config).read_text(encoding="utf-8")}

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
                after_each(rung, self._run(rung, folder), started)

    def _run(self, rung: Rung, folder: Path) -> dict[str, Any]:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        # The command that was printed, by this Python and from any folder. --quiet leaves out the launcher's own
        # traceback: the reason stands in the rung's result.
        launcher = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
        command = [str(ROOT / part) if part == "recipes/ablate.py" else part for part in rung.command(folder)[2:]]
        log = folder / "log.txt"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*launcher, *command],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                # Ctrl-C is the ladder's: it ends the rung itself and waits for it.
                start_new_session=True,
            )
            try:
                _wait(process, folder)
            finally:
                end_processes(process)
        result = read_result(folder)
        if result is None:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            said = lines[-1] if lines else "it printed nothing"
            result = _no_result(rung, f"exit code {process.returncode} before the run began: {said}")
            write_json(folder / "result.json", result)
        return result


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Waits for the rung, and shows a person at which step it is."""
    shown = ""
    while True:
        try:
            process.wait(timeout=0.2)
            break
        except subprocess.TimeoutExpired:
            if sys.stderr.isatty():
                shown = _show_step(folder, shown)
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _show_step(folder: Path, shown: str) -> str:
    try:
        steps = (folder / "metrics.jsonl").read_text(encoding="utf-8").count("\n")
    except OSError:
        steps = 0
    text = f"  step {steps}" if steps else "  starting"
    if text != shown:
        print(f"\r{text}\x1b[K", end="", file=sys.stderr, flush=True)
    return text


def end_processes(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a rung: asks it, waits for it to write its result, and then insists.

    Asked are the launcher and what shares its process group. Helpers of the rung, such as W&B's own process, are not:
    the rung needs them to end in order. A second Ctrl-C does not wait.
    """
    family = _family(process.pid)
    try:
        if family and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        psutil.wait_procs(family, timeout=SECONDS_TO_END)
    finally:
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()


def _family(leader: int) -> list[psutil.Process]:
    """The processes that a launcher started and that still run: its descendants, and those of its process group."""
    family = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ancestors = {parent.pid for parent in process.parents()}
            grouped = hasattr(os, "getpgid") and os.getpgid(process.pid) == leader
            if (leader in ancestors or grouped) and process.status() != psutil.STATUS_ZOMBIE:
                family.append(process)
    return family


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


def _no_result(rung: Rung, reason: str) -> dict[str, Any]:
    groups = ("settings", "origins", "environment", "evidence", "loss", "throughput", "memory", "compile", "amp")
    return {"schema": 1, "name": rung.name, "status": "failed", "reason": reason, **{name: {} for name in groups}}


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    if before["command"] != now["command"]:
        return f"it was `{before['command']}` and is now `{now['command']}`"
    return "its Accelerate file has changed"
