"""Who owns the activations: to the byte on a module made by hand, on real models against the allocator."""

import functools
import gc
from types import SimpleNamespace

from rungwise.metrics.activation_rows import kind
from rungwise.metrics.activations import ActivationMeter
from rungwise.metrics.allocations import allocations
from rungwise.metrics.memory import MIB
from rungwise.metrics.saved_tensors import CAST, is_cast
from rungwise.model.model import build_model
from rungwise.techniques import apply_techniques, build_accelerator
from rungwise.techniques.gradient_checkpointing import checkpointed_blocks

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from harness import build_dataset, largest_difference, tiny_settings, train_tiny
from needs import KEPT_BY_BLOCKS
from torch import nn

ROWS, TOKENS, WORDS = 16, 128, 512
LLAMA = f"vocab_size={WORDS},hidden_size=64,intermediate_size=128,num_hidden_layers=2,num_attention_heads=4"
LLAMA += ",num_key_value_heads=2"
# Wide enough that activations are far more than what the model's code keeps beside them.
MODELS = {
    "gpt2": f"vocab_size={WORDS},n_positions={TOKENS},n_embd=64,n_layer=2,n_head=2",
    "llama": LLAMA,
    "qwen3": f"{LLAMA},head_dim=16",
    "mixtral": f"{LLAMA},num_local_experts=4,num_experts_per_tok=2",
}
CHECKPOINTED = {
    "": [],
    "checkpointed": ["--gradient_checkpointing"],
    "reentrant": ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}'],
}


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 1)
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Toy(nn.Module):
    """Keeps what can be written down. Rows of 8 numbers, fp32."""

    base_model_prefix = "trunk"

    def __init__(self):
        super().__init__()
        self.trunk = nn.Module()
        self.trunk.h = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        for layer in self.trunk.h:
            x = layer(x)
        x.exp()  # is kept by a node that nobody needs
        x = Doubling.apply(x * self.scale)
        logits = self.head(x)
        gate = logits.sigmoid()
        logits = logits * 1
        logits.mul_(gate)  # keeps a clone of what it overwrites
        return SimpleNamespace(loss=logits.float().log_softmax(-1).sum())


def by_owner(table):
    return {(row["module"], row["operator"]): (row["mib"] * MIB, row["tensors"]) for row in table["rows"]}


def test_tensors_of_known_size_to_the_byte():
    model = Toy()
    accelerator = SimpleNamespace(backward=lambda loss: loss.backward())
    before = vars(accelerator)["backward"]
    meter = ActivationMeter(model, accelerator, [])
    accelerator.backward(model(torch.randn(16, 8)).loss)
    numbers = 4 * 16
    assert by_owner(meter.result) == {
        # The second layer's Linear and the multiplication by the buffer keep the same storages.
        ("h.*.*", "tanh"): (2 * 8 * numbers, 2),
        ("Toy", "Doubling"): (8 * numbers, 1),
        ("head", "addmm"): (8 * numbers, 1),
        ("loss", "sigmoid"): (4 * numbers, 1),
        ("loss", "mul"): (4 * numbers, 1),
        ("loss", "log_softmax"): (4 * numbers, 1),
    }
    assert meter.result["total_mib"] == sum(row["mib"] for row in meter.result["rows"])
    assert (meter.result["recompute"], meter.result["unknown"]) == (None, [])
    assert accelerator.backward is before and not any(
        m._forward_hooks or m._forward_pre_hooks for m in model.modules()
    )


def test_kinds_of_modules():
    model = build_model(tiny_settings())
    assert kind("transformer.h.11.mlp.act", model) == "h.*.mlp.act"
    assert (kind("lm_head", model), kind("", model), kind("transformer", model)) == (
        "lm_head",
        "GPT2LMHeadModel",
        "transformer",
    )
    assert kind("layers.3.experts.17.fc1") == "layers.*.experts.*.fc1"


