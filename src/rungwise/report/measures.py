"""Measures one rung, or two that differ in one setting: a verdict, the figure, and its bound in words."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .forecasts import why_not_its_own
from .rung_result import OWNERS, RungResult, distances


class Finding(NamedTuple):
    """How a claim came out: PASS, FAIL, or SKIP where it is not decided; the figure or the reason; the bound."""

    verdict: str
    measured: str
    bound: str


@dataclass(frozen=True)
class LossBound:
    """The largest relative distance of two rungs' losses: at step 1 by precision, and on average over all updates."""

    step_1: Mapping[str, float]
    all_steps: float


@dataclass(frozen=True)
class SavingBound:
    """How far the saving of a figure of memory may lie from its forecast: shares, of which 0.01 is a point."""

    figure: str
    points: float


def saved_memory(before: RungResult, after: RungResult, least: float) -> Finding:
    """By what share the peak is lower; at least `least` passes."""
    bound = f"at least {least:.0%} less"
    if before.peak is None or after.peak is None:
        return Finding("SKIP", "peak memory was not measured", bound)
    saved = 1 - after.peak / before.peak
    text = f"{before.peak:,.1f} to {after.peak:,.1f} MiB, {saved:.1%} less"
    return Finding(verdict(saved >= least), text, bound)


def saved_as_forecast(before: RungResult, after: RungResult, most: SavingBound) -> Finding:
    """How far the share that was saved lies from the one that was forecast of these very runs."""
    bound, name = f"within {100 * most.points:g} point of the forecast", f"{most.figure}_mib"
    if why := next(filter(None, map(why_not_its_own, (before, after))), ""):
        return Finding("SKIP", why, bound)
    sizes = [rung.memory(name) for rung in (before, after)]
    if None in sizes:
        return Finding("SKIP", "memory was not measured", bound)
    forecasts = [rung.forecast[name] for rung in (before, after)]
    saved, forecast = (1 - small / large for large, small in (sizes, forecasts))
    text = f"{sizes[0]:,.1f} to {sizes[1]:,.1f} MiB, {saved:.2%} less; forecast {forecast:.2%}"
    return Finding(verdict(abs(saved - forecast) <= most.points), text, bound)


def smaller_state(before: RungResult, after: RungResult, most: float) -> Finding:
    """What share of the optimizer's state is left; at most `most` passes."""
    bound = f"at most {most:.0%} of it"
    sizes = [rung.memory("optimizer_state_mib") for rung in (before, after)]
    if not all(size is not None for size in sizes) or not sizes[0]:
        return Finding("SKIP", "memory was not measured", bound)
    text = f"optimizer state {sizes[0]:,.1f} to {sizes[1]:,.1f} MiB, {sizes[1] / sizes[0]:.1%} of it"
    return Finding(verdict(sizes[1] <= most * sizes[0]), text, bound)


def added_time(before: RungResult, after: RungResult, most: float) -> Finding:
    """By what share the step is longer; at most `most` passes.

    Decided where the step is told apart from the longest that is allowed, as two rungs' steps are.
    """
    bound = f"at most {most:.0%} more"
    if before.step_ms is None or after.step_ms is None:
        return Finding("SKIP", "too few timed steps for a speed", bound)
    cost = after.step_ms.median / before.step_ms.median - 1
    text = f"{before.step_ms.median:,.0f} to {after.step_ms.median:,.0f} ms a step, {cost:+.1%}"
    if why := after.step_ms.undecided(before.step_ms * (1 + most)):
        spreads = " to ".join(f"{step.low:,.0f}–{step.high:,.0f}" for step in (before.step_ms, after.step_ms))
        return Finding("SKIP", f"{text} ({spreads}); not decided at this bound: {why}", bound)
    return Finding(verdict(cost <= most), text, bound)


def divided_memory(before: RungResult, after: RungResult, tolerance: float) -> Finding:
    """Whether each process holds its share of parameters, gradients and optimizer state, within a relative tolerance.

    Nothing is asked of the peak, in which gathered parameters come and go.
    """
    processes = after.settings["num_processes"]
    bound = f"1/{processes} within {tolerance:.0%}"
    if before.peak is None or after.peak is None:
        return Finding("SKIP", "peak memory was not measured", bound)
    sizes = {o: (before.memory(f"{o}_mib"), after.memory(f"{o}_mib")) for o in OWNERS[:3]}
    text = ", ".join(f"{owner.replace('_', ' ')} {a:,.1f} to {b:,.1f} MiB" for owner, (a, b) in sizes.items())
    return Finding(verdict(all(abs(b * processes / a - 1) <= tolerance for a, b in sizes.values())), text, bound)


def followed_losses(before: RungResult, after: RungResult, most: LossBound) -> Finding:
    """How far the losses lie apart, at step 1 and on average over the updates that both made."""
    first, average = distances(before, after)
    step_1 = most.step_1[after.precision]
    bound = f"step 1 within {step_1:.1e}, on average within {most.all_steps:.0%}"
    updates = min(len(before.updates), len(after.updates))
    text = f"losses differ by {first:.1e} at step 1, by {average:.2%} on average over {updates} updates"
    skipped = before.skipped_steps + after.skipped_steps
    text += f" ({skipped} steps skipped)" if skipped else ""
    return Finding(verdict(first <= step_1 and average <= most.all_steps), text, bound)


def recompiles(rung: RungResult, most: int) -> Finding:
    """How often anything was compiled again. Not decided of a region, whose code kinds of blocks may share."""
    bound = f"{most} recompiles"
    if not rung.ok:
        return not_ended(rung, bound)
    count = rung.rounds[0]["compile"].get("recompiles")
    if count is None:
        return Finding("SKIP", "recompiles were not counted", bound)
    text = "; ".join([f"{count} recompiles", *rung.rounds[0]["compile"]["recompile_reasons"]])
    if count > most and rung.settings["torch_compile_scope"] == "regional":
        return Finding("SKIP", f"{text}; not asked, since kinds of blocks may differ", bound)
    return Finding(verdict(count <= most), text, bound)


def not_ended(rung: RungResult, bound: str) -> Finding:
    """Nothing is decided of a rung that did not run to its end."""
    return Finding("SKIP", f"{rung.status}: {rung.reason}", bound)


def verdict(passed: bool) -> str:
    """PASS or FAIL."""
    return "PASS" if passed else "FAIL"
