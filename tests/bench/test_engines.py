"""Three engines, one training: the same losses, the same memory, and each technique in all of them."""

from rungwise.bench import bare, engines
from rungwise.bench.checks import SAME_LOSS
from rungwise.bench.engines import ENGINES
from rungwise.bench.race import race
from rungwise.bench.turns import READY, Turns
from rungwise.result_file import read_result

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState
from harness import TINY

THREE = ("ours", "bare", "trainer")
STEPS = ["--max_steps", "5", "--untimed_steps", "3"]
# Wide and long enough for activations to be most of the peak.
WIDE = ["--config_overrides", "vocab_size=256,n_positions=128,n_embd=64,n_layer=4,n_head=2", "--block_size", "128"]
WIDE += ["--dataset_name", "synthetic", "--report_to", "none"]
# What an engine could leave out.
MOVED = {"--weight_decay": "1", "--lr_scheduler_type": "cosine", "--learning_rate": "0.01", "--seed": "1"}
# Gradients so small that the epsilon of AdamW tells them apart, which otherwise takes no notice of their scale.
MOVED["--max_grad_norm"] = "1e-6"


def pairs(flags):
    return [part for pair in flags.items() for part in pair]


def flags_of(config, *flags):
    return ["--config", f"accelerate_configs/{config}.yaml", *flags]


@pytest.fixture
def train(tmp_path):
    """Trains by an engine in this process; its figures, and what it told."""

    def run(engine, *flags):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        told, turns = [], iter([2, 0])
        make = lambda device, untimed, meter: Turns(device, untimed, lambda: next(turns), told.append, meter)  # noqa: E731
        figures = ENGINES[engine]([*flags, "--output_dir", str(tmp_path / engine)], make)
        assert told[0] == READY and told[1] > 0 and len(told) == 2
        return figures

    return run


def test_three_processes_in_turns_train_the_same(tmp_path):
    flags = flags_of("fp32_cpu", *TINY, "--max_steps", "7")
    laps = race(dict.fromkeys(THREE, flags), tmp_path, rounds=2, steps=2)
    assert [lap.failed for lap in laps] == [None] * 3
    assert all(len(lap.seconds) == 2 and min(lap.seconds) > 0 for lap in laps)
    ours, *others = [lap.loss for lap in laps]
    assert others == pytest.approx([ours] * 2, rel=SAME_LOSS)
    assert len({lap.threads for lap in laps}) == 1


def test_a_process_that_fails_says_why(tmp_path):
    refused = flags_of("fp32_cpu", *TINY, "--global_batch_size", "15", "--gradient_accumulation_steps", "4")
    [lap] = race({"bare": refused}, tmp_path, rounds=1, steps=1)
    assert "global_batch_size" in lap.failed


def test_the_same_weights_in_fp32(train):
    flags = flags_of("fp32_cpu", *TINY, *STEPS, *pairs(MOVED), "--gradient_accumulation_steps", "2")
    ours, *others = [train(engine, *flags)["loss"] for engine in THREE]
    assert others == pytest.approx([ours] * 2, rel=SAME_LOSS)


def test_the_losses_of_the_bare_loop_are_ours(train, monkeypatch, tmp_path):
    """AdamW and clipping take no notice of a loss that is a multiple of what it is to be."""
    losses, plain = [], bare.train

    def kept(*args):
        for loss in plain(*args):
            losses.append(float(loss))
            yield loss

    monkeypatch.setattr(bare, "train", kept)
    flags = flags_of("fp32_cpu", *TINY, *STEPS, "--gradient_accumulation_steps", "4")
    train("bare", *flags)
    train("ours", *flags)
    assert losses == pytest.approx(read_result(tmp_path / "ours")["loss"]["trajectory"], rel=SAME_LOSS)


def test_what_an_engine_leaves_out_shows_in_the_loss(train):
    """So that equal losses mean that nothing was."""
    kept = [MOVED, *({name: value for name, value in MOVED.items() if name != out} for out in MOVED)]
    whole, *less = [train("bare", *flags_of("fp32_cpu", *TINY, *STEPS, *pairs(flags)))["loss"] for flags in kept]
    assert min(abs(loss / whole - 1) for loss in less) > 10 * SAME_LOSS


def test_each_technique_lowers_the_peak_of_every_engine_alike(train, config):
    """Which shows that each of them has it."""
    bf16 = config("mixed_precision: bf16\nuse_cpu: true\n")
    accumulated = ["--config", bf16, "--gradient_accumulation_steps", "4"]
    before = {}
    for flags in (flags_of("fp32_cpu"), accumulated[:2], accumulated, [*accumulated, "--gradient_checkpointing"]):
        peaks = {engine: train(engine, *flags, *WIDE, *STEPS)["peak_mib"] for engine in THREE}
        assert peaks["bare"] == pytest.approx(peaks["ours"], rel=0.005)
        assert peaks["trainer"] == pytest.approx(peaks["ours"], rel=0.005)
        assert all(peak < 0.8 * before.get(engine, float("inf")) for engine, peak in peaks.items())
        before = peaks


@pytest.mark.parametrize("engine", ["bare", "trainer"])
def test_the_whole_model_is_compiled(train, monkeypatch, engine):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda model, **_: compiled.append(type(model).__name__) or model)
    train(engine, *flags_of("fp32_cpu", *TINY, *STEPS, "--torch_compile"))
    assert compiled == ["GPT2LMHeadModel"]


def test_a_trainer_that_is_asked_for_nothing_is_told_the_batch_alone(train, monkeypatch):
    asked, make = [], engines.TrainingArguments
    monkeypatch.setattr(engines, "TrainingArguments", lambda **given: asked.append(given) or make(**given))
    train("trainer_default", *flags_of("fp32_cpu", *TINY, *STEPS, "--optim", "sgd"))
    [given] = asked
    run = {"output_dir", "max_steps", "seed", "use_cpu", "train_sampling_strategy", "save_strategy"}
    assert given.keys() == {"per_device_train_batch_size", *run}
