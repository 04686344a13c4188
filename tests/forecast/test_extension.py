"""Models that are extended from two small depths, against traces of the whole model, to the last byte."""

import dataclasses

from rungwise.forecast import forecast, peak
from rungwise.forecast.depth import Pattern, find_pattern, kinds
from rungwise.forecast.extension import Extension
from rungwise.forecast.trace import eager, trace
from rungwise.metrics.memory import MIB
from rungwise.model.config import load_config

import pytest
import torch
from harness import tiny_settings
from needs import EVERY_N_LAYERS, LOSS_IN_CHUNKS, marked, needs
from transformers import AutoConfig

SMALL = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "use_cache": False,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
GPT2 = {"vocab_size": 512, "n_positions": 64, "n_embd": 32, "n_head": 2, "n_layer": 11, "use_cache": False}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
WINDOWS = (["sliding_attention"] * 2 + ["full_attention"]) * 4 + ["sliding_attention"] * 2
# By name: model type, config, and the layers that the larger of two traces has.
MODELS = {
    "GPT-2": ("gpt2", GPT2, 3),
    "Llama": ("llama", {**SMALL, "num_hidden_layers": 12}, 3),
    # Two layers that look back over a window and one that sees all; two are left over.
    "Gemma 3": ("gemma3_text", {**SMALL, "num_hidden_layers": 14, "sliding_window": 16, "layer_types": WINDOWS}, 11),
    "Qwen3-MoE, its first two layers dense": (
        "qwen3_moe",
        {**SMALL, **MOE, "num_hidden_layers": 10, "mlp_only_layers": [0, 1]},
        5,
    ),
    "Qwen3-MoE, each second layer dense": (
        "qwen3_moe",
        {**SMALL, **MOE, "num_hidden_layers": 10, "decoder_sparse_step": 2},
        6,
    ),
}
TECHNIQUES = {
    "fp32": {},
    "bf16, accumulation": {"mixed_precision": "bf16", "gradient_accumulation_steps": 4, "micro_batch_size": 2},
    "checkpointing": {"gradient_checkpointing": True},
    "every other layer": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"every_n_layers": 2},
        "mixed_precision": "bf16",
    },
    "few tokens": {"micro_batch_size": 1, "global_batch_size": 1, "block_size": 4},
    "LoRA": {"use_peft": True},
}
HALF = {"mixed_precision": "bf16", "gradient_checkpointing": True}
# Where little else is held than what products need.
LITTLE = {
    "bf16, checkpointing": HALF,
    "bf16, checkpointing, chunked loss": {**HALF, "linear_cross_entropy": True},
}


def config_of(model):
    model_type, values, _ = MODELS[model]
    return AutoConfig.for_model(model_type, **values)


def settings_of(technique):
    return tiny_settings(**{"global_batch_size": 8, "micro_batch_size": 8, "block_size": 64, **TECHNIQUES[technique]})


CASES = (
    *((model, technique) for model in ("GPT-2", "Llama") for technique in TECHNIQUES),
    *((model, technique) for model in list(MODELS)[2:] for technique in ("fp32", "bf16, accumulation")),
    ("Gemma 3", "checkpointing"),
    ("Qwen3-MoE, its first two layers dense", "every other layer"),
)


@pytest.mark.breadth(4)
@pytest.mark.parametrize("model, technique", marked(CASES, {"every other layer": EVERY_N_LAYERS}))
def test_two_depths_give_the_whole_model(model, technique):
    config, settings = config_of(model), settings_of(technique)
    extended = forecast(settings, config)
    whole = trace(eager(settings, settings.gradient_accumulation_steps), config)
    assert extended.traced_layers < whole.blocks
    assert extended.peak_mib * MIB == whole.peak
    for owner, size in extended.owners.items():
        assert size == pytest.approx(whole.owners[f"{owner}_mib"], abs=1e-9), owner
    if technique == "fp32":
        assert extended.traced_layers == MODELS[model][2]


