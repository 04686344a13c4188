"""The table of a ladder: one row of figures a rung, and what all rungs share."""

from typing import Any

from .comparable import why_not_comparable
from .rung_result import NAMING, OWNERS, RungResult, reference
from .spread import Spread

COLUMNS = (
    "rung",
    "status",
    "peak_mib",
    "peak_vs_first",
    "peak_vs_before",
    "forecast_peak_mib",
    "forecast_error_percent",
    "forecast_of",
    "forecast_note",
    "parameters_mib",
    "gradients_mib",
    "optimizer_state_mib",
    "activations_mib",
    "step_ms",
    "step_ms_low",
    "step_ms_high",
    "disturbed",
    "tokens_per_second",
    "speed_vs_first",
    "model_tflops",
    "utilization",
    "compile_seconds",
    "last_loss",
    "loss_vs_fp32",
    "skipped_steps",
    "loss_scale",
    "reason",
)


def table(rungs: list[RungResult]) -> list[dict[str, Any]]:
    """One row a rung, keyed as in COLUMNS; None for what was not measured. Changes are shares: -0.36 is 36% less.

    Speed has a change only where the steps of the two rungs are told apart. `disturbed` is a reason, or None.
    A forecast's error is of the run that it is `of`; that of another run is a distance.
    """
    first, fp32 = rungs[0], reference(rungs)
    rows = []
    for rung, before in zip(rungs, [None, *rungs], strict=False):
        step = rung.step_ms
        rows.append(
            {
                "rung": rung.name,
                "status": rung.status,
                "peak_mib": rung.peak,
                "peak_vs_first": _change(first.peak, rung.peak) if rung is not first else None,
                "peak_vs_before": _change(before.peak, rung.peak) if before else None,
                "forecast_peak_mib": rung.forecast.get("peak_allocated_mib"),
                "forecast_error_percent": rung.forecast.get("peak_allocated_error_percent") if rung.ok else None,
                "forecast_of": rung.forecast.get("of"),
                "forecast_note": rung.forecast.get("note"),
                **{
                    f"{owner}_mib": rung.memory(f"{owner}_mib") if rung.ok else None
                    for owner in OWNERS
                    if owner != "buffers"
                },
                **step_columns(step),
                "disturbed": step.disturbed if step else None,
                "tokens_per_second": rung.tokens_per_second,
                "speed_vs_first": longer(step, first.step_ms) if rung is not first else None,
                "model_tflops": rung.rate("model_tflops"),
                "utilization": rung.rate("utilization"),
                "compile_seconds": rung.compile_seconds,
                "last_loss": rung.last_loss,
                "loss_vs_fp32": rung.last_loss - fp32.last_loss
                if fp32 and rung is not fp32 and rung.last_loss is not None and len(rung.losses) == len(fp32.losses)
                else None,
                "skipped_steps": rung.skipped_steps,
                "loss_scale": rung.loss_scale,
                "reason": rung.reason,
            }
        )
    return rows


def conditions(rungs: list[RungResult]) -> dict[str, Any]:
    """What all rungs share: hardware, versions, date, settings. What differs between them is listed as such.

    `elsewhere` says of rungs that were not made in the first one's environment what is other there.
    """
    known = [rung for rung in rungs if rung.rounds[0]["environment"]]
    if not known:
        return {"environment": {}, "settings": {}, "differs": [], "elsewhere": []}
    settings = [rung.settings for rung in known]
    names = [name for name in settings[0] if name not in NAMING]
    shared = {name: settings[0][name] for name in names if all(s.get(name) == settings[0][name] for s in settings)}
    return {
        "environment": known[0].rounds[0]["environment"],
        "elsewhere": _elsewhere(known),
        "settings": {name: value for name, value in shared.items() if value is not None},
        "differs": [name for name in names if name not in shared],
        "rounds": max(len(rung.rounds) for rung in rungs),
    }


def _elsewhere(rungs: list[RungResult]) -> list[str]:
    first = rungs[0]
    whys = {
        why_not_comparable(
            first.rounds[0]["environment"], result["environment"], (f"in {first.name}", f"in {rung.name}")
        )
        for rung in rungs
        for result in rung.rounds
        if result["environment"]
    }
    return sorted(whys - {""})


def _change(before: float | None, after: float | None) -> float | None:
    return after / before - 1 if before and after is not None else None


def step_columns(step: Spread | None) -> dict[str, float | None]:
    """A step time in ms as columns of a row: its median, its spread, None where it is not claimed."""
    names = ("step_ms", "step_ms_low", "step_ms_high")
    return dict(zip(names, (step.median, step.low, step.high) if step else (None, None, None), strict=True))


def step_words(row: dict[str, Any]) -> str:
    """The step time of a row with its spread, for reading."""
    if row["step_ms"] is None:
        return ""
    return f"{row['step_ms']:,.0f} ({row['step_ms_low']:,.0f}–{row['step_ms_high']:,.0f})"


def longer(before: Spread | None, after: Spread | None) -> float | None:
    """By what share `after` takes longer than `before`, or None where the two are not told apart."""
    told_apart = before is not None and after is not None and before.undecided(after) is None
    return _change(before.median, after.median) if told_apart else None
