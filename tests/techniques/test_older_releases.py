"""What an older release of a library cannot do is refused in words that say which one can."""

from rungwise.techniques import validate
from rungwise.techniques.seen import UnavailableTechnique

import pytest
import torch
from harness import tiny_settings, train_tiny
from torch import nn
from transformers import PreTrainedModel


def test_pytorch_without_the_loss_in_chunks(monkeypatch):
    monkeypatch.delattr(nn, "LinearCrossEntropyOptions", raising=False)
    assert validate(tiny_settings("--linear_cross_entropy")) == [
        f"--linear_cross_entropy needs PyTorch 2.13 or newer, and this is {torch.__version__}; install it, or leave "
        "the flag out"
    ]


def test_transformers_without_every_n_layers(monkeypatch):
    def enable(model, gradient_checkpointing_kwargs=None):
        pytest.fail("asked for checkpointing all the same")

    monkeypatch.setattr(PreTrainedModel, "activation_checkpointing_enable", enable, raising=False)
    flags = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"every_n_layers": 2}']
    with pytest.raises(UnavailableTechnique, match="does not know every_n_layers in --gradient_checkpointing_kwargs"):
        train_tiny(tiny_settings(*flags))
