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
  fp32: {report_to: none}
  slow: {max_steps: 200000, report_to: none}
  accum: {max_steps: 200000, gradient_accumulation_steps: 2}
"""
ENDS = """
flags: {config: accelerate_configs/fp32.yaml, dataset_name: synthetic, block_size: 32, max_steps: 13, forecast: false,
        config_overrides: "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2", plots: false}
rungs:
  fp32: {}
  too-large: {config_overrides: "vocab_size=128,n_positions=32,n_embd=32768,n_layer=2,n_head=2"}
  diverges: {learning_rate: 1.0e+20, max_grad_norm: 0}
  offload: {gradient_checkpointing: true, gradient_checkpointing_kwargs: {offload: true}}
"""


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


def tracked_kinds(home):
    """The kinds of the runs that lie in the ladder's folder for W&B."""
    records = [wandb_records(folder) for folder in (home / "runs/some/wandb").glob("offline-run-*")]
    lines = [line for text in records for line in text.splitlines() if '"type":"run"' in line]
    return [json.loads(line)["run"]["job_type"] for line in lines]


def test_killed_half_way_and_continued(home, start):
    process = start(LADDER)
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
    # The rung that ran ended in order, in W&B too, and the report has all rows.
    assert result_of(home, "accum")["reason"].startswith("terminated after")
    [tracked] = (home / "runs/some/wandb").glob("offline-run-*")
    summary = wandb_records(tracked, "--summary")
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
    assert again.returncode == 0, output + errors
    # Of the ladder that came to its end; none of that which was stopped, nor of the refused one.
    assert tracked_kinds(home).count("report") == 1
    assert "fp32: finished before (ok)" in output
    assert result_of(home, "fp32")["environment"]["date"] == first
    assert [result_of(home, rung)["status"] for rung in ("fp32", "slow", "accum")] == ["ok"] * 3
    assert (
        "accelerate launch --main_process_port 0 --config_file accelerate_configs/one_process.yaml recipes/" in output
    )
    assert "outside training" in output

    shutil.rmtree(home / "runs/some/accum")
    only = subprocess.run(
        [sys.executable, "recipes/ladder.py", "--report_only", "runs/some"],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert only.returncode == 0, only.stderr
    assert not (home / "runs/some/accum").exists()
    assert "accum" not in (home / "runs/some/ladder.csv").read_text()


def test_every_end_is_a_row_and_a_run_of_one_group(home, start):
    limit = 14 * 2**30
    process = start(ENDS, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    output, errors = process.communicate(timeout=HANGS)
    assert process.returncode == 1, output + errors
    statuses = {rung: result_of(home, rung)["status"] for rung in ("fp32", "too-large", "diverges", "offload")}
    assert statuses == {"fp32": "ok", "too-large": "out_of_memory", "diverges": "diverged", "offload": "skipped"}
    for reason in ("out of memory before step 1", "the loss of step", "this run is on the CPU"):
        assert reason in output
    assert "Nothing was compared: fp32 alone ran to its end, skipped: offload; run the ladder where" in output
    # In W&B every rung is a run of one group, and the report one more, with table and pictures.
    folders = sorted((home / "runs/some/wandb").glob("offline-run-*"))
    groups, kinds, text = set(), [], ""
    for folder in folders:
        records = wandb_records(folder)
        run = next(json.loads(line)["run"] for line in records.splitlines() if '"type":"run"' in line)
        groups.add(run["run_group"])
        kinds.append((run["job_type"], run["display_name"]))
        text += records if run["job_type"] == "report" else ""
    assert len(groups) == 1
    assert sorted(kinds) == [("report", "report"), *(("train", name) for name in sorted(statuses))]
    for part in ("report/table", "report/ladder", "report/loss", "report/peak_mib", "report/map"):
        assert part in text
    assert "check/every technique was active" in text
    # The table says which run each rung is; it lies in a file of the report's.
    [table] = (home / "runs/some/wandb").glob("offline-run-*/files/media/table/report/table_*.json")
    ids = {row[0] for row in json.loads(table.read_text(encoding="utf-8"))["data"]}
    assert {result_of(home, rung)["tracker"].get("id") for rung in statuses} == ids
    assert "git root" not in errors and "Traceback" not in errors
    assert (home / "runs/some/ladder.png").stat().st_size > 10_000
