"""What a config comes from: whatever cannot be trained is one sentence with the way out, before anything is built."""

import dataclasses
import json

from rungwise.model import model as models
from rungwise.model.config import load_config
from rungwise.model.model import build_model, empty_model
from rungwise.model.shrink import shrink
from rungwise.result_file import read_result
from rungwise.settings.fields import is_default_model

import ablate
import pytest
from harness import TINY, tiny_settings
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, dynamic_module_utils

LLAMA = LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
# A model whose code comes with it.
CODE = """
from transformers import LlamaConfig, LlamaForCausalLM
print("the model's own code runs")
class OwnConfig(LlamaConfig):
    model_type = "own"
class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig
"""
OWN = {
    "model_type": "own",
    "auto_map": {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"},
}


def changed(folder, **changes):
    """Puts changes into a saved config.json; None takes a key out."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))


def without(name):
    return lambda folder: (folder / name).unlink()


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def changing(**changes):
    return lambda folder: changed(folder, **changes)


def gguf(folder):
    (folder / "config.json").rename(folder / "model-q4.gguf")


SOURCES = {
    "an adapter": (
        write("adapter_config.json", '{"base_model_name_or_path": "gpt2", "peft_type": "LORA"}'),
        "is an adapter (adapter_config.json), no whole model; merge it first by AutoPeftModelForCausalLM",
    ),
    "quantized": (
        changing(quantization_config={"quant_method": "gptq", "bits": 4}),
        "its weights are quantized (gptq), which a run cannot train as they are; give the checkpoint in fp32",
    ),
    "a newer type": (changing(model_type="llama9"), "has no model type llama9 (did you mean llama"),
    "no type": (changing(model_type=None), "its config.json has no model_type; add the one it is of"),
    "no JSON": (write("config.json", "{"), "is not a valid JSON file"),
    "a list": (write("config.json", "[]"), "its config.json holds no object"),
    "no config": (without("config.json"), "no config.json in it; give the folder that save_pretrained wrote"),
    "GGUF": (gguf, "GGUF weights are quantized for inference; convert them once by AutoModelForCausalLM"),
    "another kind": (changing(model_type="vit"), "vit is not a causal language model in Transformers"),
    "own code": (changing(**OWN), "own is made of Python code that comes with it and is not run unasked; read that"),
    "own code of a known type": (
        changing(model_type="vit", auto_map={"AutoModelForCausalLM": "own_code.OwnModel"}),
        "vit is made of Python code that comes with it",
    ),
    "a padding token beyond the vocabulary": (
        changing(pad_token_id=128),
        "pad_token_id 128 lies beyond its 128 tokens; set pad_token_id to one of them",
    ),
    "sizes that do not fit": (changing(num_attention_heads=0), ": "),
}


@pytest.fixture(autouse=True)
def nobody_at_the_terminal(monkeypatch, tmp_path_factory):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))


@pytest.mark.parametrize("flag", ["model_name_or_path", "config_name"])
@pytest.mark.parametrize("kind", SOURCES)
def test_what_cannot_be_trained_is_one_sentence(kind, flag, tmp_path, capsys):
    change, words = SOURCES[kind]
    LlamaForCausalLM(LLAMA).save_pretrained(tmp_path)
    (tmp_path / "own_code.py").write_text(CODE)
    change(tmp_path)
    [problem] = models.validate(tiny_settings(config_overrides=None, **{flag: str(tmp_path)}))
    assert problem.startswith(f"--{flag} {tmp_path}: ") and words in problem
    assert "\n" not in problem and len(problem) < 500
    assert "own code runs" not in capsys.readouterr().out


def test_a_file_is_no_folder(tmp_path):
    for name, words in {"model.gguf": "GGUF weights are", "model.safetensors": "is a file; give the folder"}.items():
        (tmp_path / name).write_text("")
        [problem] = models.validate(tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path / name)))
        assert words in problem


@pytest.mark.parametrize("name", ["gradient_checkpointing", "output_hidden_states", "output_attentions"])
def test_what_a_run_decides_is_not_decided_by_a_config(name, tmp_path):
    LLAMA.save_pretrained(tmp_path)
    settings = tiny_settings(config_overrides=None, config_name=str(tmp_path))
    assert models.validate(settings) == []
    changed(tmp_path, **{name: True}, attn_implementation="eager")
    [problem] = models.validate(settings)
    remedy = f"set {name}=false in {tmp_path}/config.json, or --config_overrides {name}=false"
    assert problem.startswith(f"{name} is true: ") and remedy in problem
    settings = tiny_settings(config_overrides=f"{name}=false", config_name=str(tmp_path))
    assert models.validate(settings) == []


def test_outputs_without_names_are_refused(tmp_path):
    LLAMA.save_pretrained(tmp_path)
    changed(tmp_path, return_dict=False)
    [problem] = models.validate(tiny_settings(config_overrides=None, config_name=str(tmp_path)))
    assert problem.startswith("return_dict is false: ") and "set return_dict=true in" in problem
    settings = tiny_settings(config_overrides="return_dict=true", config_name=str(tmp_path))
    assert models.validate(settings) == []


def test_a_padding_token_beyond_the_vocabulary_that_no_embedding_has_is_let_be(tmp_path):
    """GPT-2 has no row for padding, so that the number means nothing to it."""
    GPT2LMHeadModel(shrink(GPT2Config())).save_pretrained(tmp_path)
    changed(tmp_path, pad_token_id=50257)
    assert models.validate(tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path))) == []


def test_trusted_code_is_run(tmp_path, capsys):
    LlamaForCausalLM(LLAMA).save_pretrained(tmp_path)
    (tmp_path / "own_code.py").write_text(CODE)
    changed(tmp_path, **OWN)
    settings = tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path), trust_remote_code=True)
    assert models.validate(settings) == []
    assert type(build_model(settings)).__name__ == "OwnModel"
    assert "own code runs" in capsys.readouterr().out
    flags = ["--config", "accelerate_configs/fp32_cpu.yaml", "--output_dir", str(tmp_path / "run"), *TINY[2:]]
    flags += ["--model_name_or_path", str(tmp_path), "--max_steps", "3", "--untimed_steps", "2"]
    assert ablate.main([*flags, "--trust_remote_code"]) == 0
    result = read_result(tmp_path / "run")
    assert result["settings"]["trust_remote_code"] is True and result["evidence"]["causal"] is True


def test_an_empty_model_is_the_built_one_without_storage():
    settings = tiny_settings()
    empty, built = empty_model(settings).state_dict(), build_model(settings).state_dict()
    assert {name: w.shape for name, w in empty.items()} == {name: w.shape for name, w in built.items()}
    assert all(weight.is_meta for weight in empty.values())


def test_a_run_of_what_cannot_be_trained_ends_with_a_sentence_and_code_2(tmp_path, capsys):
    LlamaForCausalLM(LLAMA).save_pretrained(tmp_path / "model")
    changed(tmp_path / "model", **OWN)
    flags = ["--config", "accelerate_configs/fp32_cpu.yaml", "--output_dir", str(tmp_path / "run"), *TINY[2:]]
    with pytest.raises(SystemExit) as ended:
        ablate.main([*flags, "--model_name_or_path", str(tmp_path / "model")])
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and "add --trust_remote_code" in errors
    assert "Traceback" not in errors and not (tmp_path / "run").exists()


def test_the_default_model_is_what_there_is_where_no_flag_names_one(tmp_path):
    plain = tiny_settings(config_overrides=None)
    assert is_default_model(plain.as_dict(), plain.origins)
    GPT2Config().save_pretrained(tmp_path)
    for changes in (
        {"model_type": "gpt2"},
        {"config_overrides": "n_layer=2"},
        {"config_name": str(tmp_path)},
        {"model_name_or_path": str(tmp_path)},
    ):
        other = dataclasses.replace(plain, **changes)
        assert not is_default_model(other.as_dict(), other.origins)
        assert load_config(other).to_dict() != load_config(plain).to_dict()


SIZES = {
    "n_layer=0": "it has 0 layers",
    "n_layer=-3": "it has -3 layers",
    "n_layer=1000000": "it has 1000000 layers, which no model has; give one of 1 to 1000",
    "vocab_size=0": "its vocab_size is 0, of which there is nothing to learn",
    "vocab_size=1": "its vocab_size is 1",
}


@pytest.mark.parametrize("overrides", SIZES)
def test_sizes_that_no_model_has(overrides):
    [problem] = models.validate(tiny_settings(config_overrides=overrides))
    assert problem.startswith(f"--config_overrides {overrides}: {SIZES[overrides]}")
