"""What must come out, on results made by hand: each check passes at its bound and fails beyond."""

from rungwise.bench.checks import run_checks
from rungwise.bench.tables import page

import pytest
from laps import AMX, NO_AMX, bench, lap


def found(made, words, rung="fp32"):
    """The one check of a rung whose claim has these words."""
    [check] = [check for check in run_checks(made) if words in check.claim and check.rungs == (rung,)]
    return check


def test_all_pass_where_nothing_is_in_the_way():
    checks = run_checks(bench())
    assert len(checks) == 2 + 2 * 3 + 2
    assert {check.verdict for check in checks} == {"PASS"}


@pytest.mark.parametrize(
    ("other", "seconds", "verdict", "measured"),
    [
        ("the bare loop", [1.009] * 5, "PASS", "0.991 (0.991–0.991)"),
        ("the bare loop", [1.02] * 5, "FAIL", "0.980 (0.980–0.980)"),
        ("the bare loop", [1.03, 1.03, 1.03, 0.99, 0.99], "PASS", "0.971 (0.971–1.010), within the spread"),
        ("the bare loop", [1.0, 1.0, 1.0, 2.5, 2.5], "SKIP", "disturbed: of the rounds of ablate.py p90 is"),
        ("Trainer", [0.999] * 5, "PASS", "1.001 (1.001–1.001)"),
        ("Trainer", [1.005] * 5, "FAIL", "0.995 (0.995–0.995)"),
    ],
)
def test_speed_is_decided_within_its_spread(other, seconds, verdict, measured):
    check = found(bench(lap("ours", seconds)), f"in times those of {other}")
    assert check.verdict == verdict and measured in check.measured


@pytest.mark.parametrize(("peak", "verdict"), [(99.0, "PASS"), (100.04, "PASS"), (100.1, "FAIL")])
def test_never_more_memory_than_a_trainer(peak, verdict):
    assert found(bench(lap("ours", peak=peak)), "no more memory").verdict == verdict


@pytest.mark.parametrize(
    ("gflops", "fastest", "verdict"),
    [(NO_AMX, 0.90, "PASS"), (NO_AMX, 0.92, "FAIL"), (AMX, 0.58, "PASS"), (AMX, 0.6, "FAIL")],
)
def test_the_fastest_rung_is_asked_for_more_where_bf16_products_pay(gflops, fastest, verdict):
    check = found(bench(gflops=gflops, fastest=fastest), "by its defaults", "fastest")
    assert check.verdict == verdict
    assert ("do not pay" in check.bound) == (gflops is NO_AMX)


@pytest.mark.parametrize(("least", "verdict"), [(12.0, "PASS"), (12.1, "FAIL")])
def test_the_least_memory_is_a_share_of_the_defaults(least, verdict):
    check = found(bench(least=least), "least memory", "smallest")
    assert (check.verdict, check.measured) == (verdict, f"{least} of 100.0 MiB, {least}%")


@pytest.mark.parametrize(("loss", "verdict"), [(3.00002, "PASS"), (3.00004, "FAIL")])
def test_equal_training_has_equal_losses(loss, verdict):
    check = found(bench(lap("bare", loss=loss)), "loss of the bare loop")
    assert check.verdict == verdict and f"{loss:.6f}" in check.measured


def test_an_engine_without_figures_fails_what_is_asked_of_it():
    checks = run_checks(bench(lap("trainer", failed="exit code 1: out of memory")))
    failed = [check for check in checks if check.verdict == "FAIL"]
    assert len(failed) == 3
    assert {check.measured for check in failed} == {"Trainer: exit code 1: out of memory"}


def test_nothing_is_asked_of_a_bare_loop_that_lacks_a_technique():
    made = bench()
    made.rungs[-1].laps.pop("bare")
    checks = run_checks(made)
    assert len(checks) == 9 and {check.verdict for check in checks} == {"PASS"}
    assert "| fastest | 1,250 |  | 1.250 (1.250–1.250) | 100.0 |  | 100.0 |" in page(made)
