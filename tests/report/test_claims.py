"""Each check at its bound, just beyond it, and where it cannot be decided."""

from rungwise.report import checks
from rungwise.report.checks import run_checks
from rungwise.report.claims import (
    ALL_STEPS,
    ALL_STEPS_COMPILED,
    EVIDENCE,
    PAIR_CLAIMS,
    STEP_1,
    STEP_1_ACCUMULATED,
    STEP_1_COMPILED,
    PairClaim,
    becomes,
)
from rungwise.report.measures import Finding
from rungwise.settings.fields import FIELDS, OWN

import pytest
import torch
from results import BASE, forecast_beside, result, rung


def verdicts(*rungs, claim):
    return [(check.rungs, check.verdict) for check in run_checks(list(rungs)) if check.claim == claim]


def only(*rungs, claim):
    [(_, verdict)] = verdicts(*rungs, claim=claim)
    return verdict


@pytest.mark.parametrize("peak, verdict", [(700.0, "PASS"), (700.1, "FAIL"), (100.0, "PASS"), (1500.0, "FAIL")])
def test_saved_memory(peak, verdict):
    fp32 = rung("fp32")
    assert only(fp32, rung("bf16", peak=peak, mixed_precision="bf16"), claim="bf16 saves memory") == verdict
    assert (
        only(fp32, rung("ckpt", peak=peak, gradient_checkpointing=True), claim="checkpointing saves memory") == verdict
    )


@pytest.mark.parametrize("spread", [0.0, 5.0])
@pytest.mark.parametrize(
    "step_ms, apart, close", [(174.9, "PASS", "SKIP"), (175.1, "FAIL", "SKIP"), (50.0, *2 * ["PASS"])]
)
def test_cost_of_checkpointing(step_ms, apart, close, spread):
    """At its bound, where the spreads do not reach over it."""
    checkpointed = rung("ckpt", step_ms=step_ms, spread=spread, gradient_checkpointing=True)
    verdict = only(rung("fp32", spread=spread), checkpointed, claim="checkpointing costs little time")
    assert verdict == (close if spread else apart)


def test_times_of_a_busy_machine_decide_nothing():
    """As once measured beside other work: +302%, and a failed claim."""
    rungs = [rung("a"), rung("b", gradient_checkpointing=True), rung("c", step_ms=5000.0, gradient_checkpointing=True)]
    rungs[0].rounds[0]["throughput"] |= {"step_ms_median": 1263.0, "step_ms_p10": 581.0, "step_ms_p90": 3645.0}
    rungs[1].rounds[0]["throughput"] |= {"step_ms_median": 5087.0, "step_ms_p10": 997.0, "step_ms_p90": 8001.0}
    found = [check for check in run_checks(rungs) if check.claim == "checkpointing costs little time"]
    assert [check.verdict for check in found] == ["SKIP", "SKIP"]
    assert "+302.8% (581–3,645 to 997–8,001); not decided" in found[0].measured
    assert "a rung was disturbed (p90 is 6.3 times p10)" in found[1].measured


def test_the_bounds_of_half_precision_are_two_units_of_rounding():
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        assert STEP_1[precision] == 2 * torch.finfo(dtype).eps / 2
    assert STEP_1_ACCUMULATED["no"] == 16 * torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_follows_at_step_1_and_on_average(precision):
    claim, bound = f"{precision} follows fp32", STEP_1[precision]
    fp32 = rung("fp32", losses=[4.0, 4.0])

    def of(first, second):
        return only(
            fp32, rung("half", losses=[4 * (1 + first), 4 * (1 + second)], mixed_precision=precision), claim=claim
        )

    assert of(0.99 * bound, 0) == "PASS"
    assert of(1.01 * bound, 0) == "FAIL"
    assert of(0, 1.99 * ALL_STEPS) == "PASS"
    assert of(0, 2.01 * ALL_STEPS) == "FAIL"
    assert of(-1.01 * bound, 0) == "FAIL"


