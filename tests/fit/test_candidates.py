"""What is tried, in which order, and that each candidate is a run that can be started."""

import itertools
import shlex
from functools import cache

from rungwise.errors import SettingsError
from rungwise.fit.candidates import Question
from rungwise.fit.memory import Room
from rungwise.run.configure import check
from rungwise.settings.parse import parse

import pytest
from harness import TINY
from hypothesis import given, settings, strategies
from needs import EVERY_N_LAYERS, LOSS_IN_CHUNKS

WIDER = "vocab_size=128,n_positions=32,n_embd=32,n_layer=6,n_head=2"
ROOMS = {
    "cpu": Room("cpu", True, 8192.0, 0.0, "here", "bf16"),
    "old cpu": Room("cpu", True, 8192.0, 0.0, "here", "no"),
    "A100": Room("cuda", False, 8192.0, 0.0, "there", "bf16", (8, 0)),
    "T4": Room("cuda", False, 8192.0, 0.0, "there", "fp16", (7, 5)),
}


@cache
def ask(*flags, room="cpu", processes=1):
    return Question([*TINY, "--config_overrides", WIDER, *flags], processes, ROOMS[room])


def names(question, count=1):
    return [question.candidate(level, count).name for level in question.levels()]


@LOSS_IN_CHUNKS
@EVERY_N_LAYERS
def test_the_order_is_that_of_their_flops_and_what_trains_otherwise_comes_last():
    question = ask()
    tried = ["", "-lce", "-ckpt-every4", "-ckpt-every4-lce", "-ckpt-every2", "-ckpt-every2-lce", "-ckpt", "-ckpt-lce"]
    same = [f"bf16{name}-fused" if "lce" not in name else f"bf16{name[:-4]}-fused-lce" for name in tried]
    found = names(question)
    shares = [level.share for level in question.levels()]
    assert sorted(found[:8]) == sorted(same) and found[8:] == [f"{name}-adamw_torch_8bit" for name in found[:8]]
    assert found[0] == "bf16-fused" and found[7] == "bf16-ckpt-fused-lce"
    assert shares[:8] == sorted(shares[:8]) == shares[8:] and len({*shares}) == 8
    assert [level.changes != () for level in question.levels()] == [False] * 8 + [True] * 8


@LOSS_IN_CHUNKS
def test_what_costs_nothing_is_always_on():
    """The loss in chunks takes no product more in fp32, and a fused activation never."""
    assert {"fused" in name and "lce" in name for name in names(ask(room="old cpu"))} == {True}
    reference = ask().reference()
    assert ask().candidate(reference, 1).name == "fp32"


@LOSS_IN_CHUNKS
def test_what_is_given_is_every_candidates():
    question = ask("--optim", "sgd", "--gradient_checkpointing", "--gradient_accumulation_steps", "4")
    assert names(question, 4) == ["bf16-accum4-ckpt-fused-sgd", "bf16-accum4-ckpt-fused-lce-sgd"]
    assert question.counts() == [4]
    pure = ask("--dtype", "bfloat16")
    assert names(pure)[0] == "pure_bf16-fused"


@LOSS_IN_CHUNKS
@EVERY_N_LAYERS
def test_what_a_model_cannot_be_had_with_is_left_out_and_said():
    overrides = "vocab_size=64,hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2"
    flags = ["--model_type", "llama", "--config_overrides", overrides, "--block_size", "32"]
    question = Question(flags, 1, ROOMS["cpu"])
    # Of two layers every fourth is every second.
    assert names(question)[:3] == ["bf16", "bf16-ckpt-every4", "bf16-ckpt"]
    left_out = [reason.split("; leave ")[1] for reason in question.left_out]
    assert left_out == ["--fused_activation out", "--linear_cross_entropy out"]


@settings(max_examples=8)
@given(
    micro=strategies.integers(1, 6),
    count=strategies.integers(1, 6),
    processes=strategies.sampled_from([1, 2, 3]),
    room=strategies.sampled_from(sorted(ROOMS)),
)
def test_the_global_batch_is_exact(micro, count, processes, room):
    rows = micro * count * processes
    question = ask("--global_batch_size", str(rows), room=room, processes=processes)
    counts = question.counts()
    assert counts[0] == 1 and counts[-1] * processes == rows and count in counts
    for level, each in itertools.product(question.levels()[:3], counts):
        candidate = question.candidate(level, each)
        made = candidate.settings
        assert made.gradient_accumulation_steps == each
        assert made.micro_batch_size * made.gradient_accumulation_steps * made.num_processes == rows
        # The command says the same.
        rung = candidate.rung()
        assert rung.processes == processes
        again, errors = parse(rung.arguments, {"WORLD_SIZE": str(rung.processes)})
        assert errors == []
        assert again.micro_batch_size == made.micro_batch_size and again.precision == made.precision