@pytest.mark.breadth(2)
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("technique", marked(LITTLE, {"chunked loss": LOSS_IN_CHUNKS}))
@pytest.mark.parametrize("model", ["GPT-2", "Llama"])
def test_any_depth_is_extended_to_the_byte(model, technique, micro_batches, monkeypatch):
    """Also where one moment of a stretch is the highest of few layers, and another of many."""
    changes = {"gradient_accumulation_steps": micro_batches, "micro_batch_size": 8 // micro_batches}
    settings = dataclasses.replace(settings_of("fp32"), **LITTLE[technique], **changes)
    traced, find = {}, peak.find_pattern

    def once(settings, config, device):
        if config.num_hidden_layers not in traced:
            traced[config.num_hidden_layers] = trace(settings, config, device)
        return traced[config.num_hidden_layers]

    monkeypatch.setattr(peak, "trace", once)
    for depth in range(4, 8):
        config = _deep(config_of(model), depth)
        config.vocab_size, config.hidden_size = 1024, 64
        monkeypatch.setattr(peak, "find_pattern", find)
        extended = forecast(settings, config)
        monkeypatch.setattr(peak, "find_pattern", lambda _: None)
        whole = forecast(settings, config)
        assert (extended.traced_layers, whole.traced_layers) == (3, depth)
        assert extended.peak_mib == whole.peak_mib
        assert extended.building_mib == whole.building_mib
        assert dict(extended.activations) == dict(whole.activations)


@pytest.mark.parametrize("model", ["Llama", "Gemma 3"])
def test_activations_by_module_are_those_of_the_whole_model(model, monkeypatch):
    config, settings = config_of(model), settings_of("checkpointing")
    extended = forecast(settings, config)
    monkeypatch.setattr(peak, "find_pattern", lambda _: None)
    whole = forecast(settings, config)
    assert whole.traced_layers == config.num_hidden_layers
    assert dict(extended.activations) == dict(whole.activations)
    # At the peak, which is the loss's, there are no gradients yet: the meter counts them, and so has less activations.
    assert sum(dict(whole.activations).values()) == pytest.approx(
        whole.owners["activations"] + whole.owners["gradients"]
    )


@needs("a block's hooks stand outside of its checkpoint", transformers="5.23")
def test_a_checkpointed_layer_keeps_its_output_and_the_state_of_random_numbers():
    config, settings = config_of("Llama"), settings_of("checkpointing")
    kept = dict(forecast(settings, config).activations)["model.layers.*"]
    state = 4 * settings.micro_batch_size * settings.block_size * config.hidden_size
    assert kept * MIB == config.num_hidden_layers * (state + len(torch.get_rng_state()))


def test_another_moment_may_be_the_highest_of_a_deeper_model():
    """Of two layers the loss is, of many the end of the backward pass, when all gradients are there."""
    settings, config = settings_of("checkpointing"), config_of("Llama")
    settings = dataclasses.replace(settings, micro_batch_size=1, global_batch_size=1)
    config.vocab_size, config.tie_word_embeddings = 8192, True
    few, more = (trace(eager(settings, 1), _deep(config, depth)) for depth in (2, 3))
    highest = [
        max(Extension(few, more, Pattern(0, 1, 0), 1, times).moments(), key=lambda moment: moment.held)
        for times in (0, 1000)
    ]
    assert [moment.stretch for moment in highest] == ["1 forward -1", "1 backward 0"]


def _deep(config, depth):
    config = AutoConfig.for_model(**config.to_dict())
    config.num_hidden_layers = depth
    config.layer_types = None
    return config


def test_patterns():
    assert find_pattern("aaaaaa") == Pattern(0, 1, 0)
    assert find_pattern("dabababab") == Pattern(1, 2, 0)
    assert find_pattern("abababab" + "a") == Pattern(0, 2, 1)
    assert find_pattern("aaaaaaaz") == Pattern(0, 1, 1)
    assert find_pattern("abc") is None
    assert find_pattern("") is None
    assert Pattern(1, 2, 1).kept(12, 2) == [0, 1, 2, 3, 4, 11]
    assert Pattern(1, 2, 1).times(12) == 5


def test_layers_are_told_apart():
    config, settings = config_of("Gemma 3"), settings_of("fp32")
    found = kinds(settings, config)
    assert len(set(found)) == 2
    assert [index for index, kind in enumerate(found) if kind == found[2]] == [2, 5, 8, 11]


def test_a_model_without_a_pattern_is_traced_whole():
    config, settings = _deep(config_of("Llama"), 3), settings_of("fp32")
    found = forecast(settings, config)
    assert found.traced_layers == 3
    assert found.peak_mib * MIB == trace(eager(settings, 1), config).peak


def test_what_has_no_forecast_says_why():
    broken = config_of("Llama")
    broken.hidden_act = "none of them"
    with pytest.raises(peak.NoForecast, match="llama cannot be traced: "):
        forecast(settings_of("fp32"), broken)


def test_what_a_package_keeps_for_the_process_is_not_made_of_fake_tensors():
    """torchao's table of the values of 8 bits: by another one a later training of the process learns nothing."""
    subclass_8bit = pytest.importorskip("torchao.optim.subclass_8bit")
    subclass_8bit.get_qmap_signed.cache_clear()
    settings = tiny_settings("--optim", "adamw_torch_8bit")
    forecast(settings, load_config(settings))
    table = subclass_8bit.get_qmap_signed()
    assert len(set(table)) == len(table) == 256 and min(table) < 0 < max(table)