def test_skipped_steps_are_left_out_of_the_comparison():
    """fp16 skipped its second step: its third is the second update, as fp32's second is."""
    fp16 = result(losses=[4.0, 3.9, 3.0, 2.0], mixed_precision="fp16")
    fp16["loss"]["updates"] = [4.0, 3.0, 2.0]
    fp16["amp"] = {"loss_scale": 2.0, "skipped_steps": 1}
    checks = run_checks([rung("fp32", losses=[4.0, 3.0, 2.0, 1.0]), rung("fp16", fp16)])
    [check] = [check for check in checks if check.claim == "fp16 follows fp32"]
    assert check.verdict == "PASS" and "over 3 updates (1 steps skipped)" in check.measured


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accumulation_is_held_to_its_dtype(precision):
    claim, bound = "accumulation equals the big batch", STEP_1_ACCUMULATED[precision]
    big = rung("1", losses=[4.0, 4.0], mixed_precision=precision)

    def of(first):
        split = rung("4", losses=[4 * (1 + first), 4.0], mixed_precision=precision, gradient_accumulation_steps=4)
        return only(big, split, claim=claim)

    assert of(0.99 * bound) == "PASS"
    assert of(1.01 * bound) == "FAIL"


def test_a_first_step_that_fp16_skipped_is_still_step_1():
    fp16 = result(losses=[4.0, 3.4, 2.9], mixed_precision="fp16")
    fp16["loss"]["updates"] = [3.4, 2.9]
    assert only(rung("fp32", losses=[4.0, 3.3, 2.8]), rung("fp16", fp16), claim="fp16 follows fp32") == "FAIL"
    fp16["loss"]["updates"] = [4.0, 3.3]
    assert only(rung("fp32", losses=[4.0, 3.3, 2.8]), rung("fp16", fp16), claim="fp16 follows fp32") == "PASS"


def test_claims_are_not_asked_where_they_are_not_made():
    """With few activations left bf16 cannot save 30%; a compiler recomputes by itself; dropout is random."""
    others = {"gradient_accumulation_steps": 4, "torch_compile": True}
    before, after = rung("a", **others), rung("b", peak=900.0, mixed_precision="bf16", **others)
    [check] = [check for check in run_checks([before, after]) if check.claim == "bf16 saves memory"]
    assert check.verdict == "SKIP" and "10.0% less; not asked, since accumulation" in check.measured
    checkpointed = rung("c", peak=900.0, step_ms=500.0, gradient_checkpointing=True, **others)
    for claim in ("checkpointing saves memory", "checkpointing costs little time"):
        assert only(before, checkpointed, claim=claim) == "SKIP"
    dropping, split = rung("a"), rung("b", losses=[4.4, 3.0, 2.0], gradient_accumulation_steps=4)
    assert only(dropping, split, claim="accumulation equals the big batch") == "FAIL"
    dropping.rounds[0]["evidence"]["dropout"] = True
    assert only(dropping, split, claim="accumulation equals the big batch") == "SKIP"


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_compiled_code_is_held_to_its_dtype(precision):
    claim, bound = "compiled code follows eager", STEP_1_COMPILED[precision]
    eager = rung("eager", losses=[4.0, 4.0], mixed_precision=precision)

    def of(first, second=0.0, **settings):
        losses = [4 * (1 + first), 4 * (1 + second)]
        made = rung("compiled", losses=losses, mixed_precision=precision, torch_compile=True, **settings)
        return only(eager, made, claim=claim)

    assert of(0.99 * bound) == "PASS"
    assert of(1.01 * bound) == "FAIL"
    assert of(0, 2.1 * ALL_STEPS_COMPILED) == "FAIL"
    # How it was compiled belongs to compiling; another batch does not.
    assert of(0, torch_compile_scope="regional", torch_compile_mode="max-autotune") == "PASS"
    assert of(0, gradient_accumulation_steps=4) == "SKIP"
    eager.rounds[0]["evidence"]["dropout"] = True
    assert of(0) == "SKIP"


@pytest.mark.parametrize(
    "size, verdict", [(50.0, "PASS"), (52.4, "PASS"), (52.6, "FAIL"), (100.0, "FAIL"), (40.0, "FAIL")]
)
def test_sharding_divides_what_it_shards(size, verdict):
    replicas, shards = result(num_processes=2), result(num_processes=2, fsdp=True)
    for made in (replicas, shards):
        made["evidence"]["processes"] = 2
    shards["memory"] |= {"parameters_mib": 50.0, "gradients_mib": size, "optimizer_state_mib": 100.0}
    one, two, sharded = rung("one"), rung("ddp", replicas), rung("fsdp2", shards)
    assert verdicts(one, two, sharded, claim="sharding divides what it shards") == [(("ddp", "fsdp2"), verdict)]
    assert verdicts(one, two, sharded, claim="sharded training equals replicas") == [(("ddp", "fsdp2"), "PASS")]
    assert verdicts(one, two, sharded, claim="several processes equal one") == [(("one", "ddp"), "PASS")]


