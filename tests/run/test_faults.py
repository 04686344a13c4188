"""A run that is ended at any moment, by real signals: what it leaves is whole and true, and the next one works."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

from rungwise.result_file import UNFINISHED

import psutil
import pytest
from commands import clone, run, running, wait_for_steps
from conftest import SEED
from forked import forking, result_in, rows_in
from harness import HANGS, MODEL

# Of each signal.
RUNS = 50
STEPS = 12
# The share of them that draws pictures once all is measured, for as long as they train.
SHOWN = 0.1
TYPED = ["--config_overrides", MODEL, "--block_size", "32", "--forecast", "false"]
# What a shell says of the process, or what ends it where no run has begun.
CODES = {signal.SIGINT: (130, -2), signal.SIGTERM: (143, -15), signal.SIGKILL: (-9,)}
WORDS = {130: "interrupted after {} steps", 143: "terminated after {} steps"}


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with forking(tmp_path_factory.mktemp("forked")) as server:
        yield server


@pytest.fixture(scope="module")
def whole(forked, tmp_path_factory):
    """The losses of a run that nothing happens to, and the seconds to its result: the second's, as others'."""
    folder = tmp_path_factory.mktemp("whole")
    for _ in range(2):
        began = time.time()
        assert forked.run("--output_dir", str(folder)).code == 0
        seconds = (folder / "result.json").stat().st_mtime - began
    return result_in(folder)["loss"]["trajectory"], seconds


def before_and_after(folder):
    """What a run may find, and leave as it is if it has not begun."""
    return {path.name: path.read_bytes() for path in folder.glob("*.json*") if path.suffix != ".tmp"}


@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_a_signal_at_any_moment(forked, whole, tmp_path, number):
    """One run after the other in one folder; some begin, some go on from the last checkpoint."""
    losses, seconds = whole
    draw = random.Random(f"{SEED} {number.name}")
    folder = tmp_path / "run"
    folder.mkdir()
    stopped = []
    for _ in range(RUNS):
        resume = draw.choice([[], ["--resume_from_checkpoint", "latest"]])
        pictures = ["--plots", str(draw.random() < SHOWN).lower()]
        found = before_and_after(folder)
        process = forked.start("--output_dir", str(folder), *resume, *pictures)
        # More often while it trains than before.
        time.sleep(draw.triangular(0, 1.1 * seconds, 0.8 * seconds))
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        ended = forked.wait()
        assert ended.code in (0, *CODES[number]), ended.said
        if before_and_after(folder) != found:
            is_true(folder, ended, losses)
            stopped.append(len(rows_in(folder)))
    assert any(0 < steps < STEPS for steps in stopped), stopped
    assert forked.run("--output_dir", str(folder), "--resume_from_checkpoint", "latest").code == 0
    assert result_in(folder)["loss"]["trajectory"] == losses


def is_true(folder, ended, losses):
    """The result of a run that has begun says what has become of it, and of each step that was kept."""
    result, rows = result_in(folder), rows_in(folder)
    trajectory = result["loss"].get("trajectory", [])
    assert [row["train/loss"] for row in rows] == losses[: len(rows)]
    if ended.code in (0, *WORDS):
        assert not [path for path in folder.iterdir() if path.suffix in (".tmp", ".partial")]
        assert not (folder / ".reserve").exists()
    if result["status"] == "ok":
        assert trajectory == losses and len(rows) == STEPS
    elif ended.code in WORDS:
        assert trajectory == losses[: len(rows)]
        assert (result["status"], result["reason"]) == ("failed", WORDS[ended.code].format(len(rows)))
    else:
        assert (result["status"], result["reason"]) == ("failed", UNFINISHED), ended


@pytest.mark.breadth(1)
@pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)
def test_the_command_as_it_is_typed(tmp_path, number):
    """With W&B, whose own process ends with the run, whatever ends that."""
    home, folder = clone(tmp_path), tmp_path / "runs" / "fp32"
    flags = ["--config", "accelerate_configs/fp32.yaml", *TYPED, "--dataset_name", "synthetic"]
    command = [sys.executable, "recipes/ablate.py", *flags, "--checkpointing_steps", "20"]
    with subprocess.Popen(
        [*command, "--max_steps", "200000"],
        cwd=home,
        env={**os.environ, "WANDB_MODE": "offline"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        wait_for_steps(process, folder / "metrics.jsonl", random.Random(f"{SEED} typed {number}").randrange(60))
        children = psutil.Process(process.pid).children(recursive=True)
        assert children
        process.send_signal(number)
        assert b"Traceback" not in process.communicate(timeout=HANGS)[1]
    assert process.returncode in CODES[number]
    psutil.wait_procs(children, timeout=HANGS)
    assert running(children) == []
    result, rows = result_in(folder), rows_in(folder)
    steps = len(rows)
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    reason = WORDS[process.returncode].format(steps) if process.returncode in WORDS else UNFINISHED
    assert (result["status"], result["reason"]) == ("failed", reason)
    if reason != UNFINISHED:
        assert len(result["loss"]["trajectory"]) == steps and result["memory"]["peak_allocated_mib"] > 0
    resume = ["--resume_from_checkpoint", "latest", "--report_to", "none", "--max_steps", str(steps + 20)]
    done = run(home, *command, *resume)
    assert done.returncode == 0, done.stderr
    assert len(result_in(folder)["loss"]["trajectory"]) == len(rows_in(folder)) == steps + 20
