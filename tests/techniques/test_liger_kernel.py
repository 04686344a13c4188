"""Liger's kernels by Transformers' switch, on a stand-in for the package: its own need a GPU."""

import sys
import types

from rungwise.techniques import liger_kernel, validate
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique

import pytest
from harness import tiny_settings, train_tiny
from torch import nn
from transformers.integrations import liger

FLAG = "--use_liger_kernel"


@pytest.fixture
def package(monkeypatch):
    """A package that puts another layer norm into GPT-2, and notes what it was told."""

    class LigerLayerNorm(nn.LayerNorm):
        __module__ = "liger_kernel.transformers.layer_norm"

    def patch(model, **told):
        package.told = told
        for module in model.modules() if package.known else ():
            if type(module) is nn.LayerNorm:
                module.__class__ = LigerLayerNorm

    package = types.ModuleType("liger_kernel.transformers")
    package.known, package.told, package._apply_liger_kernel_to_instance = True, None, patch
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", package)
    monkeypatch.setattr(liger, "is_liger_kernel_available", lambda: True)
    return package


def test_the_modules_that_it_replaced_are_evidence_and_its_loss_is_left_out(package):
    plain, ours = (train_tiny(tiny_settings("--max_steps", "4", *flags)) for flags in ([], [FLAG]))
    assert ours.proof.verify(ours.steps[-1])["liger_kernels"] == {"LigerLayerNorm": 5}
    assert plain.evidence["liger_kernels"] == {} and plain.losses == ours.losses
    assert package.told == {"cross_entropy": False, "fused_linear_cross_entropy": False}


def test_a_model_that_it_has_no_kernels_for_is_refused(package):
    package.known = False
    with pytest.raises(UnavailableTechnique, match="no kernels for GPT2LMHeadModel; leave --use_liger_kernel out"):
        train_tiny(tiny_settings(FLAG))


def test_a_label_without_the_thing_is_missed(package):
    trained = train_tiny(tiny_settings("--max_steps", "4"), claims={"use_liger_kernel": True})
    with pytest.raises(InactiveTechnique, match="asked for: True; modules that compute by them: none"):
        trained.proof.verify(trained.steps[-1])
    trained = train_tiny(tiny_settings("--max_steps", "4", FLAG), claims={"use_liger_kernel": False})
    with pytest.raises(InactiveTechnique, match="asked for: False; modules that compute by them: 5 LigerLayerNorm"):
        trained.proof.verify(trained.steps[-1])


def test_what_it_needs_is_said_before_anything_is_built(monkeypatch):
    [problem] = validate(tiny_settings(FLAG))
    assert (
        problem == f"{FLAG}: its kernels are Triton's and run on GPUs alone, and this run is on the CPU; leave it out"
    )
    monkeypatch.setattr(liger_kernel.importlib.util, "find_spec", lambda name: None)
    assert liger_kernel.validate(tiny_settings(FLAG), "cuda") == [
        f"{FLAG}: not installed; pip install 'rungwise[liger]'"
    ]