def test_nothing_may_be_compiled_twice():
    claim = "nothing is compiled twice"
    once, twice = result(torch_compile=True), result(torch_compile=True)
    twice["compile"] |= {"recompiles": 1, "recompile_reasons": ["tensor 'x' size mismatch"]}
    assert only(rung("c", once), claim=claim) == "PASS"
    assert only(rung("c", twice), claim=claim) == "FAIL"
    twice["settings"]["torch_compile_scope"] = "regional"
    assert only(rung("c", twice), claim=claim) == "SKIP"
    assert verdicts(rung("eager"), claim=claim) == []


PEAK_SAVINGS = {
    "bf16 saves what was forecast": {"mixed_precision": "bf16"},
    "checkpointing saves what was forecast": {"gradient_checkpointing": True},
    "fused activations save what was forecast": {"fused_activation": True},
    "the chunked loss saves what was forecast": {"linear_cross_entropy": True},
}


@pytest.mark.parametrize("claim", PEAK_SAVINGS)
@pytest.mark.parametrize("saved, verdict", [(0.1, "PASS"), (0.109, "PASS"), (0.111, "FAIL"), (0.089, "FAIL")])
def test_a_saving_is_held_against_the_forecast_of_that_very_model(claim, saved, verdict):
    """Within a point, however much it is: 10% were forecast, of a peak that is itself forecast 5% too high."""
    before = rung("before", forecast=1050.0, model_type="llama")
    after = rung("after", peak=1000.0 * (1 - saved), forecast=945.0, model_type="llama", **PEAK_SAVINGS[claim])
    [check] = [check for check in run_checks([before, after]) if check.claim == claim]
    assert (check.rungs, check.verdict, check.bound) == (
        ("before", "after"),
        verdict,
        "within 1 point of the forecast",
    )
    assert check.measured == f"1,000.0 to {1000 * (1 - saved):,.1f} MiB, {saved:.2%} less; forecast 10.00%"


@pytest.mark.parametrize("optim", ["adamw_torch_8bit", "adafactor"])
@pytest.mark.parametrize("left, verdict", [(120.0, "PASS"), (121.9, "PASS"), (122.1, "FAIL"), (117.9, "FAIL")])
def test_so_is_an_optimizers_state(optim, left, verdict):
    """Of 200 MiB 120 were forecast to be left, as of many small tensors: no fixed bound is asked of that."""
    before = rung("before", forecast=1000.0, config_name="a-model")
    after = rung("after", forecast=1000.0, config_name="a-model", optim=optim)
    after.rounds[0]["memory"]["optimizer_state_mib"] = left
    after.rounds[0]["forecast"]["optimizer_state_mib"] = 120.0
    name = {"adamw_torch_8bit": "8-bit AdamW", "adafactor": "adafactor"}[optim]
    found = {check.claim: check.verdict for check in run_checks([before, after]) if check.claim.startswith(name)}
    kept = {
        "adamw_torch_8bit": "8-bit AdamW keeps a quarter of the state",
        "adafactor": "adafactor keeps little state",
    }
    assert found[f"{name}'s state is what was forecast"] == verdict
    assert found[kept[optim]] == "SKIP"


def test_a_small_model_with_a_large_vocabulary_fails_no_claim_that_was_never_about_it():
    """Its peak is logits, of which bf16 keeps an fp32 copy: 2% were saved, and 2% were forecast."""
    changes = {"config_overrides": "vocab_size=50000"}
    rungs = [
        rung("fp32", forecast=1000.5, **changes),
        rung("bf16", peak=980.0, forecast=980.5, mixed_precision="bf16", **changes),
        rung("ckpt", peak=990.0, forecast=990.5, gradient_checkpointing=True, **changes),
    ]
    found = {check.claim: check for check in run_checks(rungs) if "memory" in check.claim or "forecast" in check.claim}
    for name in ("bf16", "checkpointing"):
        lesson = found[f"{name} saves memory"]
        assert lesson.verdict == "SKIP"
        assert lesson.measured.endswith("not asked, since the bound is that of the default model")
        assert found[f"{name} saves what was forecast"].verdict == "PASS"


