"""Forecast against measured: what each place of a report shows of both, and what it says where there is none."""

import csv
import json

from rungwise.report.forecast_plot import forecast_bars
from rungwise.report.forecasts import forecast_rows, forecast_section, why_no_forecast, why_not_its_own
from rungwise.report.report import read_report, terminal_table, write_report
from rungwise.report.rung_result import OWNERS
from rungwise.report.style import OWNER_LOOKS
from rungwise.report.table import table
from rungwise.report.table_text import terminal_rows

import pytest
from matplotlib import image
from matplotlib.colors import to_rgba
from results import forecast_beside, result, rung

REASON = "llama cannot be traced: it asks"


def untraced():
    return {**result(), "forecast": {"peak_allocated_mib": None, "reason": REASON}}


def of_another(name, of, **changes):
    made = result(**changes)
    return rung(name, {**made, "forecast": forecast_beside(made["memory"], 1000.0, of)})


@pytest.fixture
def rungs():
    return [
        rung("fp32", peak=1000.0, forecast=999.0),
        of_another("compiled", "the eager run", peak=800.0, torch_compile=True),
        rung("large", status="out_of_memory", reason="too large", forecast=5000.0),
        rung("odd", untraced()),
        rung("old"),
        rung("broken", status="failed", reason="it broke"),
    ]


def test_a_row_has_both_figures_of_every_owner_and_how_far_they_are_apart(rungs):
    rows = {row["rung"]: row for row in forecast_rows(rungs)}
    assert list(rows) == ["fp32", "compiled", "large", "odd", "old", "broken"]
    fp32 = rows["fp32"]
    assert fp32["measured_mib"]["peak_allocated"] == 1000.0 and fp32["forecast_mib"]["peak_allocated"] == 999.0
    assert fp32["forecast_mib"]["activations"] == 599.0 and fp32["measured_mib"]["activations"] == 600.0
    assert sum(fp32["forecast_mib"][name] for name in OWNERS) == 999.0
    assert fp32["error_percent"]["peak_allocated"] == pytest.approx(-0.1)
    assert fp32["error_percent"]["activations"] == pytest.approx(-100 / 600)
    assert fp32["error_percent"]["optimizer_state"] == 0.0
    assert (fp32["of"], fp32["reason"]) == ("this run", None)
    assert rows["compiled"]["of"] == "the eager run"
    # What a run that ran out of memory had until then is not what it would have had.
    assert rows["large"]["forecast_mib"]["peak_allocated"] == 5000.0
    assert set(rows["large"]["measured_mib"].values()) == set(rows["large"]["error_percent"].values()) == {None}
    assert rows["odd"]["reason"] == REASON and rows["odd"]["measured_mib"]["peak_allocated"] == 1000.0
    assert rows["old"]["reason"] == "its result is older than forecasts"
    assert rows["broken"]["reason"] == "it ended as failed"


def test_the_round_that_is_shown_has_its_own_forecast():
    """Of several rounds the one with the largest peak; its error is that of the peak beside it."""
    several = rung("a", result(peak=990.0, forecast=980.0), result(peak=1000.0, forecast=1010.0), result(peak=995.0))
    assert (several.peak, several.forecast["peak_allocated_mib"]) == (1000.0, 1010.0)
    assert several.forecast["peak_allocated_error_percent"] == pytest.approx(1.0)
    # And where none was measured, the first.
    gone = rung("b", *(result(status="out_of_memory", forecast=size) for size in (5000.0, 6000.0)))
    for made in gone.rounds:
        made["memory"] = {}
    assert (gone.peak, gone.forecast["peak_allocated_mib"]) == (None, 5000.0)


def test_the_table_has_the_forecast_and_its_error(rungs):
    rows = table(rungs)
    columns = ("forecast_peak_mib", "forecast_error_percent", "forecast_of")
    assert [tuple(row[name] for name in columns) for row in rows[:4]] == [
        (999.0, pytest.approx(-0.1), "this run"),
        (1000.0, pytest.approx(25.0), "the eager run"),
        (5000.0, None, "this run"),
        (None, None, None),
    ]


def test_the_page_has_every_rung(rungs):
    lines = forecast_section(forecast_rows(rungs))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    owners = ["parameters", "gradients", "optimizer state", "buffers", "activations"]
    assert cells[0] == ["rung", "forecast of", "measured MiB", "forecast MiB", "error", *owners]
    assert cells[2] == ["fp32", "this run", "1,000.0", "999.0", "-0.10%", *4 * ["+0.00%"], "-0.17%"]
    assert cells[3][:5] == ["compiled", "the eager run", "800.0", "1,000.0", "+25.00%"]
    assert cells[4] == ["large", "this run", "out of memory", "5,000.0", *6 * [""]]
    assert len(cells) == 5
    assert f"- odd: no forecast, {REASON}" in lines
    assert "- old: no forecast, its result is older than forecasts" in lines
    assert forecast_section(forecast_rows([rung("old"), rung("older")])) == []


