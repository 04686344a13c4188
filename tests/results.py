"""Result files made by hand, for what compares them."""

import copy
from typing import Any

from rungwise.report.rung_result import OWNERS, RungResult
from rungwise.result_file import THIS_RUN
from rungwise.settings.choices import OPTIMIZERS, compute_precision

BASE = {
    "schema": 1,
    "name": "base",
    "status": "ok",
    "reason": None,
    "settings": {
        "config": "a.yaml",
        "run_name": "base",
        "output_dir": "somewhere",
        "mixed_precision": "no",
        "dtype": "float32",
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
        "torch_compile": False,
        "torch_compile_mode": "default",
        "torch_compile_scope": "model",
        "activation_memory_budget": 1.0,
        "global_batch_size": 16,
        "micro_batch_size": 16,
        "num_processes": 1,
        "fsdp": False,
        "report_to": "none",
        "seed": 0,
        "optim": "adamw_torch",
        "fused_activation": False,
        "linear_cross_entropy": False,
        "use_liger_kernel": False,
        "tf32": False,
    },
    "origins": {},
    "environment": {
        "python": "3.11",
        "torch": "2.13",
        "transformers": "5",
        "accelerate": "1",
        "device": "cpu",
        "device_name": "a CPU",
        "threads": 2,
        "native_precision": ["fp32"],
        "date": "2026-01-01T00:00:00+00:00",
    },
    "evidence": {
        "compute_dtype": "float32",
        "parameter_dtype": "float32",
        "gradient_scaler": False,
        "recomputed_blocks": 0,
        "compiled_graphs": 0,
        "processes": 1,
        "optimizer": "adamw_torch",
        "fused_activations": {},
        "linear_cross_entropy": False,
        "liger_kernels": {},
    },
    "loss": {"first": 4.0, "last": 2.0, "trajectory": [4.0, 3.0, 2.0], "updates": [4.0, 3.0, 2.0]},
    "throughput": {
        "tokens_per_second": 1000.0,
        "step_ms_median": 100.0,
        "step_ms_p10": 95.0,
        "step_ms_p90": 110.0,
        "step_ms_mean": 100.0,
        "disturbed": None,
        "timed_steps": 10,
        "tokens": 100,
        "all_steps_seconds": 1.3,
        "restored_steps": 0,
    },
    "memory": {
        "peak_allocated_mib": 1000.0,
        "parameters_mib": 100.0,
        "gradients_mib": 100.0,
        "optimizer_state_mib": 200.0,
        "buffers_mib": 0.0,
        "activations_mib": 600.0,
        "peak_rss_mib": 2000.0,
    },
    "compile": {},
    "amp": {},
    "activations": {},
}
COMPILE = {
    "seconds": 30.0,
    "graphs": 1,
    "graph_breaks": 0,
    "graph_break_reasons": [],
    "recompiles": 0,
    "recompile_reasons": [],
    "cache": "fresh",
}
EVIDENCE = {
    "mixed_precision": {
        "bf16": {"compute_dtype": "bfloat16"},
        "fp16": {"compute_dtype": "float16", "gradient_scaler": True},
    },
    "dtype": {"bfloat16": {"compute_dtype": "bfloat16", "parameter_dtype": "bfloat16"}},
    "gradient_checkpointing": {True: {"recomputed_blocks": 12}},
    "torch_compile": {True: {"compiled_graphs": 1, "compiled_parameters": 1.0}},
    "fused_activation": {True: {"fused_activations": {"NewGELUActivation": 6}}},
    "linear_cross_entropy": {True: {"linear_cross_entropy": True}},
    "use_liger_kernel": {True: {"liger_kernels": {"LigerRMSNorm": 6}}},
    "optim": {name: {"optimizer": name} for name in OPTIMIZERS},
}
# Memory over one step of one micro-batch: ms, MiB, phase.
PHASES = [(0.0, 10.0, "forward"), (1.0, 30.0, "forward"), (3.0, 30.0, "backward"), (5.0, 20.0, "backward")]
PHASES += [(8.0, 12.0, "optimizer"), (9.0, 14.0, "optimizer"), (10.0, 10.0, "optimizer")]


def result(
    peak: float = 1000.0,
    step_ms: float = 100.0,
    losses: list[float] | None = None,
    status: str = "ok",
    reason: str | None = None,
    spread: float = 5.0,
    forecast: float | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """A result with these figures and settings, and the evidence that belongs to them.

    Without a forecast of its peak it is one from before there were any.
    """
    made = copy.deepcopy(BASE)
    made["settings"] |= settings
    made["settings"]["precision"] = compute_precision(made["settings"]["mixed_precision"], made["settings"]["dtype"])
    made["status"], made["reason"] = status, reason
    made["memory"]["peak_allocated_mib"] = peak
    made["memory"]["activations_mib"] = peak - 400
    speed = {"step_ms_median": step_ms, "step_ms_p10": step_ms - spread, "step_ms_p90": step_ms + spread}
    made["throughput"] |= {**speed, "step_ms_mean": step_ms, "tokens_per_second": 1e5 / step_ms}
    if forecast is not None:
        made["forecast"] = forecast_beside(made["memory"], forecast)
    if settings.get("torch_compile"):
        made["compile"] = copy.deepcopy(COMPILE)
    if losses:
        made["loss"] = {"first": losses[0], "last": losses[-1], "trajectory": losses, "updates": losses}
    for name, seen in EVIDENCE.items():
        made["evidence"] |= seen.get(settings.get(name), {})
    return made


def forecast_beside(memory: dict[str, float], peak: float, of: str = THIS_RUN) -> dict[str, Any]:
    """A forecast of such a peak, as it stands beside what was measured: off by its activations alone."""
    figures = {name: memory[f"{name}_mib"] for name in OWNERS} | {"peak_allocated": peak}
    figures["activations"] += peak - memory["peak_allocated_mib"]
    found = {f"{name}_mib": size for name, size in figures.items()}
    for name, size in figures.items():
        measured = memory[f"{name}_mib"]
        found[f"{name}_error_percent"] = 0.0 if size == measured else 100 * (size / measured - 1) if measured else None
    return {**found, "of": of, "seconds": 1.0}


def rung(name: str, *rounds: dict[str, Any], timeline: Any = (), **changes: Any) -> RungResult:
    """A rung of these rounds, or of one result with these changes."""
    return RungResult(name, list(rounds) or [result(**changes)], list(timeline))