@pytest.mark.parametrize(
    "before, after, why",
    [
        (result(), result(forecast=600.0), "a has no forecast: its result is older than forecasts"),
        (result(forecast=600.0), result(), "b has no forecast: its result is older than forecasts"),
        (
            result(forecast=600.0),
            {**result(), "forecast": {"peak_allocated_mib": None, "reason": "it asks"}},
            "b has no forecast: it asks",
        ),
        (
            {**result(), "forecast": forecast_beside(BASE["memory"], 600.0, "this run on a CPU")},
            result(forecast=600.0),
            "the forecast of a is of this run on a CPU",
        ),
        (
            {**result(torch_compile=True), "forecast": forecast_beside(BASE["memory"], 600.0, "the eager run")},
            {**result(torch_compile=True), "forecast": forecast_beside(BASE["memory"], 600.0, "the eager run")},
            "the forecast of a is of the eager run",
        ),
    ],
)
def test_without_a_forecast_of_the_run_a_saving_is_not_decided_and_says_why(before, after, why):
    after["settings"] |= {"mixed_precision": "bf16", "precision": "bf16"}
    found = [check for check in run_checks([rung("a", before), rung("b", after)]) if check.claim in PEAK_SAVINGS]
    assert [(check.verdict, check.measured) for check in found if check.rungs] == [("SKIP", why)]


def test_a_saving_that_was_not_measured_is_not_decided():
    unmeasured = result(forecast=600.0, mixed_precision="bf16")
    unmeasured["memory"]["peak_allocated_mib"] = None
    assert only(rung("a", forecast=1000.0), rung("b", unmeasured), claim="bf16 saves what was forecast") == "SKIP"


LESSONS = {
    "bf16 saves memory": {"mixed_precision": "bf16"},
    "checkpointing saves memory": {"gradient_checkpointing": True},
    "fused activations save memory": {"fused_activation": True},
    "8-bit AdamW keeps a quarter of the state": {"optim": "adamw_torch_8bit"},
    "adafactor keeps little state": {"optim": "adafactor"},
}


def held(claim, origins=None, evidence=None, **changes):
    """What a fixed bound says of a technique that saves nothing, on a ladder of such settings."""
    rungs = [rung("before", **changes), rung("after", **changes, **LESSONS[claim])]
    for one in rungs:
        one.rounds[0]["origins"] = origins or {}
        one.rounds[0]["evidence"] |= evidence or {}
    [check] = [check for check in run_checks(rungs) if check.claim == claim]
    return check


@pytest.mark.parametrize("claim", LESSONS)
def test_fixed_bounds_are_the_default_models_alone(claim):
    assert held(claim).verdict == held(claim, block_size=256, global_batch_size=64).verdict == "FAIL"
    for name in ("model_name_or_path", "config_name", "model_type", "config_overrides"):
        check = held(claim, **{name: "another"})
        assert check.verdict == "SKIP" and "the bound is that of the default model" in check.measured
    assert held(claim, origins={"model_type": OWN}).verdict == "SKIP"
    assert held(claim, evidence={"trained_parameters": 0.02}).verdict == "SKIP"
    assert held(claim, evidence={"trained_parameters": 1.0}).verdict == "FAIL"


def test_bf16s_bound_is_that_of_the_default_batch():
    """Of four rows it saves 28%, since there are more weights among their memory."""
    claim = "bf16 saves memory"
    check = held(claim, block_size=256, global_batch_size=4)
    assert check.verdict == "SKIP" and "the default batch, which has more tokens" in check.measured
    assert held(claim, block_size=128, global_batch_size=16).verdict == "SKIP"
    assert held(claim, block_size=128, global_batch_size=32).verdict == "FAIL"
    assert held(claim, block_size=128, global_batch_size=32, num_processes=2).verdict == "SKIP"


def test_bf16_has_little_to_halve_where_activations_are_fused():
    """29.1% of the default model's peak, as its forecast says, too."""
    fused = {"fused_activation": True}
    before = rung("a", peak=1000.0, forecast=1000.0, **fused)
    after = rung("b", peak=709.0, forecast=709.2, mixed_precision="bf16", **fused)
    assert only(before, after, claim="bf16 saves memory") == "SKIP"
    assert only(before, after, claim="bf16 saves what was forecast") == "PASS"


