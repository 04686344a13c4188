"""LoRA: adapters alone are trained, owned and saved, with every other technique."""

from rungwise.metrics import memory
from rungwise.model.model import build_model, save_model
from rungwise.model.shrink import shrink
from rungwise.result_file import read_result
from rungwise.settings.parse import parse
from rungwise.techniques import fsdp, lora
from rungwise.techniques.seen import UnavailableTechnique

import ablate
import pytest
import torch
from harness import LINES, TINY, build_datasets, tiny_settings, train_tiny
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

LLAMA = "vocab_size=128,hidden_size=32,intermediate_size=48,num_hidden_layers=2"
LLAMA += ",num_attention_heads=2,num_key_value_heads=2"
FAMILIES = {
    "gpt2": [],
    "llama": ["--model_type", "llama", "--config_overrides", LLAMA],
}


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_alone_are_trained_recomputed_and_owned(family):
    flags = [*FAMILIES[family], "--max_steps", "6", "--gradient_checkpointing", "--use_peft", "--lora_r", "4"]
    settings = tiny_settings(*flags, config="accelerate_configs/bf16_accum4.yaml")
    trained = train_tiny(settings)
    evidence = trained.proof.verify(trained.steps[-1])
    assert evidence["recomputed_blocks"] > 0 and evidence["compute_dtype"] == "bfloat16"
    assert 0 < evidence["trained_parameters"] < 0.2
    adapters = [p for name, p in trained.model.named_parameters() if "lora_" in name]
    held = [p for group in trained.optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in adapters} == {id(p) for p in held}
    # Two moments of every adapter, and a step counter each; nothing of the frozen weights.
    moments = 2 * memory.tensor_bytes(iter(adapters))
    assert memory.optimizer_state_bytes(trained.optimizer) == moments + 4 * len(adapters)
    # They begin with products of nothing, and each has learnt: of random rows no loss could tell.
    assert all(value.any() for name, value in trained.weights.items() if "lora_B" in name)
    frozen = {name: value for name, value in trained.weights.items() if "lora_" not in name}
    for name, value in build_model(settings).state_dict().items():
        [same] = [own for key, own in frozen.items() if key.replace(".base_layer", "").endswith(f"model.{name}")]
        assert value.shape == same.shape


def test_a_saved_model_has_its_adapters_in_its_weights(tmp_path):
    trained = train_tiny(tiny_settings("--max_steps", "6", "--use_peft"))
    rows = torch.arange(32).reshape(1, 32)
    with torch.no_grad():
        expected = trained.model.eval()(input_ids=rows).logits
    save_model(trained.accelerator, trained.prepared, tmp_path)
    loaded, found = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(found.values()), found
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=rows).logits, expected, atol=1e-5, rtol=1e-5)


def test_reentrant_checkpointing_reaches_the_adapters():
    kwargs = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}']
    trained = train_tiny(tiny_settings("--max_steps", "4", "--use_peft", *kwargs))
    assert trained.proof.verify(trained.steps[-1])["recomputed_blocks"] == 2
    assert trained.losses == pytest.approx(
        train_tiny(tiny_settings("--max_steps", "4", "--use_peft")).losses, abs=1e-6
    )


NO_LAYER = "is no layer; name some of wte, wpe, c_attn, c_proj, c_fc, lm_head"
SHARED = "shares its weights with another layer"
# By the layers that are named, what is wrong with them.
WRONG = {
    "nothing_like_it": [f"nothing_like_it {NO_LAYER}"],
    "c_attn,c_porj": ["c_porj is no layer (did you mean c_proj?); name some of"],
    "c_porj,c_atn": ["c_porj is no layer (did you mean c_proj?)", "c_atn is no layer (did you mean c_attn?)"],
    # The end of a name alone is none.
    "attn_c,_attn": ["attn_c is no layer", "_attn is no layer"],
    "c_attn,": ["a name is empty; take out the comma beside it"],
    "mlp": ["mlp is a GPT2MLP, which takes no adapter; name some of"],
    "ln_f": ["ln_f is a LayerNorm, which takes no adapter; name some of"],
    "all-linear,c_attn": [f"all-linear {NO_LAYER}"],
    # Merged for saving, an adapter on one of two names of the same weights would be on both.
    "c_attn,lm_head": [f"lm_head {SHARED}"],
    "wte": [f"transformer.wte {SHARED}"],
}


