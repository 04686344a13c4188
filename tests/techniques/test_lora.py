"""LoRA: adapters alone are trained, owned and saved, with every other technique."""

from rungwise.metrics import memory
from rungwise.model.model import build_model, save_model
from rungwise.settings.parse import parse
from rungwise.techniques import lora
from rungwise.techniques.seen import UnavailableTechnique

import pytest
import torch
from harness import TINY, tiny_settings, train_tiny
from transformers import AutoModelForCausalLM

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
    assert trained.losses[-1] < trained.losses[0]
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


def test_layers_that_do_not_exist():
    settings = tiny_settings("--use_peft", "--lora_target_modules", "nothing_like_it")
    with pytest.raises(UnavailableTechnique, match="name layers in --lora_target_modules"):
        lora.apply(build_model(settings), settings)


def test_problems(monkeypatch):
    def found(*flags, environ=None, config="accelerate_configs/fp32.yaml"):
        return parse(["--config", config, *TINY, *flags], environ or {})[1]

    assert "has no effect without --use_peft" in found("--lora_target_modules", "c_attn")[0]
    two = {"WORLD_SIZE": "2"}
    assert "with FSDP has no recipe" in found("--use_peft", environ=two, config="accelerate_configs/fsdp2.yaml")[0]
    monkeypatch.setattr("rungwise.techniques.lora.importlib.util.find_spec", lambda _: None)
    assert lora.validate(tiny_settings("--use_peft"), "cpu") == [
        "--use_peft: not installed; pip install 'rungwise[peft]'"
    ]
