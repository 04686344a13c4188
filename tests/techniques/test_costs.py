"""The FLOPs that techniques add, against those that PyTorch counts in real steps."""

import dataclasses

from rungwise.model.model import build_model
from rungwise.techniques import apply_techniques
from rungwise.techniques.costs import costs, why_not

import pytest
import torch
from harness import tiny_settings
from needs import EVERY_N_LAYERS, ROTARY, marked
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, GPT2Config

T, C, L, V = 32, 32, 5, 512
SIZES = {"vocab_size": V, "n_positions": T, "n_embd": C, "n_layer": L, "n_head": 2, "use_cache": False}
LLAMA = {
    "vocab_size": V,
    "hidden_size": C,
    "intermediate_size": 48,
    "num_hidden_layers": L,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
CONFIGS = {
    "GPT-2": GPT2Config(**SIZES, resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0),
    "GPT-2 with dropout": GPT2Config(**SIZES),
    "Llama": AutoConfig.for_model("llama", **LLAMA),
}
CHECKPOINTING = {
    "every block": {},
    "every second": {"gradient_checkpointing_kwargs": {"every_n_layers": 2}},
    "reentrant": {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
}


def flops_of_a_step(settings, config):
    """Of one row, forward and backward, as PyTorch counts them."""
    model = build_model(settings, config)
    model.train()
    model, _ = apply_techniques(model, settings, torch.device("cpu"))
    row = torch.zeros((1, T), dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=row, labels=row).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("model", marked(CONFIGS, {"Llama": ROTARY}))
@pytest.mark.parametrize("case", marked(CHECKPOINTING, {"every second": EVERY_N_LAYERS}))
def test_checkpointing_adds_the_flops_that_are_counted(model, case):
    config = CONFIGS[model]
    plain = tiny_settings(attn_implementation="eager", block_size=T)
    settings = dataclasses.replace(plain, gradient_checkpointing=True, **CHECKPOINTING[case])
    before, after = (flops_of_a_step(one, config) for one in (plain, settings))
    found = costs(plain, config)
    assert found.exact and found.share(plain) == 0
    assert found.share(settings) == pytest.approx(after / before - 1, rel=1e-9)


def test_of_gpt2_that_is_a_formula():
    found = costs(tiny_settings(block_size=T), CONFIGS["GPT-2"]).forward
    assert found.blocks == (24 * T * C * C + 4 * T * T * C,) * L
    assert found.last == (8 * T * C * C,) * L and found.head == 2 * T * C * V
    assert found.total == sum(found.blocks) + found.head


def test_the_loss_in_chunks_adds_a_product_in_bf16_alone():
    config = CONFIGS["GPT-2"]
    found = costs(tiny_settings(block_size=T), config)
    share = found.forward.head / (3 * found.forward.total)
    for precision, products in (("no", 0), ("bf16", 1), ("fp16", 3)):
        settings = tiny_settings(block_size=T, linear_cross_entropy=True, mixed_precision=precision)
        assert found.share(settings) == pytest.approx(products * share)
    # Frozen matrices have no gradients: the same work is more of a smaller whole.
    assert found.share(dataclasses.replace(settings, use_peft=True)) == pytest.approx(1.5 * products * share)


def test_what_cannot_be_counted_is_bounded():
    config = AutoConfig.for_model("qwen3_moe", **LLAMA, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
    found = costs(tiny_settings(block_size=T), config)
    assert not found.exact
    shares = [found.share(tiny_settings(gradient_checkpointing=True, **kwargs)) for kwargs in CHECKPOINTING.values()]
    assert shares == pytest.approx([1 / 3, 1 / 5, 1 / 3])
    assert found.share(tiny_settings(linear_cross_entropy=True)) == 0


def test_techniques_that_a_model_cannot_be_had_with():
    llama, gpt2 = CONFIGS["Llama"], CONFIGS["GPT-2"]
    assert "no activation of LlamaForCausalLM is a chain" in why_not(tiny_settings("--fused_activation"), llama)
    assert why_not(tiny_settings("--fused_activation", "--linear_cross_entropy"), gpt2) is None
    wide = dataclasses.replace(tiny_settings(), linear_cross_entropy=True)
    narrow = AutoConfig.for_model("llama", **LLAMA | {"vocab_size": 2 * C})
    assert "a vocabulary of 64 is too small beside a width of 32 for chunks" in why_not(wide, narrow)
    assert why_not(tiny_settings(), narrow) is None
