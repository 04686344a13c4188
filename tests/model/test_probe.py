"""What a model is asked before it is trained: whether it is causal, and how long a row it can read."""

from rungwise.errors import SettingsError
from rungwise.model import probe
from rungwise.model.model import build_model
from rungwise.model.probe import check_causal, longest_row, vocab_size
from rungwise.model.shrink import shrink
from rungwise.result_file import read_result

import ablate
import pytest
import torch
from harness import tiny_settings
from needs import MUSICGEN
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    MptConfig,
    OPTConfig,
    RobertaConfig,
    WhisperConfig,
)

STEPS = ["--dataset_name", "synthetic", "--report_to", "none", "--max_steps", "3", "--untimed_steps", "2"]
BERT = "vocab_size=256,hidden_size=32,num_hidden_layers=2,num_attention_heads=2,intermediate_size=64"


def small(model_type, dtype=torch.float32, **changes):
    """A small model of this type from its default config and `changes`."""
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(shrink(CONFIG_MAPPING[model_type](**changes)), dtype=dtype)


# Encoders that can be decoders, by whatever field decides; experts that a last token changes; windows, scans, and the
# decoder of an encoder-decoder.
SWITCHED = {
    "bert": ("is_decoder=true", {"is_decoder": True}),
    "electra": ("is_decoder=true", {"is_decoder": True}),
    "roberta": ("is_decoder=true", {"is_decoder": True}),
    "xlm": ("causal=true", {"causal": True}),
    "xlnet": ("attn_type=uni", {"attn_type": "uni"}),
}
CAUSAL = ["gpt2", "mixtral", "qwen3_moe", "gemma3_text", "bamba", "deepseek_v3", "bart", "rwkv"]


@pytest.mark.parametrize("model_type", SWITCHED)
def test_a_model_that_sees_the_next_token_is_refused_with_the_way_out(model_type):
    remedy, changes = SWITCHED[model_type]
    model = small(model_type)
    with pytest.raises(SettingsError, match=f"{type(model).__name__} is not causal: .* set {remedy} in config.json"):
        check_causal(model, 32, on_cpu=True)
    assert check_causal(small(model_type, **changes), 32, on_cpu=True) is True


def test_a_model_without_a_way_out_is_refused_too():
    with pytest.raises(SettingsError, match=r"CpmAntForCausalLM is not causal: .*; use a causal language model"):
        check_causal(small("cpmant"), 32, on_cpu=True)


@pytest.mark.parametrize("model_type", CAUSAL)
def test_causal_models_are_told_from_others_by_far(model_type):
    """A hundredth of the bound's distance to a leak is left on this side, too."""
    model = small(model_type)
    assert check_causal(model, 32, on_cpu=True) is True
    assert probe._moved(model, probe.ROW) < probe.ROUNDING / 10


class Peeking(GPT2LMHeadModel):
    """Adds a little of what the next token says."""

    share = 1e-4

    def forward(self, **arguments):
        output = super().forward(**arguments)
        output.logits[:, :-1] += self.share * output.logits[:, 1:].clone()
        return output


class Deaf(GPT2LMHeadModel):
    """Reads no row at all."""

    def forward(self, **arguments):
        raise RuntimeError("pixel_values are missing\nand more")


class LongOnly(GPT2LMHeadModel):
    """Reads whole chunks of 16 tokens alone."""

    def forward(self, input_ids, **arguments):
        if input_ids.shape[1] % 16:
            raise RuntimeError("no whole chunk")
        return super().forward(input_ids, **arguments)


def own(kind):
    torch.manual_seed(0)
    return kind(shrink(GPT2Config()))


def test_a_leak_of_a_hundredth_of_a_percent_is_found():
    with pytest.raises(SettingsError, match="Peeking is not causal"):
        check_causal(own(Peeking), 32, on_cpu=True)


