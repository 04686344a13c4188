"""Ratios of speeds, with their spread over rounds."""

import json

from rungwise.bench.checks import Bench
from rungwise.bench.figures import Ratio

import pytest
from laps import bench, lap, rung


def test_a_speed_is_the_median_of_the_rounds_ratios():
    """Each round is compared with its own: a machine that slows down slows both."""
    found = rung(lap("ours", [1.0, 2.0, 1.1]), lap("bare", [1.1, 2.4, 1.1]), tokens=600)
    ratio = found.speed("ours", "bare")
    assert ratio.median == pytest.approx(1.1)
    # Of 1.0, 1.1, 1.2: a fifth of the way from the first to the second, and back from the last.
    assert (ratio.low, ratio.high) == (pytest.approx(1.02), pytest.approx(1.18))
    assert found.tokens_per_second("ours") == pytest.approx(600 / 1.1)
    assert str(Ratio(1.0, 0.985, 1.0152)) == "1.000 (0.985–1.015)"


@pytest.mark.parametrize(
    ("ours", "bare", "why"),
    [
        (lap("ours"), lap("bare"), None),
        (lap("ours", [1.0, 1.0, 3.0, 3.0, 3.0]), lap("bare"), "of the rounds of ablate.py p90 is 3.0 times p10"),
        (
            lap("ours"),
            lap("bare", [1.0, 1.0, 1.0, 1.0, 1.6]),
            "of the rounds of the bare loop the mean is 12% over the median",
        ),
        (lap("ours"), lap("bare", threads=1), "ablate.py has 2 threads, the bare loop 1"),
    ],
)
def test_a_disturbed_machine_is_said(ours, bare, why):
    assert rung(ours, bare).speed("ours", "bare").disturbed == why


def test_an_engine_that_failed_has_no_speed():
    found = rung(lap("bare", failed="it broke"))
    assert found.speed("ours", "bare") is None and found.tokens_per_second("bare") is None
    assert found.speed("ours", "trainer") == Ratio(1.0, 1.0, 1.0)


def test_what_is_written_is_what_is_read():
    made = bench(lap("trainer", failed="it broke"))
    content = json.loads(json.dumps(made.as_dict()))
    assert Bench.from_dict(content) == made
    assert {check["verdict"] for check in content["checks"]} == {"PASS", "FAIL"}
