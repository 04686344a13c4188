"""A rung's processes: starts them, waits for them, ends all of them in order, and asks what they left."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from ..errors import REFUSAL
from ..redact import redacted
from ..result_file import failed_result, read_result, write_result
from ..settings.choices import ENGINES
from .ladder_file import ONE_PROCESS, Rung

ROOT = Path(__file__).parents[3]
# A run's last words to its tracker take many times longer on a busy machine; who will not wait interrupts once more.
SECONDS_TO_END = 120
SECONDS_TO_DIE = 5
# What the user's shell says of one W&B run; each rung is a run of its own.
ONE_RUN = ("WANDB_RUN_ID", "WANDB_RESUME")


def run_rung(rung: Rung, folder: Path) -> dict[str, Any]:
    """Runs a rung in fresh processes and in an empty folder, and waits for its end. Returns its result.

    An exception that comes meanwhile, such as a signal's, ends the processes first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # The command that was printed, by this Python and from any folder. --quiet leaves out the launcher's own
    # traceback: the reason stands in the rung's result.
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--quiet"]
    shipped = (*ENGINES.values(), ONE_PROCESS)
    command = [str(ROOT / part) if part in shipped else part for part in rung.command(folder)[2:]]
    environment = {name: value for name, value in os.environ.items() if name not in ONE_RUN}
    # W&B's offline runs of a ladder lie side by side, where `wandb leet` shows them together.
    environment.setdefault("WANDB_DIR", str(folder.parents[1]))
    log = folder / "log.txt"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*launcher, *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment | {"PYTHONIOENCODING": "utf-8"},
            # Ctrl-C is the ladder's: it ends the rung itself and waits for it.
            start_new_session=True,
        )
        try:
            wait_for(process, folder)
        finally:
            end_processes(process)
    # What libraries print tells where they are installed.
    said = redacted(log.read_text(encoding="utf-8", errors="replace"))
    log.write_text(said, encoding="utf-8")
    result = read_result(folder)
    if result is None:
        words = last_words(said)
        result = failed_result(rung.name, f"exit code {process.returncode} before the run began: {words}")
        write_result(folder, result)
    return result


def wait_for(process: subprocess.Popen[bytes], folder: Path) -> None:
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
    left = family = _family(process.pid)
    try:
        if family and hasattr(os, "killpg"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=SECONDS_TO_END)
    finally:
        for member in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        process.wait()
        psutil.wait_procs(left, timeout=SECONDS_TO_DIE)


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


def last_words(log: str) -> str:
    """Why a rung without a result has ended, out of what it and its launcher printed: one line.

    The errors of its call, if it was refused; else its own last line, or, if it has none, the launcher's for it.
    """
    if refusal := re.search(REFUSAL, log, re.MULTILINE):
        errors = (line.strip().removeprefix("- ") for line in refusal[1].splitlines())
        return "; ".join(errors)
    own = re.split(r"^[IWE]\d+ .*torch/distributed/elastic/", log, maxsplit=1, flags=re.MULTILINE)[0]
    if lines := own.strip().splitlines():
        return lines[-1]
    causes = re.findall(r"^ *traceback : (.*)", log, re.MULTILINE)
    return causes[-1] if causes else "it printed nothing"
