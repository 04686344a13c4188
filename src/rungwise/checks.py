"""Claims of the lesson, each held against the rungs that can decide it."""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .compare import Rung, pairs

SAVED_BY_BF16 = 0.30
SAVED_BY_CHECKPOINTING = 0.30
COST_OF_CHECKPOINTING = 0.75
# The relative distance of two losses: of step 1, where the weights are still equal, and of all steps on average.
# The step-1 bounds are four units of rounding of the dtype in which the products are computed; later steps start from
# weights that AdamW has moved apart, for which 5% is the lesson's bound.
STEP_1 = {"no": 4 * 2.0**-24, "bf16": 4 * 2.0**-9, "fp16": 4 * 2.0**-12}
ALL_STEPS = 0.05
# Accumulation changes no product of the forward pass, only the order of sums and how a kernel blocks them: in half
# precision a few values may round the other way, a hundredth of what the precision itself does.
STEP_1_ACCUMULATED = {"no": STEP_1["no"], "bf16": STEP_1["bf16"] / 100, "fp16": STEP_1["fp16"] / 100}
ALL_STEPS_ACCUMULATED = 0.01


# Two rungs to verdict, measured figure and bound.
Decide = Callable[[Rung, Rung], tuple[str, str, str]]


@dataclass(frozen=True)
class Check:
    """One claim, the rungs it compares, and how it came out: PASS, FAIL, or SKIP with the reason."""

    claim: str
    rungs: tuple[str, ...]
    verdict: str
    measured: str
    bound: str


def run_checks(rungs: list[Rung]) -> list[Check]:
    """Every check that these rungs can be asked, and for each that they cannot, why."""
    half = [(precision, f"{precision} follows fp32") for precision in ("bf16", "fp16")]
    found = [
        *_each(rungs, "bf16 saves memory", "mixed_precision", "no", "bf16", _saves(SAVED_BY_BF16)),
        *_each(
            rungs, "checkpointing saves memory", "gradient_checkpointing", False, True, _saves(SAVED_BY_CHECKPOINTING)
        ),
        *_each(rungs, "checkpointing costs little time", "gradient_checkpointing", False, True, _costs),
        *_accumulation(rungs),
    ]
    for precision, claim in half:
        found += _each(rungs, claim, "mixed_precision", "no", precision, _follows)
    return [*found, *(_active(rung) for rung in rungs)]


def _each(
    rungs: list[Rung], claim: str, setting: str, before_value: Any, after_value: Any, decide: Decide
) -> list[Check]:
    """The check for every pair of rungs that differ in this setting alone."""
    compared = list(pairs(rungs, setting, lambda before, after: (before, after) == (before_value, after_value)))
    if not compared:
        why = f"no two rungs differ in {setting} alone ({before_value} and {after_value})"
        return [Check(claim, (), "SKIP", why, "")]
    return [_decided(claim, before, after, decide) for before, after in compared]


def _decided(claim: str, before: Rung, after: Rung, decide: Decide) -> Check:
    names = (before.name, after.name)
    for rung in (before, after):
        if not rung.ok:
            return Check(claim, names, "SKIP", f"{rung.name}: {rung.status}", "")
    verdict, measured, bound = decide(before, after)
    return Check(claim, names, verdict, measured, bound)


def _saves(share: float) -> Decide:
    def decide(before: Rung, after: Rung) -> tuple[str, str, str]:
        bound = f"at least {share:.0%} less"
        if before.peak is None or after.peak is None:
            return "SKIP", "peak memory was not measured", bound
        saved = 1 - after.peak / before.peak
        text = f"{before.peak:,.1f} to {after.peak:,.1f} MiB, {saved:.1%} less"
        return _verdict(saved >= share), text, bound

    return decide


