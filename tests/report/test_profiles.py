"""Where steps' time goes, in a report: shares that are those of the result files, in the page and in the picture."""

import itertools
import json

from rungwise.report.profile_plot import LOOKS, profile_bars
from rungwise.report.profiles import LABELS, profile_rows, profile_section
from rungwise.report.report import read_report, terminal_table, write_report

import pytest
from matplotlib import image
from results import result, rung

MS = {"products": 50.0, "attention": 20.0, "fused": 0.0, "loss": 10.0, "normalisation": 2.0, "activation": 4.0}
MS |= {"optimizer": 6.0, "data": 0.0, "rest": 8.0}
UNKNOWN = {"step_ms": None, "reason": "no untimed step was left"}


def profile(factor=1.0, **changes):
    spent = {**MS, **changes}
    return {f"{name}_ms": factor * ms for name, ms in {"step": sum(spent.values()), **spent}.items()}


def profiled(name, *profiles, **changes):
    return rung(name, *({**result(**changes), "profile": found} for found in profiles))


@pytest.fixture
def rungs():
    return [
        profiled("a", profile()),
        profiled("b", profile(0.5, fused=100.0)),
        profiled("c", UNKNOWN),
        # An older result does not say, and one that failed has no step to speak of.
        rung("old"),
        profiled("broken", profile(), status="failed", reason="it broke"),
    ]


def test_the_first_round_that_knows_is_shown():
    assert profiled("a", UNKNOWN, profile(2.0), profile()).profile == profile(2.0)
    assert profiled("a", UNKNOWN, UNKNOWN).profile == UNKNOWN
    assert rung("old").profile == {}


def test_the_page_has_the_shares_of_every_class_that_has_any(rungs):
    rows = profile_rows(rungs)
    assert [row["rung"] for row in rows] == ["a", "b", "c"]
    lines = profile_section(rows)
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    heads = [
        "products",
        "attention",
        "fused by the compiler",
        "loss",
        "normalisation",
        "activation",
        "optimizer",
        "rest",
    ]
    assert table[0] == ["rung", "profiled step ms", *heads]
    assert table[2] == ["a", "100", "50.0%", "20.0%", "", "10.0%", "2.0%", "4.0%", "6.0%", "8.0%"]
    assert table[3] == ["b", "100", "25.0%", "10.0%", "50.0%", "5.0%", "1.0%", "2.0%", "3.0%", "4.0%"]
    assert len(table) == 4 and "- c: not known, no untimed step was left" in lines
    assert profile_section(rows[2:]) == profile_section([]) == []


def test_bars_are_as_long_as_the_classes(rungs):
    [axes] = profile_bars(rungs).axes
    for y, one in enumerate(rungs[:2]):
        bars = [bar for bar in axes.patches if round(bar.get_y() + bar.get_height() / 2) == y]
        shown = [name for name in LABELS if name != "data"]
        assert [bar.get_width() for bar in bars] == [one.profile[f"{name}_ms"] for name in shown]
        starts = [bar.get_x() for bar in bars]
        assert starts == pytest.approx([sum(bar.get_width() for bar in bars[:n]) for n in range(len(bars))])
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(bars)
    words = [text.get_text() for text in axes.texts]
    assert words.count("50%") == 2 and words.count("100") == 2 and "2%" not in words
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert profile_bars(rungs[2:]) is None
    # Without colours: neighbours have other patterns.
    assert all(a != b for (_, a), (_, b) in itertools.pairwise(LOOKS.values()))


def test_a_ladders_report_has_it(rungs, tmp_path):
    for one in rungs:
        (tmp_path / one.name / "round-1").mkdir(parents=True)
        (tmp_path / one.name / "round-1" / "result.json").write_text(json.dumps(one.rounds[0]), encoding="utf-8")
    report = read_report(tmp_path)
    write_report(report, tmp_path)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert page.count("## Where a step's time goes") == 1
    assert "\n".join(profile_section(profile_rows(report.rungs))) in page and "(profile.png)" in page
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["profiles"]
    assert found == profile_rows(report.rungs) and len(found) == 3
    pixels = image.imread(tmp_path / "profile.png")
    assert pixels.shape[1] == 1720 and 400 < pixels.shape[0] < 1000
    assert "utilization" not in terminal_table(report)
