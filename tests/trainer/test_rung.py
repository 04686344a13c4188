"""A rung by a Trainer beside the same one by our own loop, alone and in a ladder."""

import gc
import json
import sys

from rungwise.ladder.ladder_file import read_rungs
from rungwise.report.report import read_report
from rungwise.report.timelines import read_timeline
from rungwise.settings.parse import parse

import pytest
import trainer as recipe
from accelerate.state import AcceleratorState, GradientState
from commands import ablate_here, clone, run
from harness import TINY
from needs import LOSS_IN_CHUNKS, marked

FP32, BF16 = "accelerate_configs/fp32.yaml", "accelerate_configs/bf16.yaml"
STEPS = ("--max_steps", "6", "--untimed_steps", "3")


def trainer_here(folder, *flags):
    """The result of `recipes/trainer.py` with these flags, run to its end in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert recipe.main([*flags, "--output_dir", str(folder)]) == 0
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def phases_of(folder):
    """The phases of the step whose memory was measured, in order."""
    phases = [phase for _, _, phase in read_timeline(folder)]
    return [phase for n, phase in enumerate(phases) if n == 0 or phase != phases[n - 1]]


RUNGS = {
    "accumulation": (FP32, "--gradient_accumulation_steps", "4"),
    "all": (
        *(BF16, "--gradient_accumulation_steps", "2", "--gradient_checkpointing", "--fused_activation"),
        *("--linear_cross_entropy", "--weight_decay", "0.1", "--lr_scheduler_type", "linear", "--warmup_steps", "2"),
    ),
    "adapters, sgd": (FP32, "--use_peft", "--lora_r", "4", "--optim", "sgd", "--learning_rate", "0.1"),
    "padded rows, streamed": (
        *(FP32, "--train_file", "constraints.txt", "--packing", "false", "--streaming"),
        *("--config_overrides", "vocab_size=256,n_positions=32,n_embd=32,n_layer=2,n_head=2"),
    ),
}


@pytest.mark.parametrize("name", marked(RUNGS, {"all": LOSS_IN_CHUNKS}))
def test_a_trainers_rung_is_ours_in_another_loop(tmp_path, name):
    own = [flag for flag in TINY if not (name.startswith("padded") and flag in ("--dataset_name", "synthetic"))]
    flags = [*own, *STEPS, "--config", *RUNGS[name]]
    ours = ablate_here(tmp_path / "ours", *flags)
    gc.collect()  # what is left of it would be freed in the step in which memory is measured
    theirs = trainer_here(tmp_path / "theirs", *flags)
    assert theirs["status"] == "ok" and theirs["settings"]["engine"] == "trainer"
    assert theirs["loss"]["trajectory"] == pytest.approx(ours["loss"]["trajectory"], rel=1e-6)
    # What was asked for and what was seen are the same, but for whose loop it was.
    names = {name for name in ours["settings"] if ours["settings"][name] != theirs["settings"][name]}
    assert names <= {"engine", "run_name", "output_dir"}
    assert theirs["evidence"] == ours["evidence"] and ours["evidence"]["causal"]
    assert theirs["throughput"]["tokens"] == ours["throughput"]["tokens"]
    assert theirs["throughput"]["timed_steps"] == ours["throughput"]["timed_steps"] == 3
    assert theirs["activations"]["total_mib"] == ours["activations"]["total_mib"]
    assert phases_of(tmp_path / "theirs") == phases_of(tmp_path / "ours") != []
    owners = ("parameters_mib", "gradients_mib", "optimizer_state_mib", "buffers_mib")
    assert [theirs["memory"][owner] for owner in owners] == [ours["memory"][owner] for owner in owners]
    # A Trainer clones no tensor of a model's size.
    assert theirs["memory"]["peak_allocated_mib"] == pytest.approx(ours["memory"]["peak_allocated_mib"], rel=2e-3)


REFUSED = {
    "evaluation": (FP32, "--eval_steps", "2"),
    "checkpoints": (FP32, "--checkpointing_steps", "2"),
    "resuming": (FP32, "--resume_from_checkpoint", "latest"),
    "saving": (FP32, "--save_model"),
    "a part that is compiled": (FP32, "--torch_compile", "--torch_compile_scope", "regional"),
    "a budget": (FP32, "--torch_compile", "--activation_memory_budget", "0.5"),
    "a cache": (FP32, "--torch_compile", "--torch_compile_cache_dir", "cache"),
    "fp16 on a CPU": ("accelerate_configs/fp16.yaml",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_trainer_does_not_serve_is_refused_in_a_sentence(tmp_path, capsys, monkeypatch, name):
    config, *flags = REFUSED[name]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("rungwise.device.measured_accelerator", lambda: None)
    with pytest.raises(SystemExit) as ended:
        recipe.main([*TINY, *STEPS, "--config", config, *flags, "--output_dir", str(tmp_path / "run")])
    assert ended.value.code == 2 and not (tmp_path / "run").exists()
    words = capsys.readouterr().err
    assert words.startswith("1 problem") and "by transformers.Trainer" in words and "recipes/ablate.py" in words


LADDER = """
flags: {config: accelerate_configs/fp32.yaml, dataset_name: synthetic, block_size: 32, max_steps: 13,
        config_overrides: "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2", report_to: none,
        forecast: false, plots: false}
rungs:
  ours: {}
  theirs: {engine: trainer}
"""


def test_a_ladder_compares_the_two(tmp_path):
    home = clone(tmp_path)
    (home / "two.yaml").write_text(LADDER, encoding="utf-8")
    done = run(home, sys.executable, "recipes/ladder.py", "--ladder", "two.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recipes/trainer.py --config" in done.stdout and "recipes/ablate.py --config" in done.stdout
    report = read_report(home / "runs" / "two")
    assert [rung.settings["engine"] for rung in report.rungs] == ["rungwise", "trainer"]
    verdicts = {check.claim: check.verdict for check in report.checks}
    assert verdicts["a Trainer trains the same"] == "PASS", verdicts


def test_flags_for_all_rungs_go_to_those_that_serve_them(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text(LADDER, encoding="utf-8")
    ours, theirs = read_rungs(str(path), ["--eval_steps", "5"], "group")
    assert "--eval_steps" in ours.arguments and "--eval_steps" not in theirs.arguments
    assert (ours.engine, theirs.engine) == ("rungwise", "trainer")


def test_a_rung_says_whose_loop_it_is(tmp_path):
    for engine, name in (("rungwise", "fp32"), ("trainer", "fp32-trainer")):
        settings, errors = parse(["--config", FP32], {}, engine=engine)
        assert not errors and (settings.engine, settings.run_name) == (engine, name)