def test_a_small_leak_does_not_hide_behind_the_rounding_of_bf16():
    """A small fp32 model stands in for one in bf16; experts in bf16 would move by more than a leak."""
    with pytest.raises(SettingsError, match="Peeking is not causal"):
        check_causal(own(Peeking).bfloat16(), 32, on_cpu=True)
    with pytest.raises(SettingsError, match="BertLMHeadModel is not causal"):
        check_causal(small("bert", torch.bfloat16), 32, on_cpu=True)
    assert check_causal(small("mixtral", torch.bfloat16), 32, on_cpu=True) is True


def test_a_model_that_cannot_be_asked_is_not_passed_in_silence():
    with pytest.raises(
        SettingsError, match=r"Deaf cannot be trained on rows of tokens alone: pixel_values are missing$"
    ):
        check_causal(own(Deaf), 32, on_cpu=True)
    # What runs on an accelerator alone is not refused, and not called causal.
    assert check_causal(own(Deaf), 32, on_cpu=False) is None
    assert check_causal(own(LongOnly), 32, on_cpu=True) is True


def test_asking_leaves_the_model_and_the_random_numbers_alone():
    model = build_model(tiny_settings())
    model.train()
    model.transformer.h[0].eval()
    before = {module: module.training for module in model.modules()}
    state = torch.get_rng_state()
    check_causal(model, 32, on_cpu=True)
    longest_row(model.config, 33)
    assert {module: module.training for module in model.modules()} == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_asking_compiles_nothing():
    graphs = []
    model = own(GPT2LMHeadModel)
    model.compile(backend=lambda graph, inputs: graphs.append(graph) or graph.forward)
    assert check_causal(model, 32, on_cpu=True) is True
    assert graphs == []


def test_a_run_of_a_model_that_is_not_causal_ends_before_its_first_step(tmp_path, capsys):
    config = ["--config", "accelerate_configs/fp32_cpu.yaml", "--block_size", "16", "--output_dir", str(tmp_path)]
    assert ablate.main([*config, *STEPS, "--model_type", "bert", "--config_overrides", BERT]) == 2
    found = read_result(tmp_path)
    assert (found["status"], found["loss"]) == ("failed", {})
    assert "BertLMHeadModel is not causal" in found["reason"] and "set is_decoder=true" in found["reason"]
    assert "Traceback" not in capsys.readouterr().err
    overrides = f"{BERT},is_decoder=true"
    assert ablate.main([*config, *STEPS, "--model_type", "bert", "--config_overrides", overrides]) == 0
    assert read_result(tmp_path)["evidence"]["causal"] is True


@pytest.mark.parametrize(
    "config, reads",
    [
        # Learnt positions: under several names, behind an offset that is part of the number or stands beside it.
        (GPT2Config(n_positions=40), 40),
        (OPTConfig(max_position_embeddings=40), 40),
        (RobertaConfig(max_position_embeddings=40), 38),
        (WhisperConfig(max_target_positions=20), 20),
        # A table of biases; the promise of a config with rotary positions; no bound at all.
        (MptConfig(max_seq_len=24), 24),
        (LlamaConfig(max_position_embeddings=48), 48),
        (BloomConfig(), 100),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_longest_row_is_found_by_reading(config, reads):
    assert longest_row(config, 100) == reads
    assert longest_row(config, reads) == reads
    assert longest_row(config, 10) == 10


def test_a_model_that_cannot_be_made_small_has_its_configs_own_number(monkeypatch):
    monkeypatch.setattr(probe, "shrink", lambda config: 1 / 0)
    assert longest_row(RobertaConfig(max_position_embeddings=40), 100) == 40


def test_a_nested_config_has_the_vocabulary_of_its_text():
    assert vocab_size(Gemma3Config(text_config={"vocab_size": 300})) == 300
    assert vocab_size(GPT2Config(vocab_size=300)) == 300


@MUSICGEN
def test_a_config_of_two_texts_has_no_vocabulary_of_its_own():
    assert vocab_size(CONFIG_MAPPING["musicgen"]()) is None
