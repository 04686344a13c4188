"""A checkpoint's weights are those of the model, or it is refused before anything is built."""

import json

from rungwise.errors import SettingsError
from rungwise.model import model as models
from rungwise.model.model import build_model
from rungwise.model.shrink import shrink
from rungwise.result_file import read_result

import ablate
import pytest
import torch
from harness import TINY, tiny_settings
from safetensors.torch import load_file, save_file
from transformers import (
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

FILE = "model.safetensors"
LLAMA = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=2,
    tie_word_embeddings=False,
)


def saved(folder, kind=LlamaForCausalLM, config=LLAMA, **options):
    """Saves a small model with random weights, and returns the settings of a run that begins from it."""
    torch.manual_seed(0)
    model = kind(shrink(config))
    model.save_pretrained(folder, **options)
    return tiny_settings(config_overrides=None, model_name_or_path=str(folder))


def rewrite(folder, change):
    """Puts `change(weights)` in the place of a checkpoint's weights."""
    save_file(change(load_file(folder / FILE)), folder / FILE, {"format": "pt"})


def prefixed(prefix):
    return lambda weights: {f"{prefix}{name}": weight for name, weight in weights.items()}


def without(part):
    return lambda weights: {name: weight for name, weight in weights.items() if part not in name}


# By the fault: what is done to a llama's weights, and what is said of it.
FAULTS = {
    "torch.compile": (
        prefixed("_orig_mod."),
        ["21 missing", "21 unexpected", "lm_head.weight", "saved from inside torch.compile", "_orig_mod."],
    ),
    "DDP": (prefixed("module."), ["21 missing", "21 unexpected", "inside DistributedDataParallel", "module."]),
    "compiled blocks": (
        lambda weights: {name.replace("layers.0.", "layers.0._orig_mod."): w for name, w in weights.items()},
        ["9 missing", "model.layers.0._orig_mod.input_layernorm.weight", "saved from inside torch.compile"],
    ),
    "a layer": (without("layers.1."), ["9 missing", "model.layers.1.input_layernorm.weight", ", ..."]),
    "an untied head": (without("lm_head"), ["1 missing, which would be random: lm_head.weight;"]),
    "one too many": (
        lambda weights: {**weights, "model.extra.weight": torch.zeros(3)},
        ["1 unexpected, which would be left out: model.extra.weight;"],
    ),
    "a shape": (
        lambda weights: {**weights, "model.norm.weight": torch.zeros(3)},
        ["1 of another shape, which would be random: model.norm.weight (3 in place of 32);"],
    ),
    "all": (lambda weights: {}, ["21 missing"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_weights_of_another_model_are_refused_by_name(fault, tmp_path):
    change, words = FAULTS[fault]
    settings = saved(tmp_path)
    assert models.validate(settings) == []
    rewrite(tmp_path, change)
    [problem] = models.validate(settings)
    assert problem.startswith(f"--model_name_or_path {tmp_path}: its weights are not this model's: ")
    assert all(word in problem for word in words) and "\n" not in problem
    # Whoever builds without asking before is told the same.
    with pytest.raises(SettingsError) as refused:
        build_model(settings)
    assert refused.value.errors == [problem]


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module."])
def test_the_remedy_for_a_prefix_is_one(prefix, tmp_path):
    settings = saved(tmp_path)
    rewrite(tmp_path, prefixed(prefix))
    rewrite(tmp_path, lambda weights: {name.replace(prefix, ""): weight for name, weight in weights.items()})
    assert models.validate(settings) == []


def test_who_means_it_trains_and_it_is_kept(tmp_path):
    settings = saved(tmp_path)
    weights = load_file(tmp_path / FILE)
    rewrite(tmp_path, lambda weights: {**without("lm_head")(weights), "model.norm.weight": torch.zeros(3)})
    meant = tiny_settings(
        config_overrides=None, model_name_or_path=settings.model_name_or_path, ignore_mismatched_weights=True
    )
    assert models.validate(meant) == []
    model = build_model(meant)
    assert model.mismatched_weights == {
        "missing": ["lm_head.weight"],
        "mismatched": ["model.norm.weight (3 in place of 32)"],
    }
    assert torch.equal(model.model.embed_tokens.weight, weights["model.embed_tokens.weight"])
    assert not torch.equal(model.lm_head.weight, weights["lm_head.weight"])


def with_old_buffers(folder):
    """As GPT-2 on the Hub: masks of attention, and names without those of the base model."""
    without_the_base_models_name(folder)
    masks = {"h.0.attn.bias": torch.ones(1, 1, 64, 64), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    rewrite(folder, lambda weights: weights | masks)


def as_pickle_with_both_tied(folder):
    saved(folder, GPT2LMHeadModel, GPT2Config())
    weights = load_file(folder / FILE)
    (folder / FILE).unlink()
    torch.save({**weights, "lm_head.weight": weights["transformer.wte.weight"]}, folder / "pytorch_model.bin")


def with_plain_names_of_its_text(folder):
    saved(folder, Gemma3ForConditionalGeneration, Gemma3Config())
    rewrite(folder, lambda weights: {name.removeprefix("language_model."): w for name, w in weights.items()})


def without_the_base_models_name(folder):
    saved(folder, GPT2LMHeadModel, GPT2Config())
    rewrite(folder, lambda weights: {name.removeprefix("transformer."): weight for name, weight in weights.items()})


# What is saved by other names, in other files or beside what is loaded, and is the model's all the same.
WHOLE = {
    "tied": lambda folder: saved(folder, GPT2LMHeadModel, GPT2Config()),
    "experts": lambda folder: saved(folder, MixtralForCausalLM, MixtralConfig()),
    "shards": lambda folder: saved(folder, max_shard_size="20KB"),
    "old buffers": with_old_buffers,
    "a pickle": as_pickle_with_both_tied,
    "a base model's": without_the_base_models_name,
    "one that sees": lambda folder: saved(folder, Gemma3ForConditionalGeneration, Gemma3Config()),
    "one that sees, with plain names of its text": with_plain_names_of_its_text,
}


def test_a_bias_is_no_mask(tmp_path):
    settings, name = saved(tmp_path), "model.layers.0.attention.bias"
    rewrite(tmp_path, lambda weights: {**weights, name: torch.zeros(1, 1, 8, 8)})
    assert models.validate(settings) == []
    rewrite(tmp_path, lambda weights: {**weights, name: torch.zeros(32)})
    assert f"1 unexpected, which would be left out: {name};" in models.validate(settings)[0]


@pytest.mark.parametrize("kind", WHOLE)
def test_what_transformers_takes_for_whole_is_whole(kind, tmp_path):
    WHOLE[kind](tmp_path)
    settings = tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path))
    assert models.validate(settings) == []
    assert build_model(settings).mismatched_weights == {}


def test_a_text_part_that_lacks_a_layer_is_refused(tmp_path):
    settings = saved(tmp_path, Gemma3ForConditionalGeneration, Gemma3Config())
    rewrite(tmp_path, without("language_model.model.layers.1."))
    [problem] = models.validate(settings)
    assert "missing, which would be random: model.layers.1." in problem and "unexpected" not in problem


def test_a_layer_too_many_of_a_text_part_is_not_taken_for_a_part_that_sees(tmp_path):
    settings = saved(tmp_path, Gemma3ForConditionalGeneration, Gemma3Config())
    extra = {"language_model.model.layers.9.mlp.up_proj.weight": torch.zeros(2, 2)}
    rewrite(tmp_path, lambda weights: weights | extra)
    [problem] = models.validate(settings)
    assert "1 unexpected, which would be left out: model.layers.9.mlp.up_proj.weight;" in problem


class Evil:
    """Runs something where it is unpickled."""

    def __reduce__(self):
        return (print, ("unpickled",))


def cut_off(folder):
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-100])


