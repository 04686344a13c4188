"""A label without the thing must not pass: each technique is switched off behind the run's back."""

import copy
import dataclasses

from rungwise.metrics.memory import optimizer_state_bytes, tensor_bytes
from rungwise.techniques.observe import checkpointable_blocks
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique
from rungwise.techniques.update_notes import fingerprint

import pytest
import torch
from harness import MODEL, tiny_settings, train_tiny
from needs import EVERY_N_LAYERS, NO_IDLE_DRAWS, marked


def run(*flags, config="accelerate_configs/fp32.yaml", **options):
    return train_tiny(tiny_settings("--max_steps", "4", *flags, config=config), **options)


def verdict(trained):
    """What the proof said, as a run that has come to its end would say it."""
    with pytest.raises(InactiveTechnique) as caught:
        if trained.proof.decided:
            trained.proof.verify(trained.steps[-1])
        raise InactiveTechnique("; ".join(trained.proof.undecided))
    return str(caught.value)


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
    "clipping": ({"max_grad_norm": 0.5}, "max_grad_norm 0.5 was asked for, gradients were clipped at 1;"),
    "rows": ({"micro_batch_size": 8}, "micro-batches of 8 rows of 32 tokens were asked for, the model was given 16 x"),
    "tokens": (
        {"block_size": 64},
        "micro-batches of 16 rows of 64 tokens were asked for, the model was given 16 x 32",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_technique_that_did_not_act_is_found(case):
    claims, message = CASES[case]
    assert message in verdict(run(claims=claims))


OPTIMIZERS = {
    "optim": ("adamw_torch_fused", "optim adamw_torch_fused was asked for, the optimizer has sgd"),
    "learning_rate": ("0.01", "learning_rate 0.01 was asked for, the optimizer has 0.05"),
    "weight_decay": ("0.1", "weight_decay 0.1 was asked for, the optimizer has 0"),
}


@pytest.mark.parametrize("flag", OPTIMIZERS)
def test_an_optimizer_of_ones_own_is_recorded_and_refused_where_a_flag_says_otherwise(flag):
    value, message = OPTIMIZERS[flag]
    assert message in verdict(run(f"--{flag}", value, sgd=True))
    assert run(sgd=True).evidence["optimizer"] == "sgd"
    assert run(f"--{flag}", value).evidence["optimizer"] == value if flag == "optim" else "adamw_torch"


def test_all_that_is_missing_is_said_together():
    claims = {key: value for changes, _ in CASES.values() for key, value in changes.items()}
    assert verdict(run(claims=claims)).count(";") >= 8


def test_the_baseline_is_shown_to_be_plain():
    """fp32 is a claim, too: a run with a technique nobody asked for must not pass as the baseline."""
    plain = {"mixed_precision": "no", "gradient_checkpointing": False}
    said = verdict(run("--gradient_checkpointing", config="accelerate_configs/bf16.yaml", claims=plain))
    assert "computed in bfloat16" in said and "blocks that were recomputed: 2" in said


def test_evidence():
    trained = run("--gradient_checkpointing", config="accelerate_configs/bf16_accum4.yaml")
    assert trained.proof.verify(trained.steps[-1]) == {
        "compute_dtype": "bfloat16",
        "parameter_dtype": "float32",
        "residual_dtype": "float32",
        "gradient_scaler": False,
        "float32_products": "ieee",
        "liger_kernels": {},
        "fused_activations": {},
        "chained_activations": ["NewGELUActivation"],
        "linear_cross_entropy": False,
        "whole_logits": True,
        "loss_products": None,
        "recomputed_blocks": 2 * 4,
        "compiled_graphs": 0,
        "compiled_parameters": 0.0,
        "processes": 1,
        "micro_batches": 4,
        "attn_implementation": "sdpa",
        "dropout": False,
        "causal": True,
        "trained_parameters": 1.0,
        "changed_parameters": 1.0,
        "optimizer": "adamw_torch",
        "engine": "none",
        "distributed_type": "NO",
    }


# How people train, and what that does to a first step: it changes no weight, is skipped, or is not the first.
CONFIGURATIONS = {
    "plain": [],
    "warm-up": ["--lr_scheduler_type", "constant_with_warmup", "--warmup_steps", "2"],
    "fp16": ["fp16.yaml"],
    "fused fp16": ["fp16.yaml", "--optim", "adamw_torch_fused"],
    "accumulation": ["--gradient_accumulation_steps", "4"],
    "lora": ["--use_peft", "--lora_r", "4"],
    "resume": ["resume"],
    "checkpointing": ["--gradient_checkpointing"],
    "reentrant": ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}'],
}


