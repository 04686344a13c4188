"""Claims of the lesson, each held against the rungs that can decide it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..settings.fields import COMPUTE_DTYPES
from .rung_result import OWNERS, RungResult, distances, pairs

SAVED_BY_BF16 = 0.30
SAVED_BY_CHECKPOINTING = 0.30
COST_OF_CHECKPOINTING = 0.75
# The relative distance of two losses: of step 1, where the weights are still equal, and of all steps on average.
# The step-1 bounds are two units of rounding of the dtype in which the products are computed (2^-8 and 2^-11, half the
# distance from 1 to the next number); later steps start from weights that AdamW has moved apart, for which 5% is the
# lesson's bound.
STEP_1 = {"bf16": 2 * 2.0**-8, "fp16": 2 * 2.0**-11}
ALL_STEPS = 0.05
# Accumulation changes no product of the forward pass, only the order of sums and how a kernel blocks them: 16 units of
# fp32 for a sum of some thousand losses; in half precision a few values may round the other way, a hundredth of what
# the precision itself does.
STEP_1_ACCUMULATED = {"no": 16 * 2.0**-24, "bf16": STEP_1["bf16"] / 100, "fp16": STEP_1["fp16"] / 100}
ALL_STEPS_ACCUMULATED = 0.01
# Compiled code fuses: it orders fp32 sums otherwise, as accumulation does, and keeps in fp32 what eager mode rounds to
# half precision between two operations, which is as large as what that precision does itself.
STEP_1_COMPILED = {"no": STEP_1_ACCUMULATED["no"], **STEP_1}
ALL_STEPS_COMPILED = 0.01
# Shards are padded to equal sizes.
SHARDED = 0.05


# Two rungs to verdict, measured figure and bound.
Decide = Callable[[RungResult, RungResult], tuple[str, str, str]]
# Two values of a setting to whether a pair of rungs with them is asked for.
Accept = Callable[[Any, Any], bool]


@dataclass(frozen=True)
class Check:
    """One claim, the rungs it compares, and how it came out: PASS, FAIL, or SKIP with the reason."""

    claim: str
    rungs: tuple[str, ...]
    verdict: str
    measured: str
    bound: str


def run_checks(rungs: list[RungResult]) -> list[Check]:
    """Every check that these rungs can be asked, and for each that they cannot, why."""
    known = [rung for rung in rungs if rung.settings]
    bf16 = ("mixed_precision", _becomes("no", "bf16"))
    checkpointing = ("gradient_checkpointing", _becomes(False, True))
    accumulation = ("gradient_accumulation_steps", _grows_from_1)
    processes = ("num_processes", _grows_from_1)
    sharding = ("fsdp", _becomes(False, True))
    compiling = ("torch_compile", _becomes(False, True))
    saved_by_bf16 = _unless(_few_activations, _saves(SAVED_BY_BF16))
    saved_by_checkpointing = _unless(_compiled, _unless(_mostly_weights, _saves(SAVED_BY_CHECKPOINTING)))
    found = [
        *_each(known, "bf16 saves memory", bf16, saved_by_bf16),
        *_each(known, "checkpointing saves memory", checkpointing, saved_by_checkpointing),
        *_each(known, "checkpointing costs little time", checkpointing, _unless(_compiled, _costs)),
        *_each(known, "accumulation equals the big batch", accumulation, _unless(_random, _equals)),
        *_each(known, "compiled code follows eager", compiling, _unless(_random, _follows_eager)),
    ]
    if any(rung.settings.get("num_processes", 1) > 1 for rung in known):
        found += _each(known, "several processes equal one", processes, _unless(_random, _equals))
        found += _each(known, "sharding divides what it shards", sharding, _divides)
        found += _each(known, "sharded training equals replicas", sharding, _unless(_random, _equals))
    for precision in ("bf16", "fp16"):
        found += _each(known, f"{precision} follows fp32", ("mixed_precision", _becomes("no", precision)), _agrees)
    compiled = [rung for rung in known if rung.settings.get("torch_compile")]
    return [*found, *(_fixed_shapes(rung) for rung in compiled), *(_active(rung) for rung in rungs)]


def _becomes(before: Any, after: Any) -> Accept:
    return lambda *values: values == (before, after)


def _grows_from_1(before: Any, after: Any) -> bool:
    return before == 1 and after > 1


def _each(rungs: list[RungResult], claim: str, change: tuple[str, Accept], decide: Decide) -> list[Check]:
    """The check for every pair of rungs that differ in this setting alone, in this way."""
    setting, accept = change
    compared = list(pairs(rungs, setting, accept))
    if not compared:
        return [Check(claim, (), "SKIP", f"no two rungs differ in {setting} alone in the way that this asks for", "")]
    return [_decided(claim, before, after, decide) for before, after in compared]


def _decided(claim: str, before: RungResult, after: RungResult, decide: Decide) -> Check:
    names = (before.name, after.name)
    for rung in (before, after):
        if not rung.ok:
            return Check(claim, names, "SKIP", f"{rung.name}: {rung.status}", "")
    verdict, measured, bound = decide(before, after)
    return Check(claim, names, verdict, measured, bound)


def _unless(not_asked: Callable[[RungResult], str], decide: Decide) -> Decide:
    """`decide`, skipped with its figure where the first rung gives a reason why the claim is not about it."""

    def decide_if_asked(before: RungResult, after: RungResult) -> tuple[str, str, str]:
        verdict, measured, bound = decide(before, after)
        why = not_asked(before)
        if why and verdict != "SKIP":
            return "SKIP", f"{measured}; not asked, since {why}", bound
        return verdict, measured, bound

    return decide_if_asked


def _few_activations(rung: RungResult) -> str:
    """bf16's claim is about a peak that is mostly activations."""
    others = rung.settings["gradient_accumulation_steps"] > 1 or rung.settings["gradient_checkpointing"]
    return "accumulation or checkpointing has left few activations" if others else _mostly_weights(rung)


