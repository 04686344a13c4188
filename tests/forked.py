"""Runs of `recipes/ablate.py`, each a process that imports nothing: it is forked from one that has.

That one reads a line of JSON for each run, and answers with the number of its process and, once that has ended, with
its exit code: negative for a signal that ended it. It trains nothing itself, since a fork has none of its threads.
"""

import atexit
import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import ENVIRONMENT, MODEL, ROOT

# A run of half a second: 12 steps, and checkpoints after 5 and 10.
TINY = ["--config", "accelerate_configs/fp32.yaml", "--config_overrides", MODEL, "--block_size", "32"]
TINY += ["--dataset_name", "synthetic", "--forecast", "false", "--report_to", "none", "--plots", "false"]
TINY += ["--max_steps", "12", "--untimed_steps", "2", "--checkpointing_steps", "5"]


@dataclass
class Ended:
    """A run that has ended."""

    code: int
    said: str


class Forked:
    """A process that runs are forked from, one after the other."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path):
        self._process, self._log = process, log
        # Its files, as it sees them.
        self.root = Path(f"/proc/{process.pid}/root")

    def start(self, *argv: str, before: str = "", **environment: str) -> int:
        """Starts a run with these arguments. Returns the number of its process.

        Args:
            argv: after those of `TINY`.
            before: Python that the run's process executes first: what it is to suffer.
            environment: on top of this process's.
        """
        self._log.write_bytes(b"")
        asked = {"argv": [*TINY, *argv], "log": str(self._log), "before": before, "environment": environment}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def wait(self) -> Ended:
        """Waits for the run that was started last."""
        code = int(self._process.stdout.readline())
        return Ended(code, self._log.read_text(encoding="utf-8", errors="replace"))

    def run(self, *argv: str, before: str = "", **environment: str) -> Ended:
        """Starts a run and waits for its end."""
        self.start(*argv, before=before, **environment)
        return self.wait()


@contextlib.contextmanager
def forking(folder: Path, *within: str, **environment: str) -> Iterator[Forked]:
    """Such a process, while the context lasts.

    Args:
        folder: keeps what a run prints.
        within: a command that becomes this process.
        environment: on top of that of the tests.
    """
    path = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT / "recipes")])
    with subprocess.Popen(
        [*within, sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", **environment},
    ) as process:
        yield Forked(process, folder / "said.txt")
        process.stdin.close()


def result_in(folder: Path) -> dict[str, Any]:
    """The result of a run, as it stands in its folder."""
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """Its metrics, a row a step."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def losses_of_a_whole_run(forked: Forked, folder: Path) -> list[float]:
    """Of a run that nothing happens to, and that no tracker is told of."""
    assert forked.run("--output_dir", str(folder)).code == 0
    return result_in(folder)["loss"]["trajectory"]


def serve() -> dict[str, Any] | None:
    """Answers until there is nothing more to read. Returns what was asked in each process that is to run it."""
    for line in sys.stdin:
        if child := os.fork():
            print(child, flush=True)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
            continue
        asked = json.loads(line)
        said = os.open(asked["log"], os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(said, stream)
        # Where a test is run in the background, Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ.update(asked["environment"])
        return asked
    return None


def main() -> int:
    """Serves; and in each process that was forked, trains."""
    from rungwise.report import plots  # noqa: F401 (with what draws)
    from rungwise.run import measurement
    from rungwise.run.configure import build_datasets, configure
    from rungwise.techniques import product_kernels

    import ablate
    import torch

    torch.set_num_threads(1)
    build_datasets(*configure(TINY))  # imports the rest
    # Measured for half of a tiny run's time, and not the question.
    measurement.matmul_flops_per_second = product_kernels.matmul_flops_per_second = lambda *_: 1e12
    gc.freeze()  # else a run that ends would take seconds to look through all that was imported
    if asked := serve():
        exec(asked["before"], {})
        leave(ablate.main(asked["argv"]))
    return 0


def leave(code: int) -> None:
    """Ends a process as Python does, but for taking apart all that was imported: that takes longer than the run."""
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


if __name__ == "__main__":
    raise SystemExit(main())
