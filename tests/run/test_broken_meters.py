"""A meter that fails costs its figure, and not the run: the same losses, the others' figures, and a word about it."""

import json

from rungwise.metrics import allocations, memory, saved_tensors, step_profile
from rungwise.techniques import lora, mixed_precision

import ablate
import pytest
import torch
from commands import ablate_here
from harness import TINY

FP32 = "accelerate_configs/fp32.yaml"
CALL = [*TINY, "--max_steps", "6", "--untimed_steps", "4"]
CHECKPOINTED = ["--gradient_checkpointing"]


def moved(*_, **__):
    raise AttributeError("it has moved")


class Moved:
    """A profiler whose events are elsewhere."""

    def __init__(self, **_):
        self.profiler = self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


# What is taken away, and the figure that goes with it.
MEMORY, PROFILE, ACTIVATIONS = {"memory"}, {"profile"}, {"activations"}
BROKEN = {
    "the profiler of allocations": (allocations, "own_profiler", moved, MEMORY),
    "the events of allocations": (allocations, "own_profiler", Moved, MEMORY),
    "the optimizer's state": (memory, "optimizer_state_bytes", moved, MEMORY),
    "what gradients take": (memory, "local", moved, MEMORY),
    "the profiler of a step": (step_profile, "own_profiler", moved, PROFILE),
    "the events of a step": (step_profile, "own_profiler", Moved, PROFILE),
    "a mark of the profile": (step_profile, "record_function", moved, PROFILE),
    "the classes of a step": (step_profile, "classify", moved, PROFILE),
    "autograd's numbers": (torch._C._autograd, "_get_sequence_nr", moved, ACTIVATIONS),
    "autograd's hooks": (torch._C._autograd, "_top_saved_tensors_default_hooks", moved, ACTIVATIONS),
    "the frame that saves": (saved_tensors, "_python_operator", moved, ACTIVATIONS),
    "the names of nodes": (saved_tensors, "operator_of", moved, ACTIVATIONS),
    "the FLOPs": (lora, "flops_per_row", moved, {"model_flops"}),
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Of runs whose meters are whole: with checkpointing, and without."""
    folder = tmp_path_factory.mktemp("whole")
    runs = {name: ablate_here(folder / str(name), "--config", FP32, *CALL, *flags) for name, flags in FLAGS.items()}
    assert [run["not_measured"] for run in runs.values()] == [{}, {}]
    return {name: run["loss"]["trajectory"] for name, run in runs.items()}


FLAGS = {"plain": [], "checkpointed": CHECKPOINTED}
FIGURES = {
    "memory": lambda result: result["memory"]["peak_allocated_mib"],
    "profile": lambda result: result["profile"]["step_ms"],
    "activations": lambda result: result["activations"].get("total_mib"),
}


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_meter_that_fails_costs_its_figure_alone(broken, flags, losses, tmp_path, monkeypatch, capsys):
    owner, name, instead, figures = BROKEN[broken]
    monkeypatch.setattr(owner, name, instead)
    result = ablate_here(tmp_path, "--config", FP32, *CALL, *FLAGS[flags])
    assert (result["status"], result["loss"]["trajectory"]) == ("ok", losses[flags])
    assert result["not_measured"].keys() == figures
    said = capsys.readouterr().out
    for figure, why in result["not_measured"].items():
        assert (
            "its meter failed (AttributeError: " in why and f"not measured {figure.replace('_', ' ')}: {why}" in said
        )
    for figure in ("memory", "profile", "activations"):
        assert (FIGURES[figure](result) is None) == (figure in figures), figure
    # Steps are timed whatever is lost.
    assert result["throughput"]["timed_steps"] == 2


@pytest.mark.parametrize("flags", FLAGS)
def test_a_run_without_any_meter_ends_well(flags, losses, tmp_path, monkeypatch):
    for owner, name, instead, _ in BROKEN.values():
        monkeypatch.setattr(owner, name, instead)
    result = ablate_here(tmp_path, "--config", FP32, *CALL, *FLAGS[flags])
    assert (result["status"], result["loss"]["trajectory"]) == ("ok", losses[flags])
    assert result["not_measured"].keys() == {"memory", "profile", "activations", "model_flops"}
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert not any("memory/peak_allocated_mib" in row for row in rows)


def test_a_profiler_that_another_tool_holds(losses, tmp_path):
    """It keeps what it has seen: ours would take that away, and lets go of its own figures in its place."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        result = ablate_here(tmp_path, "--config", FP32, *CALL)
    assert (result["status"], result["loss"]["trajectory"]) == ("ok", losses["plain"])
    assert result["not_measured"].keys() == {"memory", "profile"} and result["activations"]["total_mib"]
    assert all("another tool holds PyTorch's profiler" in why for why in result["not_measured"].values())
    assert any(event.key == "aten::addmm" for event in theirs.key_averages())


def test_evidence_is_no_figure(tmp_path, monkeypatch):
    """A technique that cannot be shown to act is not taken for one that did."""
    monkeypatch.setattr(mixed_precision, "evidence", moved)
    flags = ["--config", "accelerate_configs/bf16.yaml", *CALL, "--output_dir", str(tmp_path)]
    assert ablate.main(flags) == 1
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["status"], result["reason"]) == ("failed", "AttributeError: it has moved")
