"""Time against a fake clock, FLOPs against PyTorch's counter and the formula."""

import itertools
from contextlib import nullcontext

from rungwise.metrics.flops import matmul_flops_per_second, model_flops_per_row
from rungwise.metrics.throughput import StepMeter, throughput
from rungwise.model.config import default_config

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from needs import ROTARY
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

# The special tokens of a real vocabulary lie outside a small one.
IDS = {"bos_token_id": None, "eos_token_id": None}
CPU = torch.device("cpu")


class FakeMemory:
    """A memory meter that is done after some windows."""

    def __init__(self, windows: int):
        self.left = windows

    @property
    def done(self) -> bool:
        return self.left <= 0

    def peak_bytes(self) -> int:
        return 42

    def window(self):
        self.left -= 1
        return nullcontext()


@pytest.mark.parametrize("metered, untimed, first_timed", [(2, 3, 4), (2, 2, 3), (5, 3, 6)])
def test_phases_never_mix(metered, untimed, first_timed):
    """Steps under the memory meter are never timed, however many they are."""
    ticks = iter(range(1000))
    meter = StepMeter(CPU, FakeMemory(metered), untimed, clock=lambda: next(ticks) * 0.5)
    seen = []
    for _ in range(8):
        with meter.step() as time:
            pass
        seen.append(time)
    assert [t.timed for t in seen] == [n >= first_timed for n in range(1, 9)]
    assert all(t.seconds == 0.5 for t in seen)
    assert [t.peak_bytes for t in seen] == [None] * (metered - 1) + [42] * (9 - metered)


def test_a_step_in_which_something_was_compiled_is_not_timed():
    compilations = iter([0, 0, 0, 0, 0, 2, 2, 2])
    meter = StepMeter(CPU, FakeMemory(1), 2)
    meter.compilations = lambda: next(compilations)
    timed = []
    for _ in range(4):
        with meter.step() as time:
            pass
        timed.append(time.timed)
    assert timed == [False, False, False, True]


def test_throughput_of_known_times():
    found = throughput([0.1] * 9 + [0.2], [100] * 10)
    assert found["tokens_per_second"] == pytest.approx(1000 / 1.1)
    assert found["step_ms_median"] == pytest.approx(100)
    assert found["step_ms_p10"] == pytest.approx(100)
    assert found["step_ms_p90"] == pytest.approx(110)
    assert found["timed_steps"] == 10 and found["tokens"] == 1000


@given(st.lists(st.floats(1e-4, 10), min_size=0, max_size=30))
def test_no_speed_from_too_few_steps_and_never_without_spread(seconds):
    found = throughput(seconds, [7] * len(seconds))
    figures = [found[key] for key in ("tokens_per_second", "step_ms_median", "step_ms_p10", "step_ms_p90")]
    assert found["timed_steps"] == len(seconds)
    if len(seconds) < 10:
        assert figures == [None] * 4
    else:
        assert figures[2] <= figures[1] * (1 + 1e-9) and figures[1] <= figures[3] * (1 + 1e-9)
        assert 1000 * min(seconds) <= figures[1] * (1 + 1e-9)


@pytest.mark.parametrize("length", [16, 64])
def test_flops_of_gpt2_are_the_formula_and_the_counter(length):
    config = GPT2Config(vocab_size=96, n_positions=64, n_embd=48, n_layer=3, n_head=4, use_cache=False, **IDS)
    T, C, L, V = length, 48, 3, 96
    assert model_flops_per_row(config, T) == 3 * (2 * T * (12 * C * C * L + C * V) + 4 * T * T * C * L)
    # A whole training step of real tensors, forward and backward.
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    ids = torch.zeros((1, T), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    assert model_flops_per_row(config, T) == counter.get_total_flops()


FROZEN = {
    "embeddings": ("transformer.wte", "transformer.wpe"),
    "the first blocks": ("transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1"),
    "the last block": ("transformer.h.2",),
    "all but a norm": ("transformer.w", "transformer.h."),
}


@pytest.mark.parametrize("case", FROZEN)
def test_flops_of_a_model_that_is_frozen_in_part_are_the_counters(case):
    """Neither is a weight's gradient counted that nobody computes, nor what lies below all that is trained."""
    config = GPT2Config(vocab_size=96, n_positions=64, n_embd=48, n_layer=3, n_head=4, use_cache=False, **IDS)
    config._attn_implementation = "eager"
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    frozen = [name for name, _ in model.named_parameters() if name.startswith(FROZEN[case])]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    ids = torch.zeros((1, 16), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    found = model_flops_per_row(config, 16, frozen)
    assert found == counter.get_total_flops() < model_flops_per_row(config, 16)


def test_flops_of_parameters_of_other_names_are_unknown():
    """A model of one's own, of which a part is frozen, is not the one that its config makes."""
    assert model_flops_per_row(default_config(), 16, ["trunk.weight"]) is None
    everything = [name for name, _ in GPT2LMHeadModel(default_config()).named_parameters()]
    adapted = model_flops_per_row(default_config(), 16, everything, adapters=True)
    assert 3 * adapted == 2 * model_flops_per_row(default_config(), 16)


def test_counting_leaves_the_model_as_it_is():
    """A config belongs to a model: counted with eager attention, it must not be trained with it."""
    model = GPT2LMHeadModel(GPT2Config(vocab_size=96, n_positions=64, n_embd=48, n_layer=1, n_head=4, **IDS))
    before = model.config.to_dict(), model.config._attn_implementation
    assert model_flops_per_row(model.config, 8)
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    assert model.config._attn_implementation == "sdpa"


@ROTARY
def test_flops_of_another_family_and_of_what_cannot_be_counted():
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        use_cache=False,
        **IDS,
    )
    per_token = 2 * (4 * 48 * 48 + 3 * 48 * 64) + 48 * 96
    assert model_flops_per_row(config, 16) == 3 * (2 * 16 * per_token + 4 * 16 * 16 * 48 * 2)
    broken = default_config()
    broken.activation_function = "no such function"
    assert model_flops_per_row(broken, 16) is None


@pytest.mark.parametrize("precision, dtype", [("no", torch.float32), ("bf16", torch.bfloat16)])
def test_matmul_rate_is_the_best_of_those_that_fill_the_time(precision, dtype, monkeypatch):
    """Without the first, which pays for starting up. Of (1024, 1024) times (1024, 1024), in the dtype of the run."""
    ticks = iter(itertools.accumulate([0, 0.1, 9, 0.4, 9, 0.25, 9, 0.3]))
    multiplied = []
    monkeypatch.setattr(torch, "mm", lambda a, b: multiplied.append((a.shape, b.shape, a.dtype, b.dtype)))
    rate = matmul_flops_per_second(CPU, precision, seconds=1, clock=lambda: next(ticks))
    assert rate == pytest.approx(2 * 1024**3 / 0.25)
    assert multiplied == [((1024, 1024), (1024, 1024), dtype, dtype)] * 4
