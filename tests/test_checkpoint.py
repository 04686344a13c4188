"""A run that was stopped and goes on is the run that never stopped."""

import dataclasses
import json
from pathlib import Path

from rungwise import checkpoint
from rungwise.loop import Step
from rungwise.run import check

import pytest
import torch
from commands import ablate_here
from harness import MODEL, TINY, largest_difference, tiny_settings
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
    (stopped / "checkpoint-10" / checkpoint.STEPS).unlink()
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


@pytest.fixture
def saved(tmp_path):
    """A folder that holds the notes of a checkpoint, without its tensors."""
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    settings = tiny_settings("--max_steps", "12", "--lr_scheduler_type", "linear").as_dict()
    content = {"settings": settings, "scheduler": {}, "steps": [dataclasses.asdict(STEP)]}
    (folder / checkpoint.STEPS).write_text(json.dumps(content), encoding="utf-8")
    return folder


BASE = ["--max_steps", "12", "--lr_scheduler_type", "linear"]
BAD = {
    "another rate": ([*BASE, "--learning_rate", "1"], "learning_rate was 0.001 and is now 1.0"),
    "another schedule": (["--max_steps", "20", *BASE[2:]], "linear schedule was made for --max_steps 12"),
    "nothing left": (["--max_steps", "5", *BASE[2:]], "5 steps are done, --max_steps 5 leaves none"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_run_that_cannot_go_on(saved, case):
    flags, message = BAD[case]
    problems = checkpoint.problems(tiny_settings(*flags, "--resume_from_checkpoint", str(saved)))
    assert any(message in problem for problem in problems), problems


def test_a_run_that_can_go_on(saved):
    flags = [*BASE, "--resume_from_checkpoint", str(saved), "--report_to", "none", "--checkpointing_steps", "3"]
    assert checkpoint.problems(tiny_settings(*flags)) == []


@pytest.mark.parametrize("text", [None, "{", "[]"])
def test_what_is_no_checkpoint(tmp_path, text):
    if text:
        (tmp_path / checkpoint.STEPS).write_text(text, encoding="utf-8")
    call = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--resume_from_checkpoint", str(tmp_path)]
    [problem] = check(call)[1]
    assert "not a whole checkpoint of such a run; give a checkpoint-N folder, or latest" in problem


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path):
    (tmp_path / "checkpoint-5.partial").mkdir()
    (tmp_path / "checkpoint-7").mkdir()
    settings = tiny_settings("--resume_from_checkpoint", "latest", "--output_dir", str(tmp_path))
    assert checkpoint.find_checkpoint(settings) is None
    for number in (5, 10, 9):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        (Path(folder) / checkpoint.STEPS).write_text("{}", encoding="utf-8")
    assert checkpoint.find_checkpoint(settings) == tmp_path / "checkpoint-10"