def _costs(before: Rung, after: Rung) -> tuple[str, str, str]:
    bound = f"at most {COST_OF_CHECKPOINTING:.0%} more"
    if before.step_ms is None or after.step_ms is None:
        return "SKIP", "too few timed steps for a speed", bound
    cost = after.step_ms.median / before.step_ms.median - 1
    text = f"{before.step_ms.median:,.0f} to {after.step_ms.median:,.0f} ms a step, {cost:+.1%}"
    return _verdict(cost <= COST_OF_CHECKPOINTING), text, bound


def _follows(before: Rung, after: Rung) -> tuple[str, str, str]:
    return _agree(before, after, STEP_1[after.settings["mixed_precision"]], ALL_STEPS)


def _equals(before: Rung, after: Rung) -> tuple[str, str, str]:
    return _agree(before, after, STEP_1_ACCUMULATED[after.settings["mixed_precision"]], ALL_STEPS_ACCUMULATED)


def _agree(before: Rung, after: Rung, step_1: float, all_steps: float) -> tuple[str, str, str]:
    first, average = distances(before, after)
    bound = f"step 1 within {step_1:.1e}, on average within {all_steps:.0%}"
    updates = min(len(before.updates), len(after.updates))
    text = f"losses differ by {first:.1e} at step 1, by {average:.2%} on average over {updates} updates"
    skipped = before.skipped_steps + after.skipped_steps
    text += f" ({skipped} steps skipped)" if skipped else ""
    return _verdict(first <= step_1 and average <= all_steps), text, bound


def _accumulation(rungs: list[Rung]) -> list[Check]:
    claim, setting = "accumulation equals the big batch", "gradient_accumulation_steps"
    compared = list(pairs(rungs, setting, lambda before, after: before == 1 and after > 1))
    if not compared:
        return [Check(claim, (), "SKIP", f"no two rungs differ in {setting} alone", "")]
    return [_decided(claim, before, after, _equals) for before, after in compared]


def _active(rung: Rung) -> Check:
    """A run that is `ok` has proved its techniques; what it saw is held against what was asked for once more."""
    claim, bound = "every technique was active", "as asked for"
    if not rung.ok:
        return Check(claim, (rung.name,), "SKIP", f"{rung.status}: {rung.reason}", bound)
    wrong = []
    for result in rung.rounds:
        asked, seen = result["settings"], result["evidence"]
        dtype = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}[asked["mixed_precision"]]
        expected = {
            "compute_dtype": seen.get("compute_dtype") == dtype,
            "gradient_scaler": seen.get("gradient_scaler") == (dtype == "float16"),
            "recomputed_blocks": (seen.get("recomputed_blocks", 0) > 0) == asked["gradient_checkpointing"],
            "compiled_graphs": (seen.get("compiled_graphs", 0) > 0) == asked["torch_compile"],
            "processes": seen.get("processes") == asked["num_processes"],
        }
        wrong += [f"{name}: {seen.get(name)}" for name, right in expected.items() if not right]
    seen = rung.rounds[0]["evidence"]
    words = [seen["compute_dtype"]] if not wrong else []
    words += ["scaler"] * bool(seen.get("gradient_scaler"))
    words += [f"blocks recomputed: {seen['recomputed_blocks']}"] * bool(seen.get("recomputed_blocks"))
    words += [f"graphs compiled: {seen['compiled_graphs']}"] * bool(seen.get("compiled_graphs"))
    return Check(claim, (rung.name,), _verdict(not wrong), "; ".join(wrong or words), bound)


def distances(a: Rung, b: Rung) -> tuple[float, float]:
    """How far two loss trajectories lie apart, relative to `a`: at step 1, and on average.

    Compared after equal numbers of updates: a step that fp16 skipped taught nothing.
    """
    each = [abs(y - x) / abs(x) for x, y in zip(a.updates, b.updates, strict=False) if x is not None and y is not None]
    return (each[0], statistics.fmean(each)) if each else (float("inf"), float("inf"))


def _verdict(passed: bool) -> str:
    return "PASS" if passed else "FAIL"