def test_a_candidate_is_a_call_of_ablate():
    question = ask("--report_to", "none", "--max_steps", "500", "--eval_steps", "100")
    candidate = question.candidate(question.levels()[-1], 2)
    words = shlex.join(candidate.rung().command())
    assert words.startswith(
        "accelerate launch --config_file accelerate_configs/one_process.yaml recipes/ablate.py "
        "--config accelerate_configs/bf16.yaml "
    )
    assert "--max_steps 500" in words and "--optim adamw_torch_8bit" in words
    made, errors, _ = check(candidate.rung().arguments, environ={"WORLD_SIZE": "1"})
    assert errors == [] and made.run_name == candidate.name
    # A trial has the same steps, fewer of them, and neither evaluates nor saves.
    trial, errors, _ = check(candidate.trial(report_to="none", max_steps=13).arguments, environ={"WORLD_SIZE": "1"})
    assert errors == [] and trial.max_steps == 13 and trial.eval_steps is None and trial.run_name == made.run_name


COMMANDS = {
    ("A100", 0): "--config_file accelerate_configs/ddp.yaml --num_processes 4",
    ("A100", 1): "--config_file accelerate_configs/fsdp2.yaml --num_processes 4",
    ("T4", 0): "--config_file accelerate_configs/ddp.yaml --num_processes 4 --mixed_precision fp16",
    ("cpu", 0): "--config_file accelerate_configs/ddp_cpu.yaml --num_processes 4 --mixed_precision bf16",
    ("cpu", 1): "--config_file accelerate_configs/fsdp2_cpu.yaml --num_processes 4 --mixed_precision bf16",
    ("old cpu", 0): "--config_file accelerate_configs/ddp_cpu.yaml --num_processes 4",
}


@pytest.mark.parametrize("room, place", COMMANDS)
def test_several_processes_by_replicas_then_by_shards(room, place):
    question = ask(room=room, processes=4)
    level = question.levels()[place]
    assert level.launch.sharded == bool(place) and question.levels()[0].share == level.share
    [*_, launcher] = shlex.join(question.candidate(level, 1).rung().command()).partition(" recipes/")[:1]
    assert launcher == f"accelerate launch --main_process_port 0 {COMMANDS[room, place]}"
    assert any("shards in" in reason for reason in question.left_out) == (room in ("T4", "old cpu"))


WRONG = {
    "a config": (["--config", "a.yaml"], "--config is not asked of fit.py: it follows from precision and processes"),
    "compiled": (["--torch_compile"], "--torch_compile is not asked of fit.py: the forecast is of eager runs"),
    "too long": (["--block_size", "64"], "--block_size 64 is longer than the model's 32 positions"),
    "no such model": (
        ["--model_type", "gpt3", "--config_overrides", "a=1"],
        "no such model type (did you mean gptj?)",
    ),
    "not to be had": (
        ["--model_type", "llama", "--config_overrides", "vocab_size=64", "--fused_activation"],
        "no activation of LlamaForCausalLM",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_flags_have_the_words_of_ablate(case):
    flags, words = WRONG[case]
    with pytest.raises(SettingsError, match="1 problem") as error:
        Question(["--block_size", "32", *flags] if "--block_size" not in flags else [*TINY, *flags], 1, ROOMS["cpu"])
    assert words in str(error.value)


def test_a_batch_that_does_not_divide_is_refused():
    with pytest.raises(SettingsError, match="--global_batch_size 16 does not divide by 1 accumulation steps x 3"):
        ask(processes=3)


def test_no_weights_are_needed(tmp_path):
    ask().config.save_pretrained(tmp_path)
    question = Question(["--model_name_or_path", str(tmp_path), "--block_size", "32"], 1, ROOMS["cpu"])
    assert question.config.n_layer == 6