def test_the_terminal_has_forecasts_where_there_are_any_and_marks_those_of_another_run(rungs):
    lines = terminal_rows(table(rungs))
    assert lines[0].split()[:5] == ["rung", "status", "peak", "MiB", "forecast"]
    assert lines[1].split()[:4] == ["fp32", "ok", "1,000.0", "999.0"]
    assert lines[2].split()[:4] == ["compiled", "ok", "800.0", "1,000.0*"]
    assert lines[3].split() == ["large", "out_of_memory", "5,000.0"]
    assert lines[7:] == ["* the forecast is of the eager run"]
    assert "forecast" not in "".join(terminal_rows(table([rung("old")])))
    assert not [line for line in terminal_rows(table(rungs[:1])) if "*" in line]


def test_bars_are_as_long_as_the_figures(rungs):
    figure = forecast_bars(rungs)
    [axes] = figure.axes
    bars = list(axes.patches)
    # Measured and forecast of the first two; of the third the forecast; of two others what was measured.
    assert len(bars) == 7 * len(OWNERS)
    groups = [bars[n : n + len(OWNERS)] for n in range(0, len(bars), len(OWNERS))]
    sums = [sum(bar.get_width() for bar in group) for group in groups]
    assert sums == pytest.approx([1000.0, 999.0, 800.0, 1000.0, 5000.0, 1000.0, 1000.0])
    assert [bar.get_width() for bar in groups[1]] == pytest.approx([100.0, 100.0, 200.0, 0.0, 599.0])
    assert [bar.get_x() for bar in groups[1]] == pytest.approx([0.0, 100.0, 200.0, 400.0, 400.0])
    for measured, forecast in (groups[:2], groups[2:4]):
        assert measured[0].get_y() < forecast[0].get_y()
        # Told apart by their filling, and owners by their hatching.
        assert all(bar.get_facecolor() == to_rgba("white") for bar in forecast)
        assert not any(bar.get_facecolor() == to_rgba("white") for bar in measured)
        assert [bar.get_hatch() or "" for bar in measured] == [bar.get_hatch() or "" for bar in forecast]
    assert len(set(OWNER_LOOKS.values())) == len(OWNERS)
    words = [text.get_text() for text in axes.texts]
    assert "1,000.0 measured" in words and "999.0 forecast, -0.10%" in words
    assert "1,000.0 forecast of the eager run, +25.00%" in words
    assert "5,000.0 forecast" in words and "out of memory" in words and words.count("no forecast") == 3
    assert [label.get_text() for label in axes.get_yticklabels()] == [one.name for one in rungs]
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [owner.replace("_", " ") for owner in OWNERS]
    assert forecast_bars([rung("old"), rung("odd", untraced())]) is None


def test_a_ladders_report_has_it(rungs, tmp_path):
    for one in rungs:
        (tmp_path / one.name / "round-1").mkdir(parents=True)
        (tmp_path / one.name / "round-1" / "result.json").write_text(json.dumps(one.rounds[0]), encoding="utf-8")
    (tmp_path / "ladder.json").write_text(json.dumps({"order": [one.name for one in rungs]}), encoding="utf-8")
    report = read_report(tmp_path)
    write_report(report, tmp_path)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "\n".join(forecast_section(forecast_rows(rungs))) in page and "(forecast.png)" in page
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["forecasts"]
    assert found == forecast_rows(rungs)
    with (tmp_path / "ladder.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["forecast_peak_mib"] for row in rows] == ["999.0", "1000.0", "5000.0", "", "", ""]
    pixels = image.imread(tmp_path / "forecast.png")
    assert pixels.shape[1] == 1720 and 600 < pixels.shape[0] < 1600
    text = terminal_table(report)
    assert "the forecast is of the eager run" in text and max(map(len, text.splitlines())) <= 120


def test_a_rung_with_a_forecast_gives_no_reason():
    assert why_no_forecast(rung("a", forecast=1000.0)) == ""


def test_a_forecast_that_was_never_measured_on_its_device_is_held_against_nothing():
    note = "forecast, not measured on CUDA"
    noted = rung("bf16", peak=1000.0, forecast=500.0)
    assert why_not_its_own(noted) == ""
    for made in noted.rounds:
        made["forecast"]["note"] = note
    assert why_not_its_own(noted) == f"bf16: {note}"
    rows = forecast_rows([noted])
    assert rows[0]["note"] == note and f"- bf16: {note}" in forecast_section(rows)
    # Nor is its figure shown anywhere without these words.
    [row] = table([noted])
    assert row["forecast_note"] == note
    lines = terminal_rows([row])
    assert lines[1].split()[2:4] == ["1,000.0", "500.0*"] and lines[2] == f"* {note}"
    [axes] = forecast_bars([noted]).axes
    assert axes.texts[1].get_text() == "500.0 forecast*, -50.00%" and axes.get_xlabel().endswith(f"\n* {note}")
