"""A real small ladder: killed half way, continued, with every way for a rung to end."""

import contextlib
import json
import resource
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from commands import clone, running, trainers, wait_for_steps
from harness import HANGS, wandb_records

LADDER = """
flags: {config: accelerate_configs/fp32.yaml, dataset_name: synthetic, block_size: 32, max_steps: 13, forecast: false,
        config_overrides: "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2", plots: false}
rungs:
  fp32: {}
  too-large: {config_overrides: "vocab_size=50257,n_positions=32,n_embd=32,n_layer=2", global_batch_size: 8192}
  diverges: {learning_rate: 1.0e+20, max_grad_norm: 0}
  offload: {gradient_checkpointing: true, gradient_checkpointing_kwargs: {offload: true}}
  slow: {max_steps: 200000, report_to: none}
  accum: {max_steps: 200000, gradient_accumulation_steps: 2}
"""
# Enough to start, too little for the logits of 8192 rows, 53 GB.
ADDRESSES = 14 * 2**30
ENDS = {"fp32": "ok", "too-large": "out_of_memory", "diverges": "diverged", "offload": "skipped"}


@pytest.fixture
def home(tmp_path):
    return clone(tmp_path)


@pytest.fixture
def start(home):
    """Starts the recipe on a ladder file. A test that fails half way leaves nothing running."""
    started = []

    def started_on(text, **options):
        (home / "some.yaml").write_text(text, encoding="utf-8")
        command = [sys.executable, "recipes/ladder.py", "--ladder", "some.yaml"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, cwd=home, text=True, **pipes, **options))
        return started[-1]

    yield started_on
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in [*psutil.Process(process.pid).children(recursive=True), process]:
                member.kill()


def result_of(home, rung):
    return json.loads((home / "runs/some" / rung / "round-1/result.json").read_text(encoding="utf-8"))


def tracked(home):
    """Kind, name and group of the runs that lie in the ladder's folder for W&B, and all that is kept of the report."""
    runs, report = [], ""
    for folder in sorted((home / "runs/some/wandb").glob("offline-run-*")):
        records = wandb_records(folder)
        run = next(json.loads(line)["run"] for line in records.splitlines() if '"type":"run"' in line)
        runs.append((run["job_type"], run["display_name"], run["run_group"]))
        report += records if run["job_type"] == "report" else ""
    return runs, report


def test_killed_half_way_and_continued_with_every_way_for_a_rung_to_end(home, start):
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))}
    process = start(LADDER, **limited)
    wait_for_steps(process, home / "runs/some/slow/round-1/metrics.jsonl", 5)
    # A rung that is killed is a row, and the next one still runs.
    [killed] = trainers(process).values()
    killed.kill()
    wait_for_steps(process, home / "runs/some/accum/round-1/metrics.jsonl", 5)
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 143, errors
    assert running(children) == []
    assert "ended before it was finished (killed?)" in output and "stopped; the same command continues" in output
    assert "Traceback" not in errors
    assert {rung: result_of(home, rung)["status"] for rung in ENDS} == ENDS
    assert "raise --gradient_accumulation_steps" in result_of(home, "too-large")["reason"]
    for reason in ("out of memory in forward of step 1", "the loss of step", "this run is on the CPU"):
        assert reason in output
    # The rung that ran ended in order, in W&B too, and the report has all rows.
    ended = result_of(home, "accum")
    assert ended["reason"].startswith("terminated after")
    rows = (home / "runs/some/accum/round-1/metrics.jsonl").read_text(encoding="utf-8").count("\n")
    assert len(ended["loss"]["trajectory"]) == rows and ended["throughput"]["timed_steps"] > 0
    summary = wandb_records(max((home / "runs/some/wandb").glob("offline-run-*")), "--summary")
    assert "terminated after" in summary and "memory/peak_allocated_mib" in summary
    page = (home / "runs/some/report.md").read_text(encoding="utf-8")
    assert "| fp32 | ok |" in page and "| slow | failed: ended before" in page
    assert "| accum | failed: terminated after" in page
    first = result_of(home, "fp32")["environment"]["date"]

    text = LADDER.replace("200000", "14")
    refused = start(text)
    _, errors = refused.communicate(timeout=HANGS)
    assert refused.returncode == 2 and "--max_steps 14" in errors and "--fresh" in errors

    known = home / "runs/some/ladder.json"
    known.write_text(known.read_text().replace("200000", "14"))
    again = start(text)
    output, errors = again.communicate(timeout=HANGS)
    # Not each rung ran to its end.
    assert again.returncode == 1, output + errors
    assert "git root" not in errors and "Traceback" not in errors
    for rung, status in ENDS.items():
        assert f"{rung}: finished before ({status})" in output
    assert result_of(home, "fp32")["environment"]["date"] == first
    assert [result_of(home, rung)["status"] for rung in ("slow", "accum")] == ["ok"] * 2
    command = "accelerate launch --main_process_port 0 --config_file accelerate_configs/one_process.yaml recipes/"
    assert command in output and "outside training" in output
    is_one_group(home)

    shutil.rmtree(home / "runs/some/accum")
    only = subprocess.run(
        [sys.executable, "recipes/ladder.py", "--report_only", "runs/some"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert not (home / "runs/some/accum").exists()
    assert only.returncode == 1, only.stderr
    assert "\naccum," not in (home / "runs/some/ladder.csv").read_text()


def is_one_group(home):
    """In W&B every rung is a run of one group, and the report one more, with table and pictures."""
    runs, report = tracked(home)
    assert len({group for *_, group in runs}) == 1
    # Of the ladder that came to its end; none of that which was stopped, nor of the refused one.
    assert sorted(name for kind, name, _ in runs if kind == "report") == ["report"]
    assert {name for kind, name, _ in runs if kind == "train"} == {*ENDS, "accum"}
    assert len(runs) == 1 + len(ENDS) + 2
    for part in ("report/table", "report/ladder", "report/loss", "report/peak_mib", "report/map"):
        assert part in report
    assert "check/every technique was active" in report
    # The table says which run each rung is; it lies in a file of the report's.
    [table] = (home / "runs/some/wandb").glob("offline-run-*/files/media/table/report/table_*.json")
    ids = {row[0] for row in json.loads(table.read_text(encoding="utf-8"))["data"]}
    assert {result_of(home, rung)["tracker"].get("id") for rung in (*ENDS, "slow", "accum")} == ids
    assert (home / "runs/some/ladder.png").stat().st_size > 10_000
