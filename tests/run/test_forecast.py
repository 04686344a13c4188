"""A run's forecast in its result, its summary and its tracker."""

import dataclasses

from rungwise.forecast import beside, peak
from rungwise.forecast.peak import NoForecast
from rungwise.model.config import load_config
from rungwise.run.console import summary_block
from rungwise.run.record import Record
from rungwise.run.reporter import Reporter
from rungwise.settings.fields import OWN

import pytest
from commands import ablate_here
from harness import tiny_settings

# Activations dominate, so that the few KiB that only a run has do not count.
MODEL = "vocab_size=2048,n_positions=128,n_embd=64,n_layer=2,n_head=2"
ROWS = ["--block_size", "128", "--dataset_name", "synthetic", "--report_to", "none", "--max_steps", "3"]
FLAGS = ["--config", "accelerate_configs/fp32.yaml", "--config_overrides", MODEL, *ROWS, "--untimed_steps", "2"]
OWNERS = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
NAMES = {f"{name}_mib" for name in ("peak_allocated", *OWNERS)}


def test_a_run_logs_its_forecast_beside_its_measured_peak(tmp_path, capsys):
    result = ablate_here(tmp_path, *FLAGS)
    found, memory = result["forecast"], result["memory"]
    assert found["of"] == "this run" and found["seconds"] > 0
    for name in NAMES - {"peak_allocated_mib", "activations_mib"}:
        assert found[name] == memory[name], name
    for name in NAMES:
        error = 100 * (found[name] / memory[name] - 1) if found[name] != memory[name] else 0.0
        assert found[f"{name.removesuffix('_mib')}_error_percent"] == pytest.approx(error)
        assert abs(error) < 0.2, name
    assert found["peak_allocated_mib"] == pytest.approx(sum(found[f"{name}_mib"] for name in OWNERS))
    line = f"  forecast     {found['peak_allocated_mib']:,.1f} MiB for this run, "
    assert f"{line}{found['peak_allocated_error_percent']:+.2f}% of what was measured" in capsys.readouterr().out


def test_a_forecast_that_fails_costs_its_figure_and_not_the_run(tmp_path, capsys, monkeypatch):
    def fail(*_):
        raise NoForecast("it asks for the value of a tensor")

    monkeypatch.setattr(beside, "forecast", fail)
    result = ablate_here(tmp_path, *FLAGS)
    assert (result["status"], result["memory"]["peak_allocated_mib"] > 0) == ("ok", True)
    reason = "it asks for the value of a tensor"
    assert result["forecast"] == {"peak_allocated_mib": None, "reason": reason}
    assert f"  forecast     not known: {reason}" in capsys.readouterr().out


def test_of_a_compiled_run_it_is_the_eager_runs():
    settings = tiny_settings(torch_compile=True)
    found = beside.beside_measured(settings, load_config(settings), {"peak_allocated_mib": 1.0})
    assert found["of"] == "the eager run" and found["peak_allocated_error_percent"] > 0
    assert found["parameters_error_percent"] is None
    result = {**Record(settings).as_dict(), "forecast": found}
    result["settings"]["output_dir"] = "somewhere"
    assert "MiB for the eager run, +" in summary_block(result, [])


def test_on_a_gpu_it_is_cudas_and_says_that_it_was_not_measured(monkeypatch):
    """Whose error, owner by owner, will tell."""
    for module in (beside, peak):
        monkeypatch.setattr(module, "device_type", lambda _: "cuda")
    settings = tiny_settings()
    memory = {f"{name}_mib": 1.0 for name in ("peak_allocated", *OWNERS)}
    found = beside.beside_measured(settings, load_config(settings), memory)
    assert (found["of"], found["note"]) == ("this run", "forecast, not measured on CUDA")
    for name in NAMES:
        assert found[f"{name.removesuffix('_mib')}_error_percent"] == pytest.approx(100 * (found[name] - 1)), name
    result = {**Record(settings).as_dict(), "forecast": found}
    result["settings"]["output_dir"] = "somewhere"
    line = f"{found['peak_allocated_mib']:,.1f} MiB for this run, {found['peak_allocated_error_percent']:+.2f}%"
    assert f"{line} of what was measured (forecast, not measured on CUDA)" in summary_block(result, [])


def test_on_another_accelerator_it_is_the_cpus(monkeypatch):
    for module in (beside, peak):
        monkeypatch.setattr(module, "device_type", lambda _: "xpu")
    settings = tiny_settings()
    found = beside.beside_measured(settings, load_config(settings), {})
    assert (found["of"], found["note"]) == ("this run on a CPU", None)


def test_it_is_made_where_a_run_came_to_its_end_or_ran_out_of_memory(tmp_path):
    settings = dataclasses.replace(tiny_settings(), output_dir=str(tmp_path))
    for status, made in (("ok", True), ("out_of_memory", True), ("failed", False), ("diverged", False)):
        record, reporter = Record(settings, status=status), Reporter(settings, tmp_path)
        reporter.watch(load_config(settings))
        reporter.forecast(record)
        assert bool(record.forecast) == made, status
    # Of a run that did not come to its model, and of one that was to have none.
    for wanted in (settings, dataclasses.replace(settings, forecast=False)):
        record, reporter = Record(wanted, status="ok"), Reporter(wanted, tmp_path)
        if not wanted.forecast:
            reporter.watch(load_config(wanted))
        reporter.forecast(record)
        assert record.forecast == {}


def test_a_scripts_own_model_has_none():
    settings = tiny_settings(origins={"model_type": OWN})
    found = beside.beside_measured(settings, load_config(settings), {})
    assert found["peak_allocated_mib"] is None and "the script's own" in found["reason"]