@pytest.mark.parametrize("targets", WRONG)
def test_layers_that_cannot_be_adapted_are_refused_before_anything_is_built(targets):
    settings = tiny_settings("--use_peft", "--lora_target_modules", targets)
    [error] = lora.validate(settings, "cpu")
    assert all(words in error for words in WRONG[targets]) and "--lora_target_modules" in error
    assert "\n" not in error and len(error) < 300
    # Whoever applies it without asking before is told the same.
    with pytest.raises(UnavailableTechnique) as refused:
        lora.apply(build_model(settings), settings)
    assert str(refused.value) == error


def test_layers_that_are_one_module_in_several_places_are_refused():
    """Zamba's attention is one module of all hybrid layers: an adapter is put in one place of them."""
    settings = tiny_settings("--use_peft")
    config = shrink(CONFIG_MAPPING["zamba2"]())
    with pytest.raises(UnavailableTechnique, match=SHARED):
        lora.apply(AutoModelForCausalLM.from_config(config), settings)


@pytest.mark.parametrize("targets", [None, "c_attn, c_proj", "h.0.attn.c_attn", "all-linear"])
def test_layers_that_can_be_adapted_are(targets, recwarn):
    settings = tiny_settings("--use_peft", lora_target_modules=targets)
    assert lora.validate(settings, "cpu") == []
    adapted = [name for name, _ in lora.apply(build_model(settings), settings).named_parameters() if "lora_A" in name]
    parts = {"c_attn": 2, "attn.c_proj": 2, "mlp.c_proj": 2, "mlp.c_fc": 2}
    wanted = {None: ["c_attn"], "c_attn, c_proj": ["c_attn", "attn.c_proj", "mlp.c_proj"], "all-linear": list(parts)}
    count = sum(parts[part] for part in wanted.get(targets, [])) or 1
    assert len(adapted) == count
    assert not [str(warning.message) for warning in recwarn if "peft" in warning.filename]


def test_a_model_that_cannot_be_made_is_told_of_once():
    assert lora.validate(tiny_settings("--use_peft", config_overrides="n_head=3,n_embd=32"), "cpu") == []


# By the family and the layers: tied or untied, beside the head and on it.
SAVED = {
    "tied": ("gpt2", "c_attn,c_proj"),
    "untied": ("llama", "q_proj,v_proj"),
    "an untied head and embedding": ("llama", "q_proj,lm_head,embed_tokens"),
}


@pytest.mark.parametrize("kind", SAVED)
def test_a_saved_model_has_the_held_out_loss_of_the_run(kind, tmp_path):
    family, targets = SAVED[kind]
    flags = [*FAMILIES[family], "--use_peft", "--lora_target_modules", targets, "--output_dir", str(tmp_path)]
    flags += ["--eval_steps", "6", "--max_steps", "6", "--save_model", "--learning_rate", "0.03"]
    flags += ["--config", "accelerate_configs/fp32_cpu.yaml", "--dataset_name", LINES, "--block_size", "32"]
    flags += ["--report_to", "none", *(TINY[:2] if family == "gpt2" else [])]
    assert ablate.main(flags) == 0
    result = read_result(tmp_path)
    [held_out] = result["loss"]["eval"]
    loaded, found = AutoModelForCausalLM.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not any(found.values()), found
    settings, _ = parse(flags)
    rows = build_datasets(settings)[1][:]["input_ids"]
    with torch.no_grad():
        assert float(loaded(input_ids=rows, labels=rows).loss) == pytest.approx(held_out["loss"], rel=1e-5)
    # The adapters weigh: without them it would be another loss.
    assert result["loss"]["first"] - held_out["loss"] > 0.01


def test_problems(monkeypatch):
    def found(*flags, environ=None, config="accelerate_configs/fp32.yaml"):
        return parse(["--config", config, *TINY, *flags], environ or {})[1]

    assert "has no effect without --use_peft" in found("--lora_target_modules", "c_attn")[0]
    two = {"WORLD_SIZE": "2"}
    sharded = parse(["--config", "accelerate_configs/fsdp2.yaml", *TINY, "--use_peft"], two)[0]
    assert "with FSDP has no recipe" in fsdp.validate(sharded, "cpu")[0]
    monkeypatch.setattr("rungwise.techniques.lora.importlib.util.find_spec", lambda _: None)
    assert lora.validate(tiny_settings("--use_peft"), "cpu") == [
        "--use_peft: not installed; pip install 'rungwise[peft]'"
    ]


def test_a_rank_larger_than_the_memory_is_looked_at_without_taking_it():
    assert lora.validate(tiny_settings("--use_peft", "--lora_r", str(2**31 - 1)), "cpu") == []
