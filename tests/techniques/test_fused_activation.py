"""Each activation of Transformers beside the kernel in its place; training with one is training with the other."""

from rungwise.techniques.fused_activation import KERNELS, NO_KERNEL, FusedActivation, apply, kernel_of
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique

import pytest
import torch
from harness import largest_difference, tiny_settings, train_tiny
from needs import needs
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.activations import ACT2FN

# Numbers as they occur, and a line through the range in which the functions bend.
NUMBERS = torch.cat([3 * torch.randn(4000, generator=torch.Generator().manual_seed(0)), torch.linspace(-12, 12, 4001)])
# Of x times a factor between 0 and 1 that is computed from rounded numbers: some units of fp32 at |x| = 12.
ROUNDING = 16 * 2.0**-23
# The constant of `gelu_fast` has ten digits.
CONSTANT = 1e-10


def values(function, numbers):
    """What it gives, its gradient, and how many tensors as large as its input it keeps for that."""
    kept = []
    x = numbers.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append((t.data_ptr(), t.numel())) or t, lambda t: t):
        y = function(x)
    y.sum().backward()
    return y.detach(), x.grad, len({place for place, count in kept if count == numbers.numel()})


def modules():
    """Each of `ACT2FN`'s, by its name."""
    return {name: ACT2FN[name] for name in ACT2FN}


@pytest.mark.parametrize("name", [name for name, module in modules().items() if kernel_of(module)])
def test_a_kernel_computes_what_its_chain_does_and_keeps_one_tensor(name):
    chain = ACT2FN[name]
    fused = FusedActivation(name, kernel_of(chain))
    for dtype, bound in ((torch.float32, ROUNDING), (torch.float64, CONSTANT)):
        before, after = (values(function, NUMBERS.to(dtype)) for function in (chain, fused))
        assert (before[0] - after[0]).abs().max() <= bound
        assert (before[1] - after[1]).abs().max() <= bound
        assert before[2] > 1 and after[2] == 1


@needs("all activations of NO_KERNEL", transformers="5.8")
def test_every_activation_is_replaced_or_one_kernel_already_or_has_no_equal():
    kinds = {name: type(module).__name__ for name, module in modules().items()}
    replaced = {name for name, module in modules().items() if kernel_of(module)}
    left = {name for name, kind in kinds.items() if kind in NO_KERNEL}
    for name in kinds.keys() - replaced - left:
        assert values(ACT2FN[name], NUMBERS)[2] <= 1, f"{name} keeps several tensors: a kernel for it, or NO_KERNEL"
    assert replaced >= {"gelu_new", "gelu_fast", "gelu_accurate", "gelu_python", "gelu_python_tanh", "quick_gelu"}
    assert {kinds[name] for name in replaced} == KERNELS.keys() and {kinds[name] for name in left} == {*NO_KERNEL}


def test_no_kernel_computes_what_is_left():
    """None of those that stand in for chains, and none of PyTorch's own one-kernel activations."""
    known = {*KERNELS.values(), *(module for module in modules().values() if not kernel_of(module))}
    for name, module in modules().items():
        if type(module).__name__ in NO_KERNEL:
            found = values(module, NUMBERS)[0]
            others = [other for other in known if type(other).__name__ not in NO_KERNEL]
            assert all((found - values(other, NUMBERS)[0]).abs().max() > 1e-2 for other in others), name


@pytest.mark.parametrize("flags", [[], ["--gradient_checkpointing"], ["--gradient_accumulation_steps", "4"]])
def test_training_is_the_same(flags):
    plain = train_tiny(tiny_settings("--max_steps", "6", *flags), sgd=True)
    fused = train_tiny(tiny_settings("--max_steps", "6", "--fused_activation", *flags), sgd=True)
    assert fused.losses == pytest.approx(plain.losses, abs=1e-6)
    assert largest_difference(plain.weights, fused.weights) < 1e-6
    assert fused.evidence["fused_activations"] == {"NewGELUActivation": 2}
    assert (plain.evidence["fused_activations"], plain.evidence["chained_activations"]) == ({}, ["NewGELUActivation"])


def test_an_activation_that_layers_share_is_replaced_in_each():
    """OpenAI GPT's are one object of its module; a block may be there twice as well."""
    config = AutoConfig.for_model("openai-gpt", vocab_size=64, n_positions=16, n_embd=16, n_layer=3, n_head=2)
    model = AutoModelForCausalLM.from_config(config)
    model.again = model.transformer.h[0]
    apply(model, tiny_settings("--fused_activation"))
    fused = [block.mlp.act for block in [*model.transformer.h, model.again]]
    assert {(type(act), act.replaced) for act in fused} == {(FusedActivation, "NewGELUActivation")}


def test_a_model_whose_activations_are_kernels_already_is_refused_in_words():
    settings = tiny_settings(
        "--fused_activation", "--config_overrides", "activation_function=silu,n_layer=2,n_embd=32"
    )
    with pytest.raises(UnavailableTechnique, match="one kernel each already"):
        train_tiny(settings)
    settings = tiny_settings(
        "--fused_activation", "--config_overrides", "activation_function=relu2,n_layer=2,n_embd=32"
    )
    with pytest.raises(UnavailableTechnique, match="ReLUSquaredActivation"):
        train_tiny(settings)


def test_a_label_without_the_thing_is_missed():
    settings = tiny_settings("--max_steps", "4")
    trained = train_tiny(settings, claims={"fused_activation": True})
    with pytest.raises(InactiveTechnique, match="asked for: True; in the model are 0, as chains: 2 NewGELUActivation"):
        trained.proof.verify(trained.steps[-1])
    trained = train_tiny(tiny_settings("--max_steps", "4", "--fused_activation"), claims={"fused_activation": False})
    with pytest.raises(InactiveTechnique, match="asked for: False; in the model are 2"):
        trained.proof.verify(trained.steps[-1])


def test_one_that_was_forgotten_is_missed():
    def restore(model):
        model.transformer.h[1].mlp.act = ACT2FN["gelu_new"]

    trained = train_tiny(tiny_settings("--max_steps", "4", "--fused_activation"), model_hook=restore)
    with pytest.raises(InactiveTechnique, match="in the model are 1, as chains: 1 NewGELUActivation"):
        trained.proof.verify(trained.steps[-1])
