"""A run that goes on is the same run of its tracker, with all that was logged before."""

import json
import shutil
import typing
from types import SimpleNamespace

from rungwise import tracking
from rungwise.tracking import wandb_names, wandb_run

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
    # Their names begin with the time at which they were begun.
    first, second = sorted((folder / "wandb").glob("offline-run-*"))
    (before, rows_before), (after, rows_after) = records(first), records(second)
    assert before["run_id"] == after["run_id"]
    for rows in (rows_before, rows_after):
        text = [json.dumps(row) for row in rows]
        assert sum("train/loss" in row for row in text) == sum("eval/loss" in row for row in text) == 5
    # From a checkpoint of another folder, another run goes on.
    resumed = ["--resume_from_checkpoint", str(folder / "checkpoint-2"), "--plots", "true"]
    ablate_here(tmp_path / "other", *CALL, *resumed)
    [other] = (tmp_path / "other" / "wandb").glob("offline-run-*")
    run, rows = records(other)
    assert run["run_id"] != before["run_id"]
    # Its pictures go with the last step.
    assert len(rows) == len(rows_after)
    assert ["pictures/memory_step" in json.dumps(row) for row in rows] == [False] * (len(rows) - 1) + [True]
    assert len(list(other.glob("files/media/images/pictures/memory*.png"))) == 2


def test_the_summary_is_of_the_run_and_not_of_its_last_step(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    made = ablate_here(tmp_path / "run", *CALL)
    [folder] = (tmp_path / "run" / "wandb").glob("offline-run-*")
    summary = wandb_records(folder, "--summary")
    for name, value in {
        "loss/first": made["loss"]["trajectory"][0],
        "loss/last": made["loss"]["trajectory"][-1],
        "loss/held_out": made["loss"]["eval"][-1]["loss"],
        "memory/peak_allocated_mib": made["memory"]["peak_allocated_mib"],
    }.items():
        assert f'"{name}"' in summary and str(value)[:8] in summary, name
    # Of tokens the last row has the run's. Viewers draw nothing over what no summary has.
    assert '"train/tokens"' in summary
    for name in ("train/loss", "train/grad_norm", "eval/loss", "perf/step_ms"):
        assert f'"{name}"' not in summary, name
    # By these others find it.
    assert made["tracker"] == {"name": "wandb", "id": records(folder)[0]["run_id"], "url": None}


class Online:
    """Stands in for W&B's server, which has the run's steps up to 7."""

    def __init__(self, project, **options):
        self.options, self.rows = options, []
        resumed = options.get("resume") == "allow"
        self.tracker = SimpleNamespace(
            id=options.get("id", "new"),
            resumed=resumed,
            disabled=False,
            offline=True,
            starting_step=8 if resumed else 0,
            define_metric=lambda *_, **__: None,
        )

    def start(self):
        pass

    def log(self, values, step):
        self.rows.append(step)


@pytest.mark.parametrize("resumed, rows", [(None, list(range(1, 11))), ("abc", [8, 9, 10])])
def test_steps_that_the_run_has_are_not_logged_again(tmp_path, monkeypatch, resumed, rows):
    monkeypatch.setattr(wandb_run, "WandBTracker", Online)
    monkeypatch.setenv("WANDB_MODE", "online")
    settings = tiny_settings("--report_to", "wandb", "--output_dir", str(tmp_path))
    tracker = tracking.build_tracker(settings, {}, resumed)
    for step in range(1, 11):
        tracker.add({"train/loss": 1.0}, step=step)
    assert tracker._tracker.rows == rows
    assert tracker.id == (resumed or "new")


def test_a_run_that_the_user_named_is_that_one(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_run, "WandBTracker", Online)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    settings = tiny_settings("--report_to", "wandb", "--output_dir", str(tmp_path))
    assert tracking.build_tracker(settings, {}, "abc").id == "mine"


REFUSED = {
    "a mode": ({"WANDB_MODE": "ofline"}, [], "WANDB_MODE=ofline: no such mode (did you mean offline?)"),
    "a flag's project": ({}, ["--project", "a/b"], "--project a/b: W&B takes no / in a project's name"),
    "a variable's project": ({"WANDB_PROJECT": "a:b"}, [], "WANDB_PROJECT=a:b: W&B takes no :"),
    "a long project": ({"WANDB_PROJECT": "p" * 129}, [], "W&B takes names of 128 characters, this has 129; shorten"),
    "a long group": ({}, ["--group", "g" * 129], f"--group {'g' * 129}: W&B takes names of 128 characters"),
    "a long name": ({}, ["--run_name", "r" * 129], f"--run_name {'r' * 129}: W&B takes names of 128"),
    "a long name of a variable": ({"WANDB_NAME": "n" * 129}, [], f"WANDB_NAME={'n' * 129}: W&B takes names"),
    "an id": ({"WANDB_RUN_ID": "a#b"}, [], "WANDB_RUN_ID='a#b': W&B takes no blanks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_wandb_would_refuse_is_refused_before_anything_is_built(case, monkeypatch):
    variables, flags, message = REFUSED[case]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    [problem] = tracking.validate(tiny_settings("--report_to", "wandb", *flags))
    assert message in problem
    assert tracking.validate(tiny_settings("--report_to", "none")) == []


def test_what_is_refused_is_what_wandb_refuses():
    """Its own settings know the modes, and what a project's name and a run's id must not have."""
    import wandb

    assert set(typing.get_args(wandb.Settings.model_fields["mode"].annotation)) == set(wandb_names.MODES)
    for character in map(chr, range(33, 127)):
        assert _takes(project=f"a{character}b") == (character not in wandb_names.NOT_IN_PROJECT)
        assert _takes(run_id=f"a{character}b") == (character not in wandb_names.NOT_IN_ID)
    assert _takes(project="p" * wandb_names.LONGEST_NAME) and not _takes(project="p" * (wandb_names.LONGEST_NAME + 1))


def _takes(**settings):
    import wandb

    try:
        wandb.Settings(**settings)
    except (wandb.errors.UsageError, ValueError):
        return False
    return True


def test_what_the_person_says_of_wandb_goes_before_our_defaults(tmp_path, monkeypatch):
    monkeypatch.setattr(wandb_run, "WandBTracker", Online)
    for name, value in {"MODE": "online", "NAME": "mine", "JOB_TYPE": "sweep", "INIT_TIMEOUT": "7"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "elsewhere"))

    def told(*flags):
        settings = tiny_settings("--report_to", "wandb", "--output_dir", str(tmp_path), *flags)
        return tracking.build_tracker(settings, {})._tracker.options

    options = told()
    # Nothing is said of WANDB_ENTITY and its like, which W&B reads by itself.
    assert not options.keys() & {"entity", "tags", "notes"}
    assert (options["name"], options["job_type"]) == ("mine", "sweep")
    assert options["dir"] == str(tmp_path / "elsewhere")
    assert options["settings"].init_timeout != wandb_run.DEFAULTS["init_timeout"]
    assert options["settings"].silent is True
    assert told("--run_name", "flagged")["name"] == "flagged"


def test_the_project_of_the_environment_is_the_runs(tmp_path, monkeypatch):
    for name, value in {"MODE": "offline", "PROJECT": "theirs"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    made = ablate_here(tmp_path / "run", *CALL)
    assert (made["settings"]["project"], made["origins"]["project"]) == ("theirs", "WANDB_PROJECT")
    [folder] = (tmp_path / "run" / "wandb").glob("offline-run-*")
    assert records(folder)[0]["project"] == "theirs"