def test_a_peak_of_weights_is_not_asked_to_fall():
    """A large model on few rows: neither bf16 nor checkpointing acts on what most of its memory is."""
    small = rung("fp32", peak=700.0)
    for changes, claim in (
        ({"mixed_precision": "bf16"}, "bf16 saves memory"),
        ({"gradient_checkpointing": True}, "checkpointing saves memory"),
    ):
        assert only(small, rung("after", peak=690.0, **changes), claim=claim) == "SKIP"
        assert only(rung("fp32", peak=801.0), rung("after", peak=790.0, **changes), claim=claim) == "FAIL"


def test_a_loss_of_zero_is_a_number():
    assert (
        only(
            rung("a", losses=[4.0, 0.0]),
            rung("b", losses=[4.0, 0.0], mixed_precision="bf16"),
            claim="bf16 follows fp32",
        )
        == "PASS"
    )


def test_fp32_accumulation_is_not_given_the_lessons_five_percent():
    assert STEP_1_ACCUMULATED["no"] < 1e-6


def test_pairs_differ_in_one_thing_alone():
    rungs = [
        rung("fp32"),
        rung("bf16", peak=600.0, mixed_precision="bf16"),
        rung("bf16-accum", peak=900.0, mixed_precision="bf16", gradient_accumulation_steps=4, micro_batch_size=4),
        rung(
            "bf16-accum-ckpt",
            peak=300.0,
            mixed_precision="bf16",
            gradient_accumulation_steps=4,
            gradient_checkpointing=True,
        ),
    ]
    assert verdicts(*rungs, claim="bf16 saves memory") == [(("fp32", "bf16"), "PASS")]
    assert verdicts(*rungs, claim="checkpointing saves memory") == [(("bf16-accum", "bf16-accum-ckpt"), "PASS")]
    assert verdicts(*rungs, claim="accumulation equals the big batch") == [(("bf16", "bf16-accum"), "PASS")]
    # Another seed, and nothing can be compared.
    assert only(rungs[0], rung("bf16", mixed_precision="bf16", seed=1), claim="bf16 saves memory") == "SKIP"


def test_what_cannot_be_decided_says_why():
    broken = rung("bf16", status="out_of_memory", reason="too large", mixed_precision="bf16")
    checks = {check.claim: check for check in run_checks([rung("fp32"), broken]) if check.rungs != ("fp32",)}
    assert checks["bf16 saves memory"].verdict == "SKIP"
    assert checks["bf16 saves memory"].measured == "bf16: out_of_memory"
    assert checks["every technique was active"].measured == "out_of_memory: too large"
    assert "no two rungs differ in gradient_checkpointing alone" in checks["checkpointing saves memory"].measured
    few = result(gradient_checkpointing=True)
    few["throughput"] |= dict.fromkeys(("tokens_per_second", "step_ms_median", "step_ms_p10", "step_ms_p90"))
    assert only(rung("fp32"), rung("ckpt", few), claim="checkpointing costs little time") == "SKIP"


@pytest.mark.parametrize(
    "settings, lie",
    [
        ({"mixed_precision": "bf16"}, {"compute_dtype": "float32"}),
        ({"mixed_precision": "fp16"}, {"gradient_scaler": False}),
        ({"dtype": "bfloat16"}, {"compute_dtype": "float32"}),
        ({"dtype": "bfloat16"}, {"parameter_dtype": "float32"}),
        ({"gradient_checkpointing": True}, {"recomputed_blocks": 0}),
        ({"torch_compile": True}, {"compiled_graphs": 0}),
        ({"fused_activation": True}, {"fused_activations": {}}),
        ({}, {"fused_activations": {"NewGELUActivation": 6}}),
        ({"linear_cross_entropy": True}, {"linear_cross_entropy": False}),
        ({"use_liger_kernel": True}, {"liger_kernels": {}}),
        ({"optim": "adamw_torch_8bit"}, {"optimizer": "adamw_torch"}),
        ({}, {"processes": 2}),
        ({}, {"recomputed_blocks": 4}),
    ],
)
def test_an_inactive_technique_fails(settings, lie):
    honest = rung("a", **settings)
    assert only(honest, claim="every technique was active") == "PASS"
    lying = result(**settings)
    lying["evidence"] |= lie
    assert only(rung("a", lying), claim="every technique was active") == "FAIL"
    # In any round.
    assert only(rung("a", result(**settings), lying), claim="every technique was active") == "FAIL"


