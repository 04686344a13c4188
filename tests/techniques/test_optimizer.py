"""Every optimizer by its name: what it is, the bytes of its state, and that a run with it is measured and goes on."""

import json

from rungwise.metrics.memory import MIB, optimizer_state_bytes
from rungwise.settings.choices import OPTIMIZERS
from rungwise.techniques import optimizer as optimizers
from rungwise.techniques.optimizer import name_of

import pytest
import torch
from commands import ablate_here
from harness import TINY, tiny_settings, train_tiny


def elements_of_state(name, shape):
    """How many fp32 numbers an optimizer keeps of a parameter, beside those that count its steps."""
    size = torch.Size(shape).numel()
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


@pytest.mark.parametrize("name", ["adafactor", "sgd"])
def test_a_run_is_measured_and_goes_on(tmp_path, name):
    """Memory and speed are claimed, also where the optimizer has no state by which a whole step could be told."""
    flags = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--optim", name, "--max_steps", "14"]
    whole = ablate_here(tmp_path / "whole", *flags, "--checkpointing_steps", "5")
    assert whole["throughput"]["timed_steps"] >= 10 and whole["memory"]["peak_allocated_mib"] > 0
    assert whole["memory"]["optimizer_state_mib"] < whole["memory"]["parameters_mib"]
    assert whole["memory"]["optimizer_state_mib"] * MIB == int(whole["memory"]["optimizer_state_mib"] * MIB)
    checkpoint = tmp_path / "whole" / "checkpoint-5"
    resumed = ablate_here(tmp_path / "resumed", *flags, "--resume_from_checkpoint", str(checkpoint))
    assert resumed["loss"]["trajectory"] == pytest.approx(whole["loss"]["trajectory"], abs=1e-6)
    assert json.loads((tmp_path / "whole/result.json").read_text())["evidence"]["optimizer"] == name
