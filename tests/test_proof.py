"""A label without the thing must not pass: each technique is switched off behind the run's back."""

import dataclasses

from rungwise.memory import optimizer_state_bytes, tensor_bytes
from rungwise.models import build_model
from rungwise.proof import InactiveTechnique, has_dropout
from rungwise.techniques import UnavailableTechnique

import pytest
import torch
from harness import MODEL, tiny_settings, train_tiny


def run(*flags, config="accelerate_configs/fp32.yaml"):
    return train_tiny(tiny_settings("--max_steps", "4", *flags, config=config))


CASES = {
    "bf16": ({"mixed_precision": "bf16"}, "mixed_precision bf16 was asked for, the model computed in float32"),
    "pure bf16": ({"dtype": "bfloat16"}, "dtype bfloat16 was asked for, the model computed in float32"),
    "fp16": ({"mixed_precision": "fp16"}, "without a gradient scaler"),
    "checkpointing": ({"gradient_checkpointing": True}, "blocks that were recomputed: 0"),
    "compile": ({"torch_compile": True}, "no graph was compiled"),
    "processes": ({"num_processes": 2}, "2 processes were asked for, 1 took part"),
    "sharding": ({"fsdp": True}, "FSDP2 was asked for between processes, none is there"),
    "adapters": ({"use_peft": True}, "adapters alone were asked for: True; trained are 100.0% of all"),
    "accumulation": ({"gradient_accumulation_steps": 4}, "4 accumulation steps were asked for, 1 were taken"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_technique_that_did_not_act_is_found(case):
    claims, message = CASES[case]
    trained = run()
    trained.proof.settings = dataclasses.replace(trained.proof.settings, **claims)
    with pytest.raises(InactiveTechnique, match=message):
        trained.proof.check(trained.accelerator)


def test_all_that_is_missing_is_said_together():
    trained = run()
    claims = {key: value for changes, _ in CASES.values() for key, value in changes.items()}
    trained.proof.settings = dataclasses.replace(trained.proof.settings, **claims)
    with pytest.raises(InactiveTechnique) as caught:
        trained.proof.check(trained.accelerator)
    assert str(caught.value).count(";") >= 5


def test_the_baseline_is_shown_to_be_plain():
    """fp32 is a claim, too: a run with a technique nobody asked for must not pass as the baseline."""
    trained = run("--gradient_checkpointing", config="accelerate_configs/bf16.yaml")
    baseline = dataclasses.replace(trained.proof.settings, mixed_precision="no", gradient_checkpointing=False)
    trained.proof.settings = baseline
    with pytest.raises(InactiveTechnique, match=r"computed in bfloat16.*were recomputed: 8"):
        trained.proof.check(trained.accelerator)


def test_evidence():
    trained = run("--gradient_checkpointing", config="accelerate_configs/bf16_accum4.yaml")
    assert trained.proof.check(trained.accelerator) == {
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
        "residual_dtype": "float32",
        "gradient_scaler": False,
        "recomputed_blocks": 2 * 4 * 4,
        "compiled_graphs": 0,
        "compiled_parameters": 0.0,
        "processes": 1,
        "dropout": False,
        "trained_parameters": 1.0,
        "engine": "none",
        "distributed_type": "NO",
    }


def test_pure_bf16_is_not_autocast_nor_the_other_way_round():
    pure = run("--dtype", "bfloat16")
    evidence = pure.proof.check(pure.accelerator)
    assert (evidence["compute_dtype"], evidence["parameter_dtype"]) == ("bfloat16", "bfloat16")
    pure.proof.settings = dataclasses.replace(pure.proof.settings, dtype="float32", mixed_precision="bf16")
    with pytest.raises(InactiveTechnique, match="parameters in float32 were asked for, they are in bfloat16"):
        pure.proof.check(pure.accelerator)


def test_pure_bf16_halves_parameters_gradients_and_optimizer_state():
    """All but AdamW's step counts, one fp32 number a parameter."""
    full, half = run(), run("--dtype", "bfloat16")
    counts = 4 * len(list(full.model.parameters()))
    assert 2 * tensor_bytes(half.model.parameters()) == tensor_bytes(full.model.parameters())
    state = optimizer_state_bytes(half.optimizer), optimizer_state_bytes(full.optimizer)
    assert 2 * (state[0] - counts) == state[1] - counts
    half.model(input_ids=torch.zeros(1, 32, dtype=torch.long)).logits.sum().backward()
    assert {p.grad.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert half.losses == pytest.approx(full.losses, rel=2 * 2**-8)


def test_a_model_that_ignores_what_to_divide_by_is_refused():
    """Bart computes its own mean over a micro-batch: accumulated, its gradients would be several times too large."""
    bart = "vocab_size=128,d_model=16,decoder_layers=1,decoder_attention_heads=2,decoder_ffn_dim=16,dropout=0.0"
    flags = ["--max_steps", "4", "--model_type", "bart", "--config_overrides", bart]
    trained = train_tiny(tiny_settings(*flags))
    with pytest.raises(InactiveTechnique, match="ignores num_items_in_batch"):
        trained.proof.check(trained.accelerator)


def test_the_launchers_dynamo_does_not_compile_a_second_time(monkeypatch):
    settings = tiny_settings("--max_steps", "4")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    trained = train_tiny(settings)
    assert trained.proof.check(trained.accelerator)["compiled_graphs"] == 0
    assert "graph" not in str(type(trained.model)).lower()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


@pytest.mark.parametrize("override", ["attn_pdrop=0.1", "resid_pdrop=0.1"])
def test_dropout_is_noted(override):
    assert has_dropout(build_model(tiny_settings("--config_overrides", f"{MODEL},{override}")))
    assert not has_dropout(build_model(tiny_settings()))


def test_offload_without_an_accelerator_is_refused():
    kwargs = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"offload": true}']
    settings = tiny_settings("--max_steps", "4", *kwargs, use_cpu=True)
    with pytest.raises(UnavailableTechnique, match="this run is on the CPU"):
        train_tiny(settings)