def in_configuration(name, *flags, config="fp32.yaml", accelerator_hook=None, **options):
    """A run in one of them; fp16 overflows in its first two steps."""
    own = list(CONFIGURATIONS[name])
    if own and own[0].endswith(".yaml"):
        config = own.pop(0)
    resumed = own == ["resume"]

    def hook(accelerator):
        if accelerator.scaler:
            accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
        if accelerator_hook:
            accelerator_hook(accelerator)

    flags = [
        "--max_steps",
        "24",
        "--untimed_steps",
        "2",
        "--global_batch_size",
        "4",
        *([] if resumed else own),
        *flags,
    ]
    settings = tiny_settings(*flags, config=f"accelerate_configs/{config}")
    if resumed:
        first = train_tiny(dataclasses.replace(settings, max_steps=3))
        return train_tiny(dataclasses.replace(settings, max_steps=6), resume=first, accelerator_hook=hook, **options)
    steps = 24 if "fp16" in name else 4
    return train_tiny(dataclasses.replace(settings, max_steps=steps), accelerator_hook=hook, **options)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_what_acts_is_shown_in_every_configuration(name):
    trained = in_configuration(name)
    assert trained.proof.verify(trained.steps[-1])["changed_parameters"] > 0 and trained.proof.undecided == []
    if "fp16" in name:
        assert trained.steps[0].skipped and not trained.steps[-1].skipped
    if name == "warm-up":
        assert trained.steps[0].learning_rate == 0


def without_a_scaler(accelerator):
    accelerator.scaler, accelerator.unscale_gradients = None, lambda *_: None


def a_scaler_that_does_not_scale(accelerator):
    scale = accelerator.scaler.scale
    accelerator.scaler.scale = lambda loss: loss if scale(loss) is not None else None


def gradients_that_stay_scaled(accelerator):
    accelerator.unscale_gradients = lambda *_: None


def each_micro_batch_a_step(accelerator):
    accelerator._do_sync = lambda: accelerator.gradient_state._set_sync_gradients(True)


def no_clipping(accelerator):
    accelerator.clip_grad_norm_ = lambda parameters, limit: torch.nn.utils.get_total_norm(
        [parameter.grad for parameter in parameters if parameter.grad is not None]
    )


def blocks_in_fp32(model):
    for block in checkpointable_blocks(model):
        block.forward = torch.autocast("cpu", enabled=False)(block.forward)


def no_recomputation_in_one_block(model):
    checkpointable_blocks(model)[1].gradient_checkpointing = False


def a_base_that_is_trained(model):
    model.requires_grad_(True)