def test_every_claim_is_about_what_settings_and_results_have():
    """A name that nothing has would never be asked, and so never fail."""
    assert {claim.setting for claim in PAIR_CLAIMS} <= FIELDS.keys()
    assert {part.name for part in EVIDENCE} <= BASE["evidence"].keys()


def test_a_new_techniques_claim_is_one_entry(monkeypatch):
    """Its pair, measure and bound are used, and its reason not to be asked; no other place knows of it."""

    def measure(before, after, bound):
        return Finding("PASS", f"{before.name} to {after.name}", f"bound {bound}")

    def not_asked(before):
        return "it is the first" if before.name == "c" else ""

    new = PairClaim("fused updates are free", "optim", becomes("adamw_torch", "sgd"), measure, 3, (not_asked,))
    monkeypatch.setattr(checks, "PAIR_CLAIMS", (new,))
    rungs = [rung(name, optim=optim) for name, optim in zip("abc", ("adamw_torch", "sgd", "adamw_torch"), strict=True)]
    found = [check for check in run_checks(rungs) if check.claim == new.name]
    assert [(check.rungs, check.verdict, check.bound) for check in found] == [
        (("a", "b"), "PASS", "bound 3"),
        (("c", "b"), "SKIP", "bound 3"),
    ]
    assert [check.measured for check in found] == ["a to b", "c to b; not asked, since it is the first"]


@pytest.mark.parametrize(
    "optim, claim, most",
    [
        ("adafactor", "adafactor keeps little state", 20.0),
        ("adamw_torch_8bit", "8-bit AdamW keeps a quarter of the state", 60.0),
    ],
)
@pytest.mark.parametrize("beyond, verdict", [(-0.1, "PASS"), (0.1, "FAIL"), (None, "SKIP")])
def test_a_smaller_state_is_held_against_adamws(optim, claim, most, beyond, verdict):
    adamw, other = rung("adamw", optim="adamw_torch"), rung("other", optim=optim)
    other.rounds[0]["memory"]["optimizer_state_mib"] = None if beyond is None else most + beyond
    [check] = [check for check in run_checks([adamw, other]) if check.claim == claim]
    assert (check.rungs, check.verdict) == (("adamw", "other"), verdict)
    assert not [check for check in run_checks([adamw]) if check.claim == claim]


def losses_at(first, later):
    """Three losses that lie these shares from 4, 3 and 2."""
    return [4.0 * (1 + first), 3.0 * (1 + later), 2.0 * (1 + later)]


FOLLOWERS = {
    "fused activations train the same": ({"fused_activation": True}, STEP_1_ACCUMULATED["no"], 0.01),
    "the chunked loss trains the same": ({"linear_cross_entropy": True}, STEP_1_ACCUMULATED["no"], 0.01),
    "8-bit AdamW follows AdamW": ({"optim": "adamw_torch_8bit"}, STEP_1_ACCUMULATED["no"], ALL_STEPS),
    "tf32 follows fp32": ({"tf32": True}, STEP_1["fp16"], ALL_STEPS),
}


@pytest.mark.parametrize("claim", FOLLOWERS)
def test_training_that_follows_is_held_at_step_1_and_on_average(claim):
    changes, first, average = FOLLOWERS[claim]

    def verdict(at_first, later):
        plain = rung("a", losses=[4.0, 3.0, 2.0])
        return only(plain, rung("b", losses=losses_at(at_first, later), **changes), claim=claim)

    # Of three losses the first hardly counts on average.
    assert verdict(0.9 * first, 1.4 * average) == "PASS"
    assert verdict(1.1 * first, 0.0) == "FAIL" and verdict(0.0, 1.6 * average) == "FAIL"


@pytest.mark.parametrize("peak, verdict", [(799.9, "PASS"), (800.1, "FAIL")])
def test_a_fused_activation_saves_a_fifth(peak, verdict):
    fused = rung("fused", peak=peak, fused_activation=True)
    assert only(rung("fp32"), fused, claim="fused activations save memory") == verdict
    compiled = (rung("c", torch_compile=True), rung("d", peak=peak, fused_activation=True, torch_compile=True))
    assert only(*compiled, claim="fused activations save memory") == "SKIP"