def _mostly_weights(rung: RungResult) -> str:
    """What acts on activations can save no more than there are."""
    if rung.peak is None or rung.memory("activations_mib") >= 0.5 * rung.peak:
        return ""
    return "most of the peak is parameters, gradients and optimizer state"


def _compiled(rung: RungResult) -> str:
    """Checkpointing's claims are about eager mode: a compiler chooses by itself what to recompute."""
    return "the compiler recomputes, too" if rung.settings["torch_compile"] else ""


def _random(rung: RungResult) -> str:
    drops = rung.rounds[0]["evidence"].get("dropout")
    return "dropout draws other numbers for other micro-batches" if drops else ""


def _saves(share: float) -> Decide:
    def decide(before: RungResult, after: RungResult) -> tuple[str, str, str]:
        bound = f"at least {share:.0%} less"
        if before.peak is None or after.peak is None:
            return "SKIP", "peak memory was not measured", bound
        saved = 1 - after.peak / before.peak
        text = f"{before.peak:,.1f} to {after.peak:,.1f} MiB, {saved:.1%} less"
        return _verdict(saved >= share), text, bound

    return decide


def _costs(before: RungResult, after: RungResult) -> tuple[str, str, str]:
    """Decided where the step is told apart from the longest that is allowed, as two rungs' steps are."""
    bound = f"at most {COST_OF_CHECKPOINTING:.0%} more"
    if before.step_ms is None or after.step_ms is None:
        return "SKIP", "too few timed steps for a speed", bound
    cost = after.step_ms.median / before.step_ms.median - 1
    text = f"{before.step_ms.median:,.0f} to {after.step_ms.median:,.0f} ms a step, {cost:+.1%}"
    if why := after.step_ms.undecided(before.step_ms * (1 + COST_OF_CHECKPOINTING)):
        spreads = " to ".join(f"{step.low:,.0f}–{step.high:,.0f}" for step in (before.step_ms, after.step_ms))
        return "SKIP", f"{text} ({spreads}); not decided at this bound: {why}", bound
    return _verdict(cost <= COST_OF_CHECKPOINTING), text, bound


def _divides(before: RungResult, after: RungResult) -> tuple[str, str, str]:
    """What FSDP2 shards, per process. Nothing is asked of the peak, in which gathered parameters come and go."""
    processes = after.settings["num_processes"]
    bound = f"1/{processes} within {SHARDED:.0%}"
    if before.peak is None or after.peak is None:
        return "SKIP", "peak memory was not measured", bound
    sizes = {o: (before.memory(f"{o}_mib"), after.memory(f"{o}_mib")) for o in OWNERS[:3]}
    text = ", ".join(f"{owner.replace('_', ' ')} {a:,.1f} to {b:,.1f} MiB" for owner, (a, b) in sizes.items())
    return _verdict(all(abs(b * processes / a - 1) <= SHARDED for a, b in sizes.values())), text, bound


