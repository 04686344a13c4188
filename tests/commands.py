"""Commands as a person types them, in a folder that looks like a clone."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ablate
import psutil
from accelerate.state import AcceleratorState, GradientState
from harness import HANGS, MODEL, ROOT

BIN = Path(sys.executable).parent
LAUNCH = [str(BIN / "accelerate"), "launch"]
# Of a person who chose no number of threads.
ALL_CORES = {"OMP_NUM_THREADS": None}
TINY = [
    "--config_overrides",
    MODEL.replace("vocab_size=128", "vocab_size=256"),
    "--block_size",
    "32",
    "--forecast",
    "false",
    "--plots",
    "false",
    "--max_steps",
    "14",
]


def clone(folder: Path) -> Path:
    """Makes a folder look like a clone, so that no run of the person who tests is overwritten."""
    for name in ("recipes", "accelerate_configs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(home: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in such a folder and waits for it. `environment` changes that of the tests; None unsets."""
    environment = {**os.environ, "COLUMNS": "200", **options.pop("environment", {})}
    return subprocess.run(
        command,
        cwd=home,
        env={name: value for name, value in environment.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", HANGS),
        check=False,
        **options,
    )


def wait_for_steps(process: subprocess.Popen[Any], metrics: Path, steps: int) -> None:
    """Waits until a run that a process has started is through so many steps and more."""
    deadline = time.monotonic() + HANGS
    while not (metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") > steps):
        assert process.poll() is None, f"ended with {process.returncode} before step {steps}"
        assert time.monotonic() < deadline
        time.sleep(0.1)


def trainers(process: subprocess.Popen[Any]) -> dict[int, psutil.Process]:
    """The processes below one that train, without their launcher, by rank. Others may come and go meanwhile."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            words = child.cmdline()
            if any(word.endswith("ablate.py") for word in words) and "accelerate.commands.launch" not in words:
                # A process that one of them is just starting has its words until it has its own; it is found later.
                found.setdefault(int(child.environ().get("RANK", "0")), child)
    return found


def running(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; one that nobody has asked for its exit code has."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process] if process.status() != psutil.STATUS_ZOMBIE and process.is_running() else []
    return found


def ablate_here(folder: Path, *flags: str) -> dict[str, Any]:
    """The result of `recipes/ablate.py` with these flags, run to its end in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert ablate.main([*flags, "--output_dir", str(folder)]) == 0
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def result_of(home: Path, name: str) -> dict[str, Any]:
    """The result of a run in such a folder."""
    return json.loads((home / "runs" / name / "result.json").read_text(encoding="utf-8"))