def nothing_that_learns(model):
    """Adapters that no gradient reaches: B is zero and stays so, and with it A's gradient is."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_A" in name)


EVERYWHERE = list(CONFIGURATIONS)
RECOMPUTED = ["--gradient_checkpointing"]
FP16 = ["fp16", "fused fp16"]
BREAKS = {
    without_a_scaler: (FP16, {}, "without a gradient scaler"),
    a_scaler_that_does_not_scale: (FP16, {}, "a backward pass began with a gradient of 1, loss scale and acc"),
    gradients_that_stay_scaled: (FP16, {}, "the optimizer was given gradients of norm"),
    each_micro_batch_a_step: (
        ["accumulation", "warm-up", "lora", "resume", "fused fp16", "checkpointing"],
        {"flags": ["--gradient_accumulation_steps", "4"]},
        "the optimizer stepped 4 times in one step over 4 micro-batches",
    ),
    no_clipping: (
        [name for name in EVERYWHERE if "fp16" not in name],
        {"flags": ["--max_grad_norm", "0.01"]},
        "and max_grad_norm is 0.01",
    ),
    blocks_in_fp32: (
        ["plain", "warm-up", "accumulation", "lora", "resume", "checkpointing", "reentrant"],
        {"config": "bf16.yaml"},
        "bf16 was asked for, the model computed in bfloat16, float32",
    ),
    no_recomputation_in_one_block: (
        EVERYWHERE,
        {"flags": RECOMPUTED},
        "of each block was asked for; recomputed were: block 1 0 times in",
    ),
    a_base_that_is_trained: (["lora"], {}, "adapters alone were asked for: True; trained are 100.0% of all"),
    nothing_that_learns: (["lora"], {}, "no step changed a weight"),
}
MATRIX = [(broken, name) for broken, (names, _, _) in BREAKS.items() for name in names]


@pytest.mark.parametrize("broken, name", MATRIX, ids=[f"{broken.__name__}-{name}" for broken, name in MATRIX])
def test_a_technique_that_is_broken_is_found_in_every_configuration(broken, name):
    _, options, message = BREAKS[broken]
    hook = "model_hook" if broken.__code__.co_varnames[0] == "model" else "accelerator_hook"
    flags = options.get("flags", [])
    rest = {key: value for key, value in options.items() if key != "flags"}
    assert message in verdict(in_configuration(name, *flags, **rest, **{hook: broken}))


@pytest.mark.parametrize("name", ["plain", "accumulation", "checkpointing"])
def test_a_run_that_changes_no_weight_proves_nothing(name):
    trained = in_configuration(name, "--learning_rate", "0")
    assert "no step changed a weight" in verdict(trained) and "engine" not in trained.evidence


@EVERY_N_LAYERS
def test_every_second_block():
    """Neither more nor fewer than that."""
    flags = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"every_n_layers": 2}']
    assert run(*flags).evidence["recomputed_blocks"] == 1
    assert "one block in 2 was asked for; recomputed were: block 1 1 times in 0 passes" in verdict(
        run("--gradient_checkpointing", claims={"gradient_checkpointing_kwargs": {"every_n_layers": 2}})
    )


def runs_a_block_for_nothing(model):
    """As a model that cuts its text into patches by a small one of its own: no loss depends on what that gives."""
    aside = copy.deepcopy(model.transformer.h[0])
    model.transformer.aside = aside
    model.transformer.drop.register_forward_hook(lambda drop, args, output: aside(output)[0].argmax() and None)


def test_a_block_that_the_loss_does_not_depend_on_owes_nothing():
    trained = run("--gradient_checkpointing", model_hook=runs_a_block_for_nothing)
    assert len(checkpointable_blocks(trained.model)) == 3
    assert trained.proof.verify(trained.steps[-1])["recomputed_blocks"] == 2


def test_nothing_is_left_behind_once_all_is_decided():
    trained = run()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in trained.model.modules())
    assert not trained.optimizer._optimizer_step_pre_hooks
    assert not {"backward", "accumulate", "no_sync", "clip_grad_norm_"} & set(vars(trained.accelerator))


def frozen_by_hand(model):
    model.transformer.wte.requires_grad_(False)
    model.transformer.h[0].requires_grad_(False)


@pytest.mark.parametrize("flags", [[], RECOMPUTED])
def test_a_part_that_is_frozen_by_hand_is_recorded(flags):
    evidence = run(*flags, model_hook=frozen_by_hand).evidence
    assert 0.2 < evidence["trained_parameters"] < 0.8
    assert evidence["changed_parameters"] == evidence["trained_parameters"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_a_fingerprint_is_of_each_bit_in_its_place(dtype, monkeypatch):
    monkeypatch.setattr("rungwise.techniques.update_notes.PIECE", 7)
    tensor = torch.arange(50).to(dtype)
    own = fingerprint(tensor)
    assert own == fingerprint(tensor.clone()) == fingerprint(tensor.view(5, 10))
    assert own != fingerprint(tensor.flip(0))
    for place in (0, 6, 7, 49):
        other = tensor.clone()
        other[place] += 1
        assert fingerprint(other) != own


def test_pure_bf16_is_not_autocast_nor_the_other_way_round():
    pure = run("--dtype", "bfloat16")
    assert (pure.evidence["compute_dtype"], pure.evidence["parameter_dtype"]) == ("bfloat16", "bfloat16")
    said = verdict(run("--dtype", "bfloat16", claims={"dtype": "float32", "mixed_precision": "bf16"}))
    assert "parameters in float32 were asked for, they are in bfloat16" in said


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
    assert "ignores num_items_in_batch" in verdict(run("--model_type", "bart", "--config_overrides", bart))


def test_the_launchers_dynamo_does_not_compile_a_second_time(monkeypatch):
    settings = tiny_settings("--max_steps", "4")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER")
    trained = train_tiny(settings)
    assert trained.proof.verify(trained.steps[-1])["compiled_graphs"] == 0
    assert "graph" not in str(type(trained.model)).lower()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0


SIZES = "vocab_size=128,hidden_size=32,num_hidden_layers=2,num_attention_heads=2"
OPT = f"{SIZES},ffn_dim=32,max_position_embeddings=32,word_embed_proj_dim=32"
XGLM = "vocab_size=128,d_model=32,ffn_dim=32,num_layers=2,attention_heads=2,dropout=0,attention_dropout=0"
BIOGPT = f"{SIZES},intermediate_size=32,hidden_dropout_prob=0,attention_probs_dropout_prob=0"
BLOOM = "vocab_size=128,hidden_size=32,n_layer=2,n_head=2"
# A model type, its config, and whether it draws random numbers: OPT drops by default, by a function.
WANTING = dict.fromkeys(("OPT without", "BioGPT without", "XGLM without"), NO_IDLE_DRAWS)
DROPOUT = {
    "GPT-2": ("gpt2", MODEL, True),
    "GPT-2 without": ("gpt2", f"{MODEL},resid_pdrop=0,embd_pdrop=0,attn_pdrop=0", False),
    "GPT-2 in attention": ("gpt2", f"{MODEL},resid_pdrop=0,embd_pdrop=0", True),
    "OPT": ("opt", OPT, True),
    "OPT without": ("opt", f"{OPT},dropout=0", False),
    "OPT's layers": ("opt", f"{OPT},dropout=0,layerdrop=0.1", True),
    "BioGPT": ("biogpt", f"{BIOGPT},hidden_dropout_prob=0.1", True),
    "BioGPT without": ("biogpt", BIOGPT, False),
    "XGLM": ("xglm", f"{XGLM},dropout=0.1", True),
    "XGLM's layers": ("xglm", f"{XGLM},layerdrop=0.1", True),
    "XGLM without": ("xglm", XGLM, False),
    "Bloom": ("bloom", f"{BLOOM},hidden_dropout=0.1", True),
    "Bloom without": ("bloom", BLOOM, False),
    "Falcon": ("falcon", f"{SIZES},hidden_dropout=0.1", True),
    "Falcon without": ("falcon", SIZES, False),
}


@pytest.mark.parametrize("case", marked(DROPOUT, WANTING))
def test_dropout_is_what_the_model_draws(case):
    """Be it a module, a function, or a layer that is left out."""
    family, overrides, drops = DROPOUT[case]
    flags = [
        "--model_type",
        family,
        "--config_overrides",
        overrides,
        "--global_batch_size",
        "2",
        "--untimed_steps",
        "2",
    ]
    assert run("--max_steps", "3", *flags).evidence["dropout"] is drops


def test_watching_for_dropout_changes_no_number(monkeypatch):
    flags = ["--config_overrides", f"{MODEL},resid_pdrop=0.1"]
    watched = run(*flags)
    monkeypatch.setattr("rungwise.techniques.observe._random_state", lambda device: ())
    assert watched.evidence["dropout"] and watched.losses == run(*flags).losses


def test_offload_without_an_accelerator_is_refused():
    kwargs = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"offload": true}']
    settings = tiny_settings("--max_steps", "4", *kwargs, use_cpu=True)
    with pytest.raises(UnavailableTechnique, match="this run is on the CPU"):
        train_tiny(settings)