def _agrees(before: RungResult, after: RungResult) -> tuple[str, str, str]:
    return _agree(before, after, STEP_1[after.settings["mixed_precision"]], ALL_STEPS)


def _equals(before: RungResult, after: RungResult) -> tuple[str, str, str]:
    return _agree(before, after, STEP_1_ACCUMULATED[after.precision], ALL_STEPS_ACCUMULATED)


def _follows_eager(before: RungResult, after: RungResult) -> tuple[str, str, str]:
    return _agree(before, after, STEP_1_COMPILED[after.precision], ALL_STEPS_COMPILED)


def _agree(before: RungResult, after: RungResult, step_1: float, all_steps: float) -> tuple[str, str, str]:
    first, average = distances(before, after)
    bound = f"step 1 within {step_1:.1e}, on average within {all_steps:.0%}"
    updates = min(len(before.updates), len(after.updates))
    text = f"losses differ by {first:.1e} at step 1, by {average:.2%} on average over {updates} updates"
    skipped = before.skipped_steps + after.skipped_steps
    text += f" ({skipped} steps skipped)" if skipped else ""
    return _verdict(first <= step_1 and average <= all_steps), text, bound


def _fixed_shapes(rung: RungResult) -> Check:
    """Rows are blocks of one size, so nothing may compile twice. Kinds of blocks may share the code of a region."""
    claim, bound = "nothing is compiled twice", "0 recompiles"
    count = rung.rounds[0]["compile"].get("recompiles")
    if not rung.ok or count is None:
        return Check(claim, (rung.name,), "SKIP", f"{rung.status}: {rung.reason}", bound)
    text = "; ".join([f"{count} recompiles", *rung.rounds[0]["compile"]["recompile_reasons"]])
    if count and rung.settings["torch_compile_scope"] == "regional":
        return Check(claim, (rung.name,), "SKIP", f"{text}; not asked, since kinds of blocks may differ", bound)
    return Check(claim, (rung.name,), _verdict(count == 0), text, bound)


def _active(rung: RungResult) -> Check:
    """A run that is `ok` has proved its techniques; what it saw is held against what was asked for once more."""
    claim, bound = "every technique was active", "as asked for"
    if not rung.ok:
        return Check(claim, (rung.name,), "SKIP", f"{rung.status}: {rung.reason}", bound)
    wrong = []
    for result in rung.rounds:
        asked, seen = result["settings"], result["evidence"]
        dtype = COMPUTE_DTYPES[rung.precision]
        parameters = asked.get("dtype", "float32")
        expected = {
            "compute_dtype": seen.get("compute_dtype") == dtype,
            "parameter_dtype": seen.get("parameter_dtype", parameters) == parameters,
            "gradient_scaler": seen.get("gradient_scaler") == (dtype == "float16"),
            "recomputed_blocks": (seen.get("recomputed_blocks", 0) > 0) == asked["gradient_checkpointing"],
            "compiled_graphs": (seen.get("compiled_graphs", 0) > 0) == asked["torch_compile"],
            "processes": seen.get("processes") == asked["num_processes"],
        }
        wrong += [f"{name}: {seen.get(name)}" for name, right in expected.items() if not right]
    seen = rung.rounds[0]["evidence"]
    words = [seen["compute_dtype"]] if not wrong else []
    words += ["pure"] * (rung.settings.get("dtype", "float32") != "float32")
    words += ["scaler"] * bool(seen.get("gradient_scaler"))
    words += [f"blocks recomputed: {seen['recomputed_blocks']}"] * bool(seen.get("recomputed_blocks"))
    words += [f"graphs compiled: {seen['compiled_graphs']}"] * bool(seen.get("compiled_graphs"))
    return Check(claim, (rung.name,), _verdict(not wrong), "; ".join(wrong or words), bound)


def _verdict(passed: bool) -> str:
    return "PASS" if passed else "FAIL"
