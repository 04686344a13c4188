"""The model: what is built, and what is refused before anything is."""

import dataclasses

from rungwise.model import model as models
from rungwise.model.config import default_config, load_config
from rungwise.model.model import build_model, save_model
from rungwise.model.probe import vocab_size
from rungwise.model.shrink import shrink
from rungwise.techniques import build_accelerator

import ablate
import pytest
import torch
from harness import LINES, MODEL, build_datasets, tiny_settings, word_tokenizer
from needs import MUSICGEN
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3Config,
    Gemma3ForCausalLM,
    Gemma3ForConditionalGeneration,
    Gemma3TextConfig,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

LLAMA = "vocab_size=128,hidden_size=32,intermediate_size=48,num_hidden_layers=2,num_attention_heads=2"


def test_the_default_is_a_real_gpt2_of_the_design():
    config = default_config()
    assert (config.vocab_size, config.n_embd, config.n_layer, config.n_head, config.n_positions) == (
        2048,
        256,
        6,
        8,
        256,
    )
    assert config.resid_pdrop == config.embd_pdrop == config.attn_pdrop == 0
    model = build_model(tiny_settings())
    assert type(model) is GPT2LMHeadModel
    assert model.lm_head.weight is model.transformer.wte.weight
    assert model.config.use_cache is False


def test_another_family_from_its_default_config():
    settings = tiny_settings("--model_type", "llama", "--config_overrides", LLAMA)
    model = build_model(settings)
    assert type(model) is LlamaForCausalLM and model.config.hidden_size == 32


def test_weights_saved_in_bf16_become_fp32_masters(tmp_path):
    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2
    )
    saved = LlamaForCausalLM(config).bfloat16()
    saved.save_pretrained(tmp_path)
    settings = tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path))
    model = build_model(settings)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert torch.equal(model.lm_head.weight, saved.lm_head.weight.float())
    pure = build_model(dataclasses.replace(settings, dtype="bfloat16"))
    assert {p.dtype for p in pure.parameters()} == {torch.bfloat16}
    assert torch.equal(pure.lm_head.weight, saved.lm_head.weight)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementation(attention):
    assert build_model(tiny_settings("--attn_implementation", attention)).config._attn_implementation == attention


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"config_overrides": None, "model_type": "lama"}, "--model_type lama: no such model type (did you mean"),
        ({"config_overrides": "n_layer=2,n_embed=3"}, "--config_overrides n_layer=2,n_embed=3: key n_embed"),
        ({"config_overrides": "n_layer=two"}, "--config_overrides n_layer=two:"),
        ({"config_overrides": None, "model_name_or_path": "/no/such/model"}, "--model_name_or_path /no/such/model:"),
        ({"config_overrides": None, "config_name": "/no/such/model"}, "--config_name /no/such/model:"),
        ({"attn_implementation": "foo"}, "--attn_implementation foo: "),
        (
            {"config_overrides": None, "model_type": "t5"},
            "--model_type t5: t5 is not a causal language model in Transformers; use one that AutoModelForCausalLM",
        ),
        ({"config_overrides": None, "model_type": "vit"}, "--model_type vit: vit is not a causal language model"),
        pytest.param(
            {"config_overrides": None, "model_type": "musicgen"},
            "--model_type musicgen: musicgen has no vocab_size of its own",
            marks=MUSICGEN,
        ),
        (
            {"config_overrides": "max_position_embeddings=34", "model_type": "roberta", "block_size": 33},
            "--block_size 33 is longer than the model's 32 positions; use --block_size 32 or less",
        ),
        ({"block_size": 33}, "--block_size 33 is longer than the model's 32 positions; use --block_size 32 or less"),
    ],
)
def test_problems(changes, message):
    [problem] = models.validate(
        tiny_settings(**{"block_size": 33 if "roberta" in changes.values() else 32, **changes})
    )
    assert message in problem and "\n" not in problem


def test_a_saved_model_is_ordinary(tmp_path):
    """What was switched off for training does not stay off for generation."""
    save_model(build_accelerator(tiny_settings()), build_model(tiny_settings()), tmp_path)
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert model.config.use_cache and model.generation_config.use_cache


def test_a_tokenizer_is_saved_beside_the_model_that_was_trained_with_it(tmp_path):
    save_model(build_accelerator(tiny_settings()), build_model(tiny_settings()), tmp_path / "bytes")
    assert not [path for path in (tmp_path / "bytes").iterdir() if "token" in path.name]
    flags = ["--config", "accelerate_configs/fp32_cpu.yaml", "--config_overrides", MODEL, "--block_size", "8"]
    flags += ["--dataset_name", LINES, "--tokenizer_name", word_tokenizer(tmp_path / "words", 100)]
    flags += ["--report_to", "none", "--max_steps", "3", "--untimed_steps", "2", "--save_model"]
    assert ablate.main([*flags, "--output_dir", str(tmp_path)]) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "model")("w7 w12")["input_ids"] == [7, 12]


def test_no_problems():
    assert models.validate(tiny_settings()) == []
    assert load_config(tiny_settings()).n_layer == 2


def test_of_a_model_that_sees_the_text_part_is_trained(tmp_path):
    """Its config is one in another, its weights go by longer names, and the tower that sees stays behind."""
    config = shrink(Gemma3Config())
    torch.manual_seed(0)
    whole = Gemma3ForConditionalGeneration(config)
    whole.save_pretrained(tmp_path)
    settings = tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path))
    assert models.validate(settings) == []
    model = build_model(settings)
    assert type(model) is Gemma3ForCausalLM
    text = whole.model.language_model.state_dict()
    assert text and all(torch.equal(model.model.state_dict()[name], weights) for name, weights in text.items())
    assert build_datasets(settings)[0][0]["input_ids"].max() < vocab_size(config)
    # From a default config, with sizes of its text part.
    small = tiny_settings(config_overrides="vocab_size=300,hidden_size=32", model_type="gemma3")
    assert (type(load_config(small)), vocab_size(load_config(small))) == (Gemma3TextConfig, 300)


@pytest.mark.parametrize("kind", ["t5", "vit"])
def test_a_checkpoint_that_is_no_language_model_is_refused_by_its_flag(kind, tmp_path):
    CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
    [problem] = models.validate(tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path)))
    assert problem.startswith(f"--model_name_or_path {tmp_path}: {kind} is not a causal language model")
