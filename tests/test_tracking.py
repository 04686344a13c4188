"""A run that goes on is the same run of its tracker, with all that was logged before."""

import json
import shutil
from types import SimpleNamespace

from rungwise import tracking

import pytest
from commands import ablate_here
from harness import TINY, tiny_settings, wandb_records

CALL = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--report_to", "wandb", "--max_steps", "5"]
CALL += ["--untimed_steps", "2", "--checkpointing_steps", "2", "--eval_steps", "1"]


def records(folder):
    """What W&B's file says of a run, and the rows that were logged."""
    lines = [json.loads(line) for line in wandb_records(folder).splitlines()]
    [run] = [line["run"] for line in lines if "run" in line][:1]
    rows = [line["history"] for line in lines if "history" in line]
    return run, rows


def test_a_resumed_run_is_the_same_run_with_all_steps_and_evaluations(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = tmp_path / "run"
    ablate_here(folder, *CALL)
    shutil.rmtree(folder / "checkpoint-4")
    ablate_here(folder, *CALL, "--resume_from_checkpoint", "latest")
    first, second = sorted((folder / "wandb").glob("offline-run-*"), key=lambda path: path.stat().st_mtime_ns)
    (before, rows_before), (after, rows_after) = records(first), records(second)
    assert before["run_id"] == after["run_id"]
    for rows in (rows_before, rows_after):
        text = [json.dumps(row) for row in rows]
        assert sum("train/loss" in row for row in text) == sum("eval/loss" in row for row in text) == 5
    # From a checkpoint of another folder, another run goes on.
    ablate_here(tmp_path / "other", *CALL, "--resume_from_checkpoint", str(folder / "checkpoint-2"))
    [other] = (tmp_path / "other" / "wandb").glob("offline-run-*")
    assert records(other)[0]["run_id"] != before["run_id"]


class Online:
    """Stands in for W&B's server, which has the run's steps up to 7."""

    def __init__(self, project, **options):
        self.options, self.rows = options, []
        resumed = options.get("resume") == "allow"
        self.tracker = SimpleNamespace(
            id=options.get("id", "new"),
            resumed=resumed,
            starting_step=8 if resumed else 0,
            define_metric=lambda *_, **__: None,
        )

    def start(self):
        pass

    def log(self, values, step):
        self.rows.append(step)


@pytest.mark.parametrize("resumed, rows", [(None, list(range(1, 11))), ("abc", [8, 9, 10])])
def test_steps_that_the_run_has_are_not_logged_again(tmp_path, monkeypatch, resumed, rows):
    monkeypatch.setattr(tracking, "WandBTracker", Online)
    monkeypatch.setenv("WANDB_MODE", "online")
    settings = tiny_settings("--report_to", "wandb", "--output_dir", str(tmp_path))
    tracker = tracking.build_tracker(settings, {}, resumed)
    for step in range(1, 11):
        tracker.add({"train/loss": 1.0}, step=step)
    assert tracker._tracker.rows == rows
    assert tracker.id == (resumed or "new")


def test_a_run_that_the_user_named_is_that_one(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "WandBTracker", Online)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    settings = tiny_settings("--report_to", "wandb", "--output_dir", str(tmp_path))
    assert tracking.build_tracker(settings, {}, "abc").id == "mine"
