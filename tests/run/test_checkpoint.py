"""A run that was stopped and goes on is the run that never stopped."""

import contextlib
import dataclasses
import json
import os
import shutil
from pathlib import Path

from rungwise.data import loader
from rungwise.data.fingerprint import describe
from rungwise.data.loader import build_dataloader
from rungwise.errors import SettingsError
from rungwise.loop import Step
from rungwise.run import checkpoint
from rungwise.run import saved_checkpoints as saved
from rungwise.run.configure import check

import ablate
import pytest
import torch
from commands import ablate_here
from harness import LINES, MODEL, TINY, build_datasets, file_settings, largest_difference, open_inputs, tiny_settings
from safetensors.torch import load_file

DROPOUT = f"{MODEL},resid_pdrop=0.1,attn_pdrop=0.1"
CASES = {
    "fp32": ["fp32.yaml"],
    # Random numbers, an accumulated window, a schedule.
    "dropout": ["fp32.yaml", "--config_overrides", DROPOUT, "--gradient_accumulation_steps", "4"],
    "schedule": ["fp32.yaml", "--lr_scheduler_type", "cosine", "--warmup_steps", "3", "--weight_decay", "0.1"],
    # The scaler's state: its scale has fallen by the time of the checkpoint.
    "fp16": ["fp16.yaml", "--learning_rate", "0.05"],
    "bf16-ckpt": ["bf16_accum4.yaml", "--gradient_checkpointing"],
    "lora": ["fp32.yaml", "--use_peft"],
}


def train(output, case, *flags, steps=12):
    config, *own = CASES[case]
    flags = ["--config", f"accelerate_configs/{config}", *TINY, *own, "--max_steps", str(steps), *flags]
    return ablate_here(output, *flags)


@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_equals_one_that_never_stopped(tmp_path, case, capsys):
    whole = train(tmp_path / "whole", case, "--save_model")
    stopped = tmp_path / "stopped"
    train(stopped, case, "--checkpointing_steps", "5")
    # Killed after step 7, say: the checkpoint of step 5 is the last.
    torch.manual_seed(12345)
    (stopped / "checkpoint-10" / saved.STEPS).unlink()
    resumed = train(stopped, case, "--resume_from_checkpoint", "latest", "--save_model")
    assert "goes on after step 5" in capsys.readouterr().err
    assert resumed["loss"]["trajectory"] == pytest.approx(whole["loss"]["trajectory"], abs=1e-6)
    assert resumed["amp"] == whole["amp"]
    rows = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["train/tokens"] == 12 * 16 * 31
    assert rows[-1]["train/learning_rate"] == whole_rate(tmp_path / "whole")
    weights = [load_file(folder / "model" / "model.safetensors") for folder in (tmp_path / "whole", stopped)]
    assert largest_difference(*weights) < 1e-6


def whole_rate(folder):
    return json.loads((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])["train/learning_rate"]


def test_latest_without_a_checkpoint_starts_anew(tmp_path, capsys):
    """So the same command can be given to a scheduler that starts it again and again."""
    result = train(tmp_path, "fp32", "--resume_from_checkpoint", "latest")
    assert len(result["loss"]["trajectory"]) == 12 and "goes on" not in capsys.readouterr().err


STEP = Step(5, 2.0, 1.0, 1e-3, 100, 0.5, True, None, False, None)


def save_notes(folder, settings, data=None, number=5):
    """Writes a folder that holds the notes of a checkpoint, without its tensors."""
    folder = folder / f"checkpoint-{number}"
    folder.mkdir(parents=True)
    content = {"settings": settings.as_dict(), "scheduler": {}}
    content["steps"] = [dataclasses.asdict(dataclasses.replace(STEP, number=n)) for n in range(1, number + 1)]
    content |= {"evaluations": [], "data": data or {}, "tracked": None, "files": {}}
    (folder / saved.STEPS).write_text(json.dumps(content), encoding="utf-8")
    return folder