def measured(family, config, *flags):
    """A meter's result after one micro-batch, and what the allocator gave out in its forward pass."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    overrides = ["--model_type", family, "--config_overrides", MODELS[family], "--block_size", str(TOKENS)]
    settings = tiny_settings(*overrides, *flags, config=f"accelerate_configs/{config}.yaml")
    accelerator = build_accelerator(settings)
    torch.manual_seed(0)
    model, compiled = apply_techniques(build_model(settings), settings, accelerator.device)
    model.train()
    prepared = accelerator.prepare(model)
    rows = torch.randint(WORDS, (ROWS, TOKENS))
    batch = {"input_ids": rows, "labels": rows, "num_items_in_batch": torch.tensor(ROWS * (TOKENS - 1))}
    if compiled:
        prepared(**batch).loss.backward()  # what the compiler itself allocates is no activation
    kept = compiled.kept if compiled else None
    meter = ActivationMeter(model, accelerator, checkpointed_blocks(model), kept)
    gc.collect()
    with allocations(torch.device("cpu")) as changes:
        loss = prepared(**batch).loss
    accelerator.backward(loss)
    if compiled:
        compiled.close()
    return meter.result, sum(size for _, size in changes) / MIB


@pytest.mark.parametrize("config", ["fp32", "bf16"])
@pytest.mark.parametrize("family", MODELS)
def test_the_sum_is_what_the_allocator_gave_out(family, config):
    found, allocated = measured(family, config)
    assert found["total_mib"] == pytest.approx(allocated, rel=1e-3)
    assert found["total_mib"] == pytest.approx(sum(row["mib"] for row in found["rows"]), rel=1e-12)
    assert found["unknown"] == [] and not any("not known" in row.values() for row in found["rows"])
    owners = by_owner(found)
    # The loss upcasts logits to fp32 and keeps their softmax, and its shifted labels: integers of 8 bytes.
    assert owners["loss", "log_softmax"] == (4 * ROWS * TOKENS * WORDS, 1)
    assert owners["loss", "nll_loss"][0] == pytest.approx(8 * ROWS * TOKENS, abs=8)
    casts = sum(size for (_, operator), (size, _) in owners.items() if operator == CAST)
    assert (casts > 0) == (config == "bf16")


@KEPT_BY_BLOCKS
@pytest.mark.parametrize("family", MODELS)
def test_a_checkpointed_block_keeps_its_input_and_tells_what_it_needs_to_run_again(family):
    whole, _ = measured(family, "fp32")
    # Its inputs; of the rest of the model nothing changes.
    width = 4 * ROWS * TOKENS * 64
    block = "h.*" if family == "gpt2" else "layers.*"
    again = {}
    for case in ("checkpointed", "reentrant"):
        found, _ = measured(family, "fp32", *CHECKPOINTED[case])
        assert by_owner(found)[block, "checkpoint"] == (2 * width, 2)
        rest = {owner: size for owner, size in by_owner(found).items() if not owner[0].startswith(block)}
        assert rest == {owner: size for owner, size in by_owner(whole).items() if not owner[0].startswith(block)}
        assert found["recompute"]["module"] == block and found["unknown"] == []
        again[case] = found["recompute"]
    assert again["checkpointed"] == again["reentrant"]
    # The block's own input is there already, and so are what all blocks share: positions.
    of_one = sum(row["mib"] for row in whole["rows"] if row["module"].startswith(block)) * MIB / 2
    shared = 0 if family == "gpt2" else 4 * TOKENS * 16
    assert again["checkpointed"]["total_mib"] * MIB == of_one - width - shared


def test_frozen_weights_of_half_precision_are_kept_as_casts_for_their_layers():
    found, allocated = measured("gpt2", "bf16", "--use_peft")
    owners = by_owner(found)
    assert found["total_mib"] == pytest.approx(allocated, rel=0.02)
    assert owners["h.*.mlp.c_fc", CAST] == owners["h.*.mlp.c_proj", CAST] == (2 * 2 * 64 * 256, 2)
    assert ("loss", "log_softmax") in owners and ("h.*.attn.c_attn.lora_B.default", CAST) in owners
    # Nothing is learnt of a frozen layer's input.
    assert ("h.*.mlp.c_proj", "addmm") not in owners


def test_what_is_a_cast_of_a_weight():
    layer = nn.Linear(4, 6)
    copy = layer.weight.to(torch.bfloat16)
    assert is_cast(copy, layer) and is_cast(copy.t(), layer) and is_cast(copy.detach(), layer)
    assert is_cast(copy.detach().t(), layer)
    assert not is_cast(layer.weight, layer) and not is_cast(2 * copy, layer)
    assert not is_cast(torch.zeros(6, 4, dtype=torch.bfloat16), layer)


@pytest.mark.breadth(2, of="compiled code")
@pytest.mark.parametrize("scope, config", [("model", "fp32"), ("regional", "bf16")])
def test_compiled_code_is_read_by_what_its_graphs_keep(scope, config, tmp_path):
    plain = ["--config_overrides", MODELS["gpt2"] + ",resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"]
    flags = ["--torch_compile", "--torch_compile_scope", scope, "--torch_compile_cache_dir", str(tmp_path), *plain]
    found, allocated = measured("gpt2", config, *flags)
    assert found["total_mib"] == pytest.approx(allocated, rel=0.02)
    assert found["total_mib"] == pytest.approx(sum(row["mib"] for row in found["rows"]), rel=1e-12)
    assert found["unknown"] == []
    owners = by_owner(found)
    bytes_each = 4 if config == "fp32" else 2
    assert owners["h.*.mlp.c_fc", "addmm"] == (2 * bytes_each * ROWS * TOKENS * 256, 2)
    assert any(module == "loss" for module, _ in owners)
    if config == "bf16":
        assert owners["h.*.mlp.c_fc", CAST] == owners["h.*.mlp.c_proj", CAST] == (2 * 2 * 64 * 256, 2)
    else:
        # What is compiled already is not seen: the sum is known, and that its owners are not is said.
        warm, _ = measured("gpt2", config, *flags)
        assert warm["total_mib"] == found["total_mib"]
        assert "warm cache" in warm["unknown"][0]
        assert {row["operator"] for row in warm["rows"]} == {"not known"}


class Attached:
    """A meter on a tiny run, made where a real run makes it: of the model with its techniques."""

    def __init__(self):
        self.accelerator = None
        self.meter = None

    def take(self, accelerator):
        self.accelerator = accelerator

    def attach(self, model):
        self.model = model
        self.meter = ActivationMeter(model, self.accelerator, checkpointed_blocks(model))


def hooks(model):
    return [(len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()]


@pytest.mark.parametrize("config", ["fp32", "bf16_accum4"])
@pytest.mark.parametrize("case", CHECKPOINTED)
def test_training_is_the_same_bit_for_bit_and_nothing_is_left(case, config):
    settings = tiny_settings("--max_steps", "4", *CHECKPOINTED[case], config=f"accelerate_configs/{config}.yaml")
    rows = build_dataset(settings)
    plain, measuring = train_tiny(settings, rows), Attached()
    with_meter = train_tiny(settings, rows, accelerator_hook=measuring.take, model_hook=measuring.attach)
    assert largest_difference(plain.weights, with_meter.weights) == 0 and plain.losses == with_meter.losses
    # One micro-batch alone, with accumulation, too.
    sizes = by_owner(measuring.meter.result)
    assert sizes["loss", "log_softmax"][0] == 4 * settings.micro_batch_size * 32 * 128
    assert hooks(with_meter.model) == hooks(plain.model)
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    for block in checkpointed_blocks(with_meter.model):
        assert isinstance(block._gradient_checkpointing_func, functools.partial)


def test_nothing_lives_longer_for_being_counted():
    peaks = []
    for counted in (False, True):
        AcceleratorState._reset_state(True)
        settings = tiny_settings("--config_overrides", MODELS["gpt2"])
        accelerator = Accelerator(cpu=True)
        torch.manual_seed(0)
        model = build_model(settings).train()
        rows = torch.randint(WORDS, (ROWS, TOKENS))
        if counted:
            ActivationMeter(model, accelerator, [])
        gc.collect()
        gc.disable()
        with allocations(torch.device("cpu")) as changes:
            loss = model(input_ids=rows, labels=rows).loss
            accelerator.backward(loss)
            del loss
            model.zero_grad()
        gc.enable()
        held = [0]
        for _, size in changes:
            held.append(held[-1] + size)
        peaks.append((max(held), held[-1]))
    assert peaks[0] == peaks[1]


def test_a_model_that_is_not_called_is_read_by_its_graph():
    """Then no hook tells of modules."""
    model, accelerator = Toy(), SimpleNamespace(backward=lambda loss: loss.backward())
    meter = ActivationMeter(model, accelerator, [])
    rows = torch.randn(16, 8)
    accelerator.backward(model.forward(rows).loss)
    assert {row["module"] for row in meter.result["rows"]} == {"not known"}
    # With the batch, which nobody has shown.
    called = ActivationMeter(model, accelerator, [])
    accelerator.backward(model(rows).loss)
    assert meter.result["total_mib"] * MIB == called.result["total_mib"] * MIB + rows.nbytes


def test_a_forward_pass_that_fails_leaves_no_hook_behind():
    model = Toy()
    meter = ActivationMeter(model, SimpleNamespace(backward=None), [])
    with pytest.raises(RuntimeError):
        model(torch.randn(16, 7))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    meter.close()
    assert meter.result == {} and not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
