"""Every optimizer by its name: what it is, the bytes of its state, and that a run with it is measured and goes on."""

import importlib.util
import json

from rungwise.metrics.memory import MIB, optimizer_state_bytes
from rungwise.report.claims import ALL_STEPS
from rungwise.settings.choices import OPTIMIZERS
from rungwise.techniques import optimizer as optimizers
from rungwise.techniques import validate
from rungwise.techniques.optimizer import name_of

import pytest
import torch
from commands import ablate_here
from harness import LINES, TINY, tiny_settings, train_tiny


def elements_of_state(name, shape):
    """How many fp32 numbers an optimizer keeps of a parameter, beside those that count its steps."""
    size = torch.Size(shape).numel()
    if name == "adamw_torch_8bit" and size >= 4096 and size % 256 == 0:
        # A byte an element, a scale for each 256 of them, and a table of what 256 codes mean; twice.
        return 2 * (size // 4 + size // 256 + 256)
    if name.startswith("adamw"):
        return 2 * size
    if name == "sgd":
        return 0
    # Adafactor (Shazeer and Stern 2018): of a matrix the means of its rows and columns, of a vector each element.
    return sum(shape) if len(shape) == 2 else size


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_is_what_it_is_called_and_keeps_what_it_should(name):
    trained = train_tiny(tiny_settings("--max_steps", "4", "--optim", name))
    assert trained.evidence["optimizer"] == name_of(trained.optimizer) == name
    shapes = [tuple(p.shape) for p in trained.model.parameters()]
    # AdamW's count of steps and Adafactor's root mean square are one number a parameter.
    scalars = 0 if name == "sgd" else len(shapes)
    expected = 4 * (sum(elements_of_state(name, shape) for shape in shapes) + scalars)
    assert optimizer_state_bytes(trained.optimizer) == expected


def test_the_names_are_those_of_the_flag():
    assert tuple(optimizers.OPTIMIZERS) == OPTIMIZERS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_another_one_under_its_name_is_missed(name, monkeypatch):
    other = next(other for other in OPTIMIZERS if other != name)
    monkeypatch.setitem(optimizers.OPTIMIZERS, name, optimizers.OPTIMIZERS[other])
    trained = train_tiny(tiny_settings("--max_steps", "4", "--optim", name))
    with pytest.raises(Exception, match=f"optim {name} was asked for, the optimizer has {other}"):
        trained.proof.verify(trained.steps[-1])


def test_a_learning_rate_that_is_kept_as_a_tensor_is_the_one_asked_for():
    """fp32 has fewer digits than what was typed."""
    found = train_tiny(
        tiny_settings("--max_steps", "4", "--optim", "adamw_torch_8bit", "--learning_rate", "0.0012345")
    )
    assert found.proof.verify(found.steps[-1])["optimizer"] == "adamw_torch_8bit"
    assert all(isinstance(step.learning_rate, float) for step in found.steps)
    assert found.steps[0].learning_rate == pytest.approx(0.0012345)


def test_eight_bit_state_learns_what_adamw_does_over_60_steps():
    """From one loss at step 1; then as near as the lesson asks of runs whose weights AdamW has moved apart."""
    flags = ["--max_steps", "60", "--learning_rate", "0.01", "--dataset_name", LINES]
    names = ("adamw_torch", "adamw_torch_8bit")
    plain, small = (train_tiny(tiny_settings(*flags, "--optim", name)).losses for name in names)
    assert small[0] == plain[0] and plain[-1] < 0.7 * plain[0]
    assert sum(abs(b / a - 1) for a, b in zip(plain, small, strict=True)) / 60 < ALL_STEPS


def test_a_missing_package_is_said_before_anything_is_built(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "torchao" else find(name, *a))
    words = "--optim adamw_torch_8bit: not installed; pip install 'rungwise[torchao]'"
    assert validate(tiny_settings("--optim", "adamw_torch_8bit")) == [words]


@pytest.mark.parametrize("name", ["adamw_torch_8bit", "adafactor", "sgd"])
def test_a_run_is_measured_and_goes_on(tmp_path, name):
    """Memory and speed are claimed, also where the optimizer has no state by which a whole step could be told."""
    flags = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--optim", name, "--max_steps", "14"]
    whole = ablate_here(tmp_path / "whole", *flags, "--checkpointing_steps", "5")
    assert whole["throughput"]["timed_steps"] >= 10 and whole["memory"]["peak_allocated_mib"] > 0
    # fp32 moments take twice the parameters.
    assert whole["memory"]["optimizer_state_mib"] < 1.2 * whole["memory"]["parameters_mib"]
    assert whole["memory"]["optimizer_state_mib"] * MIB == int(whole["memory"]["optimizer_state_mib"] * MIB)
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    resumed = ablate_here(tmp_path / "resumed", *flags, "--resume_from_checkpoint", str(checkpoint))
    assert resumed["loss"]["trajectory"] == pytest.approx(whole["loss"]["trajectory"], abs=1e-6)
    assert json.loads((tmp_path / "whole/result.json").read_text())["evidence"]["optimizer"] == name
