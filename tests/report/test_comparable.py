"""One rule for what must be equal before two speeds are compared, and who keeps to it: ladder, report, eager run."""

import json

from rungwise.environment import machine
from rungwise.errors import SettingsError
from rungwise.ladder import identity
from rungwise.ladder.ladder import Ladder
from rungwise.report.comparable import INCIDENTAL, differences, why_not_comparable
from rungwise.report.report import read_report, write_report
from rungwise.report.rung_result import RungResult
from rungwise.run.eager_run import compare

import pytest
from results import result, rung

HERE = machine()
MATTER = sorted(HERE.keys() - set(INCIDENTAL))


def elsewhere(name):
    return {**HERE, name: "another"}


def test_the_entries_that_matter_are_all_but_these():
    incidental = {"date", "git_commit", "threads_origin", "local_processes"}
    # A run adds them, where they were measured.
    rates = {"kernel_gflops", "matmul_gflops"}
    assert set(INCIDENTAL) == incidental | rates and incidental < HERE.keys()
    for name in ("torch", "device_name", "device_count", "threads", "cores", "float32_products", "sdpa_backends"):
        assert name in MATTER
    for name in incidental:
        assert differences(HERE, elsewhere(name)) == {}


def test_threads_are_compared_where_as_many_processes_share_the_cores():
    two = {**HERE, "local_processes": 2, "threads": HERE["threads"] + 1}
    assert differences(HERE, two) == {}
    assert differences({**two, "threads": 9}, two) == {"threads": (9, two["threads"])}


def test_what_an_older_result_does_not_say_is_not_taken_for_equal():
    older = {name: value for name, value in HERE.items() if name != "float32_products"}
    assert why_not_comparable(older, HERE) == "float32_products are not recorded there and ieee here"


@pytest.mark.parametrize("name", MATTER)
def test_speeds_of_two_environments_are_not_compared(name, tmp_path, monkeypatch):
    """Whatever it is that differs: not by an eager run that is named, not in a report, and no ladder goes on there."""
    slow, fast = result(), result(step_ms=50.0, torch_compile=True)
    slow["environment"], fast["environment"] = HERE, elsewhere(name)
    for made, folder in ((slow, "eager/round-1"), (fast, "compiled/round-1")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "result.json").write_text(json.dumps(made), encoding="utf-8")
    found = compare(fast, str(tmp_path / "eager/round-1"))
    assert found["steps"] is None and name in found["verdict"] and "another here" in found["verdict"]

    report = read_report(tmp_path)
    write_report(report, tmp_path)
    by_name = {row["rung"]: row for row in report.rows}
    assert by_name["compiled"]["speed_vs_first"] is by_name["eager"]["speed_vs_first"] is None
    assert report.compiled[0]["break_even_steps"] is None and name in report.compiled[0]["break_even"]
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Speeds are not compared: " in page and "another in " in page

    with Ladder("l", [], tmp_path / "l", "group"):
        pass
    monkeypatch.setattr(identity, "machine", lambda: elsewhere(name))
    with pytest.raises(SettingsError, match=f"{name}: it was .* and is now another"):
        Ladder("l", [], tmp_path / "l", "group").__enter__()


def test_rounds_of_two_environments_have_no_common_speed():
    rounds = [result(), result()]
    assert RungResult("a", rounds, []).step_ms is not None
    rounds[1]["environment"]["torch"] = "9"
    assert RungResult("a", rounds, []).step_ms is None


def test_in_one_environment_they_are_compared():
    slow, fast = rung("slow"), rung("fast", step_ms=50.0)
    assert slow.step_ms.undecided(fast.step_ms) is None
    elsewhere = rung("fast", step_ms=50.0)
    elsewhere.rounds[0]["environment"]["threads"] = 1
    assert slow.step_ms.undecided(elsewhere.step_ms) == "threads are 1 there and 2 here"