def without_a_shard(folder):
    saved(folder, max_shard_size="20KB")
    (folder / FILE).unlink()
    next(folder.glob("model-*.safetensors")).unlink()


def with_a_bad_index(folder):
    without_a_shard(folder)
    (folder / f"{FILE}.index.json").write_text("{")


def with_code(folder):
    (folder / FILE).unlink()
    torch.save({"lm_head.weight": Evil()}, folder / "pytorch_model.bin")


UNREADABLE = {
    "none": (lambda folder: (folder / FILE).unlink(), "no weights in it (model.safetensors); give --config_name"),
    "an empty file": (lambda folder: (folder / FILE).write_bytes(b""), "model.safetensors cannot be read ("),
    "cut off": (cut_off, "model.safetensors cannot be read ("),
    "a shard less": (without_a_shard, ".safetensors cannot be read ("),
    "a bad index": (with_a_bad_index, "model.safetensors.index.json cannot be read ("),
    "code": (with_code, "pytorch_model.bin is a pickle that holds more than weights, whose code is not run"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_weights_that_cannot_be_read_are_one_sentence(kind, tmp_path, capsys):
    change, words = UNREADABLE[kind]
    settings = saved(tmp_path)
    change(tmp_path)
    [problem] = models.validate(settings)
    assert problem.startswith(f"--model_name_or_path {tmp_path}: ") and words in problem and "\n" not in problem
    assert "unpickled" not in capsys.readouterr().out


def test_a_run_from_weights_of_another_model(tmp_path, capsys):
    """Refused with all else that is wrong before there is a folder; meant, it is recorded what was random."""
    settings = saved(tmp_path / "model")
    rewrite(tmp_path / "model", without("lm_head"))
    flags = ["--config", "accelerate_configs/fp32_cpu.yaml", "--output_dir", str(tmp_path / "run"), *TINY[2:]]
    flags += ["--model_name_or_path", settings.model_name_or_path, "--max_steps", "3", "--untimed_steps", "2"]
    with pytest.raises(SystemExit) as ended:
        ablate.main([*flags, "--warmup_steps", "2"])
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and "2 problems with this call" in errors and "lm_head.weight" in errors
    assert "Traceback" not in errors and not (tmp_path / "run").exists()
    assert ablate.main([*flags, "--ignore_mismatched_weights"]) == 0
    result = read_result(tmp_path / "run")
    assert result["evidence"]["mismatched_weights"] == {"missing": ["lm_head.weight"]}
    assert json.dumps(result["settings"]["ignore_mismatched_weights"]) == "true"
