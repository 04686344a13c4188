"""Forecasts of one of several ranks: against real ranks over gloo, and deeper models against traces of all layers."""

import dataclasses
import io
import json
import subprocess
import sys
from types import SimpleNamespace

from rungwise.forecast import NoForecast, apart, forecast, peak, ranks
from rungwise.metrics.memory import MIB

import pytest
import sharded
import torch
from forked_ranks import on_ranks
from grid import OWNERS
from needs import RANKS
from selection import taken
from sharded import CASES, TWICE, inputs
from transformers import AutoConfig

# Per cent.
BOUND = 1
MEASURED = [*((case, 2) for case in CASES), *((case, 4) for case in TWICE)]
# More layers than are traced at once. Gemma's are of two kinds, in turns.
LAYERS, WINDOWS = 6, ["sliding_attention", "full_attention"] * 6
DEEPER = {
    "llama": {**sharded.LLAMA, "num_hidden_layers": LAYERS},
    "gpt2": {**sharded.GPT2, "n_layer": LAYERS},
    "gemma3_text": {**sharded.LLAMA, "num_hidden_layers": 12, "sliding_window": 16, "layer_types": WINDOWS},
}
DEEP = (
    ("llama", "FSDP2"),
    ("llama", "FSDP2, bf16, accumulation, checkpointing"),
    ("llama", "DDP, accumulation"),
    ("gpt2", "FSDP2, few tokens"),
    ("gemma3_text", "FSDP2, few tokens"),
)


@pytest.fixture(scope="module")
def measured(request, tmp_path_factory):
    """Of each case and number of ranks that this run takes, the figures of the highest rank."""
    found, asked = {}, taken(request, "test_the_forecast_of_a_rank_is_what_is_measured")
    for processes in sorted({params["processes"] for params in asked}):
        cases = [params["case"] for params in asked if params["processes"] == processes]
        file = tmp_path_factory.mktemp("sharded") / "peaks.json"
        on_ranks("forecast/sharded.py", processes, str(file), *cases)
        found |= {(case, processes): figures for case, figures in json.loads(file.read_text("utf-8")).items()}
    return found


@RANKS
@pytest.mark.breadth(8)
@pytest.mark.parametrize("case, processes", MEASURED)
def test_the_forecast_of_a_rank_is_what_is_measured(measured, case, processes):
    found, figures = forecast(*inputs(case, processes)), measured[case, processes]
    assert 100 * abs(found.peak_mib / figures["peak_allocated_mib"] - 1) <= BOUND
    # Of the model's building, too, which may be higher.
    assert 100 * abs(found.step_mib / figures["step_mib"] - 1) <= BOUND
    for owner in OWNERS[:-1]:
        assert found.owners[owner] == pytest.approx(figures[f"{owner}_mib"], rel=1e-12), owner


@RANKS
@pytest.mark.breadth(2)
@pytest.mark.parametrize("model, case", DEEP)
def test_two_depths_give_the_whole_model(model, case, monkeypatch):
    settings = inputs(case, 3)[0]
    config = AutoConfig.for_model(model, **DEEPER[model], use_cache=False)
    extended = forecast(settings, config)
    monkeypatch.setattr(peak, "find_pattern", lambda _: None)
    whole = forecast(settings, config)
    assert extended.traced_layers < whole.traced_layers == config.num_hidden_layers
    for name in ("peak_mib", "building_mib", "step_mib"):
        assert getattr(extended, name) * MIB == getattr(whole, name) * MIB, name
    assert extended.owners == pytest.approx(whole.owners, abs=1e-9)
    assert dict(extended.activations) == pytest.approx(dict(whole.activations), abs=1e-9)


@RANKS
def test_a_rank_keeps_its_share_of_the_whole_model():
    """The share of the first rank, in which no tensor divides: padding takes memory and is no gradient."""
    settings, config = inputs("FSDP2", 3)
    model = peak.empty_model(settings, config)
    shares = [4 * -(-p.shape[0] // 3) * p[0].numel() for p in model.parameters()]
    assert sum(shares) > 4 * model.num_parameters() / 3
    found = forecast(settings, config)
    for owner, times in (("parameters", 1), ("gradients", 1), ("optimizer_state", 2)):
        scalars = 4 * len(shares) if owner == "optimizer_state" else 0
        assert found.owners[owner] * MIB == times * sum(shares) + scalars, owner
    # The whole model is there, and shards of it, before any of it is let go.
    assert found.building_mib * MIB >= 4 * model.num_parameters() + sum(shares)


@RANKS
def test_a_process_is_left_as_it_was(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "1")
    before, data_ptr, resize = torch.get_num_threads(), torch.Tensor.data_ptr, torch.UntypedStorage.resize_
    forecast(*inputs("FSDP2, few tokens", 512))
    assert not torch.distributed.is_initialized()
    assert (torch.get_num_threads(), torch.Tensor.data_ptr, torch.UntypedStorage.resize_) == (before, data_ptr, resize)
    assert sharded.os.environ["WORLD_SIZE"] == "1" and "RANK" not in sharded.os.environ


@RANKS
def test_a_rank_asks_another_process(monkeypatch):
    settings, config = inputs("FSDP2, few tokens", 2)
    expected = forecast(settings, config)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(peak.NoForecast, match="in a process that is none of them"):
        forecast(settings, config)
    found = apart.forecast_apart(settings, config)
    sizes = [
        [one.peak_mib, one.step_mib, *one.owners.values(), *(size for _, size in one.activations)]
        for one in (expected, found)
    ]
    # Where a compilation has failed before, as in other tests of this process, one scalar is given back later.
    assert sizes[1] == pytest.approx(sizes[0], abs=4.5 / MIB)
    names = [[name for name, _ in one.activations] for one in (expected, found)]
    assert names[0] == names[1] and sizes[0][0] > 1
    same = ("peak_mib", "step_mib", "owners", "activations")
    assert dataclasses.replace(found, **{name: getattr(expected, name) for name in same}) == expected


def test_why_another_process_has_no_forecast(monkeypatch):
    settings, config = inputs("FSDP2", 2)
    said = io.BytesIO()

    def other(_, input, **__):
        """The other process, in this one."""
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(input)))
            patched.setattr(sys, "stdout", SimpleNamespace(buffer=said))
            apart.main()
        return SimpleNamespace(returncode=0, stdout=said.getvalue())

    monkeypatch.setattr(subprocess, "run", other)
    with pytest.raises(peak.NoForecast, match="FSDP2 shards over processes, and there is one"):
        apart.forecast_apart(dataclasses.replace(settings, num_processes=1), config)
    with pytest.raises(peak.NoForecast, match="shards of 8-bit state cannot be traced"):
        forecast(dataclasses.replace(settings, optim="adamw_torch_8bit"), config)
    ended = SimpleNamespace(returncode=1, stderr=b"why\nKilled")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    with pytest.raises(peak.NoForecast, match="the process that was to make it ended: Killed"):
        apart.forecast_apart(settings, config)
    config.code = lambda: None
    with pytest.raises(peak.NoForecast, match="llama cannot be handed to another process: "):
        apart.forecast_apart(settings, config)


def test_pytorch_that_does_not_know_exchanges_of_fake_tensors(monkeypatch):
    monkeypatch.setattr(ranks, "can_be_traced", lambda: False)
    with pytest.raises(NoForecast, match=r"several ranks are traced by PyTorch 2.13 or newer, and this is"):
        forecast(*inputs("FSDP2", 2))