BASE = ["--max_steps", "12", "--lr_scheduler_type", "linear"]
BAD = {
    "another rate": ([*BASE, "--learning_rate", "1"], "learning_rate was 0.001 and is now 1.0"),
    "another schedule": (["--max_steps", "20", *BASE[2:]], "linear schedule was made for --max_steps 12"),
    "nothing left": (["--max_steps", "5", *BASE[2:]], "5 steps are done, --max_steps 5 leaves none"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_run_that_cannot_go_on(tmp_path, case):
    folder = save_notes(tmp_path, tiny_settings(*BASE))
    flags, message = BAD[case]
    errors = checkpoint.validate(tiny_settings(*flags, "--resume_from_checkpoint", str(folder)))
    assert any(message in problem for problem in errors), errors


def test_a_run_that_can_go_on(tmp_path):
    folder = save_notes(tmp_path, tiny_settings(*BASE))
    flags = [*BASE, "--resume_from_checkpoint", str(folder), "--report_to", "none", "--checkpointing_steps", "3"]
    assert checkpoint.validate(tiny_settings(*flags)) == []


DATA = {"packed": ("--dataset_name", LINES), "streamed": ("--dataset_name", LINES, "--streaming")}
# Of each setting that may change on the way, two values. What a value needs beside it stands in both.
CHANGES = {
    "config": (["--config", "accelerate_configs/fp32.yaml"], ["--config", "accelerate_configs/bf16.yaml"]),
    "run_name": (["--run_name", "a"], ["--run_name", "b"]),
    "output_dir": (["--output_dir", "a"], ["--output_dir", "b"]),
    "group": (["--report_to", "wandb"], ["--report_to", "wandb", "--group", "b"]),
    "project": (["--report_to", "wandb"], ["--report_to", "wandb", "--project", "b"]),
    "report_to": (["--report_to", "none"], ["--report_to", "wandb"]),
    "save_model": ([], ["--save_model"]),
    "torch_compile_cache_dir": (["--torch_compile"], ["--torch_compile", "--torch_compile_cache_dir", "b"]),
    "eager_run": (["--torch_compile"], ["--torch_compile", "--eager_run", "b"]),
    "max_steps": (["--max_steps", "12"], ["--max_steps", "15"]),
    "untimed_steps": (["--untimed_steps", "2"], ["--untimed_steps", "5"]),
    "checkpointing_steps": ([], ["--checkpointing_steps", "5"]),
    "save_total_limit": (
        ["--checkpointing_steps", "5"],
        ["--checkpointing_steps", "5", "--save_total_limit", "2"],
    ),
    "resume_from_checkpoint": ([], ["--resume_from_checkpoint", "latest"]),
    "eval_steps": (["--eval_steps", "2"], ["--eval_steps", "4"]),
    "forecast": ([], ["--forecast", "false"]),
    "plots": (["--plots", "true"], []),
}


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("name", sorted(checkpoint.FREE))
def test_no_setting_that_may_change_changes_the_rows(kind, name):
    """Which come when: 12 steps of 16 rows, more than an epoch."""

    def rows(flags):
        settings = tiny_settings(*DATA[kind], *flags)
        loader = build_dataloader(build_datasets(settings)[0], settings)
        return settings, torch.cat([batch["input_ids"] for batch in loader])[: 12 * 16]

    (before, rows_before), (after, rows_after) = (rows(flags) for flags in CHANGES[name])
    assert getattr(before, name) != getattr(after, name)
    assert len(rows_before) == 12 * 16 and torch.equal(rows_before, rows_after)


# What decides which rows are held out: the settings before and now, and the flags that both have.
SPLITS = {
    "evaluation from now on": ([], ["--eval_steps", "2"], ()),
    "no evaluation any more": (["--eval_steps", "2"], [], ()),
    "another share": (["--eval_steps", "2"], ["--eval_steps", "2", "--validation_split_percentage", "20"], ()),
    "a file of its own": (["--eval_steps", "2"], ["--eval_steps", "2", "--validation_file", LINES], ()),
    "other first rows": (
        ["--eval_steps", "2", "--max_eval_samples", "8"],
        ["--eval_steps", "2", "--max_eval_samples", "9"],
        ("--streaming",),
    ),
}


@pytest.mark.parametrize("case", SPLITS)
def test_what_changes_the_split_is_refused(tmp_path, case):
    before, now, both = SPLITS[case]
    both = ("--dataset_name", LINES, *both)
    folder = save_notes(tmp_path, tiny_settings(*both, *before))
    errors = checkpoint.validate(tiny_settings(*both, *now, "--resume_from_checkpoint", str(folder)))
    assert errors and all(" was " in problem and " is now " in problem for problem in errors)


@pytest.mark.parametrize("flag", ["train_file", "validation_file"])
def test_data_that_changed_is_refused_by_its_name(tmp_path, flag):
    for name in ("train_file", "validation_file"):
        shutil.copy(LINES, tmp_path / name)

    def settings(*flags):
        flags = ("--eval_steps", "2", "--validation_file", str(tmp_path / "validation_file"), *flags)
        return file_settings(tmp_path / "train_file", *flags)

    inputs = open_inputs(settings())
    loader.build_datasets(settings(), inputs)
    data = describe(settings(), inputs.data)
    resumed = settings("--resume_from_checkpoint", str(save_notes(tmp_path / "run", settings(), data)))
    os.utime(tmp_path / flag, (1, 1))
    assert checkpoint.validate(resumed) == []
    with (tmp_path / flag).open("a", encoding="utf-8") as file:
        file.write("one line more\n")
    [problem] = checkpoint.validate(resumed)
    assert f"--{flag} {tmp_path / flag} has changed (it was " in problem and "resume with the same data" in problem


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_checkpoint(tmp_path, text):
    if text:
        (tmp_path / saved.STEPS).write_text(text, encoding="utf-8")
    call = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--resume_from_checkpoint", str(tmp_path)]
    [problem] = check(call)[1]
    assert "not a whole checkpoint of such a run; give a checkpoint-N folder, or latest" in problem


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 4 steps, in fp16 so that there is a scaler, that kept the last 2 of 4 checkpoints."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    flags = ["--save_total_limit", "2", "--checkpointing_steps", "1", "--eval_steps", "2"]
    train(folder, "fp16", *flags, steps=4)
    return folder


def test_the_newest_checkpoints_are_kept(finished):
    assert sorted(path.name for path in finished.glob("checkpoint*")) == ["checkpoint-3", "checkpoint-4"]
    content = saved.read(finished / "checkpoint-4")
    result = json.loads((finished / "result.json").read_text(encoding="utf-8"))
    assert content["data"] == result["data"] and result["data"]["train"]["rows"] == 256 - 12
    assert saved.damage(finished / "checkpoint-4") == []


HARMS = {
    "missing": lambda path: path.unlink(),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "overwritten": lambda path: path.write_bytes(b"\x00" * path.stat().st_size),
}
FILES = ["model.safetensors", "optimizer.bin", "scaler.pt", "random_states_0.pkl"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_costs_nothing_of_the_run_so_far(tmp_path, finished, capsys, name, harm):
    folder = shutil.copytree(finished, tmp_path / "run")
    HARMS[harm](folder / "checkpoint-4" / name)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    flags = ["--resume_from_checkpoint", "latest", "--eval_steps", "2", "--output_dir", str(folder)]
    config, *own = CASES["fp16"]
    assert exit_code(["--config", f"accelerate_configs/{config}", *TINY, *own, *flags]) == 2
    said = capsys.readouterr().err
    assert str(folder / "checkpoint-4") in said
    assert (f"its {name} " if harm != "overwritten" else "it cannot be loaded (") in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path in before} == before


def test_random_numbers_that_accelerate_could_not_load_are_missed(tmp_path, finished, capsys, monkeypatch):
    """It would say so nowhere, and train on with those that are there."""
    checkpoint = shutil.copytree(finished / "checkpoint-3", tmp_path / "checkpoint-3")
    monkeypatch.setattr("numpy.random.set_state", lambda _: torch.manual_seed(99) and 1 / 0)
    flags = ["--resume_from_checkpoint", str(checkpoint), "--eval_steps", "2", "--output_dir", str(tmp_path / "run")]
    config, *own = CASES["fp16"]
    assert exit_code(["--config", f"accelerate_configs/{config}", *TINY, *own, *flags]) == 2
    assert "its random numbers do not fit this machine" in capsys.readouterr().out


def exit_code(call):
    try:
        return ablate.main(call)
    except SystemExit as end:
        return end.code


def test_every_file_that_is_loaded_is_damaged_above(finished):
    names = {path.name for path in (finished / "checkpoint-4").iterdir()}
    # A sampler's state, which only Accelerate's own samplers have.
    assert names - {"sampler.bin"} == {*FILES, saved.STEPS}


def test_a_fresh_run_sets_the_checkpoints_of_an_earlier_one_aside(tmp_path, finished, capsys):
    folder = shutil.copytree(finished, tmp_path / "run")
    train(folder, "fp16", "--eval_steps", "2", "--checkpointing_steps", "3", steps=4)
    assert "checkpoint-3, checkpoint-4 of an earlier run: set aside in " in capsys.readouterr().out
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-3"]
    [aside] = folder.glob("checkpoints-before-*")
    assert sorted(path.name for path in aside.iterdir()) == ["checkpoint-3", "checkpoint-4"]


def test_what_a_run_goes_on_from_is_its_own(tmp_path):
    """Later steps in its folder are not, nor is anything there if it goes on from elsewhere."""
    settings = tiny_settings()
    for resumed, kept in ((None, []), (5, [3, 5]), (9, [3, 5, 9]), ("elsewhere", [])):
        folder = tmp_path / str(resumed)
        for number in (3, 5, 9):
            save_notes(folder, settings, number=number)
        elsewhere = tmp_path / "other" / "checkpoint-5"
        words = saved.set_aside(
            folder, elsewhere if resumed == "elsewhere" else resumed and folder / f"checkpoint-{resumed}"
        )
        assert {path.name for path in folder.glob("checkpoint-*")} == {f"checkpoint-{number}" for number in kept}
        assert (words is None) == (len(kept) == 3)


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path):
    (tmp_path / "checkpoint-5.partial").mkdir()
    (tmp_path / "checkpoint-7").mkdir()
    settings = tiny_settings("--resume_from_checkpoint", "latest", "--output_dir", str(tmp_path))
    assert saved.find_checkpoint(settings) is None
    for number in (5, 10, 9):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (Path(folder) / saved.STEPS).write_text("{}", encoding="utf-8")
    assert saved.find_checkpoint(settings) == tmp_path / "checkpoint-10"


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("left", [[], [saved.OLD]], ids=["", "after another"])
@pytest.mark.parametrize("moment", range(4))
def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch, moment, left):
    """The new one of this step, or the one that it replaces."""
    settings = tiny_settings("--resume_from_checkpoint", "latest", "--output_dir", str(tmp_path))
    target = tmp_path / "checkpoint-5"
    for suffix in left or [""]:
        save_notes(tmp_path, settings).rename(tmp_path / f"checkpoint-5{suffix}")
    partial = save_notes(tmp_path / "new", settings).rename(tmp_path / "checkpoint-5.partial")
    done = 0

    def killed(original):
        def step(*args, **options):
            nonlocal done
            done += 1
            if done > moment:
                raise Killed
            return original(*args, **options)

        return step

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed(Path.rename))
        patch.setattr(shutil, "rmtree", killed(shutil.rmtree))
        with contextlib.suppress(Killed):
            saved.put_in_place(partial, target)
    found = saved.find_checkpoint(settings)
    assert found is not None and saved.damage(found) == []
    if done <= moment:
        assert found == target and not partial.exists() and not list(tmp_path.glob("*.old"))


def test_a_process_that_does_not_find_the_checkpoint_is_named(tmp_path, monkeypatch):
    """It would start over, while the others go on."""
    folder = save_notes(tmp_path, tiny_settings())
    there = saved.digest(folder)
    assert there and checkpoint.agree(folder) == folder and checkpoint.agree(None) is None
    for seen, named in (
        ([there, None], "rank 1 (on n1)"),
        ([there, "another", None], "rank 1 (on n1), rank 2 (on n2)"),
    ):
        nodes = [(f"n{rank}", digest) for rank, digest in enumerate(seen)]
        monkeypatch.setattr(checkpoint, "gather_object", lambda _, nodes=nodes: nodes)
        with pytest.raises(SettingsError) as caught:
            checkpoint.agree(folder)
        assert f"{folder}: not found, or another one, by {named}; keep it where every node" in str(caught.value)
