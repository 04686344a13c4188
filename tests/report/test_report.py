"""The report from result files: table, changes, spreads, files and pictures."""

import csv
import json
import shutil
from pathlib import Path

from rungwise.errors import SettingsError
from rungwise.report import plots
from rungwise.report.captions import CAPTIONS
from rungwise.report.pages import ladder_section
from rungwise.report.report import Report, markdown, read_report, terminal_table, write_report
from rungwise.report.rung_result import load
from rungwise.report.table import COLUMNS, conditions, table
from rungwise.result_file import write_result

import figures
import pytest
from harness import ROOT
from matplotlib import image
from results import result, rung

# A default ladder of this repository, as `python recipes/ladder.py` left it.
COMMITTED = ROOT / "tests" / "stored" / "ladder"


def test_changes_against_the_first_and_the_rung_before():
    rows = table(
        [rung("a"), rung("b", peak=600.0, mixed_precision="bf16"), rung("c", peak=300.0, mixed_precision="bf16")]
    )
    assert [row["peak_vs_first"] for row in rows] == [None, pytest.approx(-0.4), pytest.approx(-0.7)]
    assert [row["peak_vs_before"] for row in rows] == [None, pytest.approx(-0.4), pytest.approx(-0.5)]
    assert [row["loss_vs_fp32"] for row in rows] == [None, 0.0, 0.0]


def test_losses_are_compared_with_fp32_and_not_with_pure_bf16():
    rows = table([rung("pure", dtype="bfloat16", losses=[4.0, 2.5]), rung("fp32", losses=[4.0, 2.0])])
    assert [row["loss_vs_fp32"] for row in rows] == [0.5, None]
    assert [row["loss_vs_fp32"] for row in table([rung("pure", dtype="bfloat16")])] == [None]


def test_two_speeds_differ_only_where_their_spreads_lie_apart():
    slow, close, fast = rung("slow"), rung("close", step_ms=91.0), rung("fast", step_ms=80.0)
    rows = table([slow, close, fast])
    assert rows[1]["speed_vs_first"] is None
    assert rows[2]["speed_vs_first"] == pytest.approx(0.25)
    # By the median: one slow step that the spread does not see must not turn the sign.
    stalled = rung("stalled", step_ms=80.0)
    stalled.rounds[0]["throughput"]["tokens_per_second"] = 500.0
    assert table([slow, stalled])[1]["speed_vs_first"] == pytest.approx(0.25)


def test_rounds_give_the_median_and_the_range():
    rounds = [result(step_ms=ms, spread=50.0) for ms in (100.0, 140.0, 110.0)]
    several = rung("several", *rounds)
    # Within rounds and between them: two rounds of the same speed must not look like two speeds.
    assert (several.step_ms.median, several.step_ms.low, several.step_ms.high) == (110.0, 50.0, 190.0)
    rounds[1] = result(status="failed", reason="it broke in round 2")
    broken = rung("broken", *rounds)
    assert (broken.status, broken.reason, broken.peak) == ("failed", "it broke in round 2", None)


def test_a_failed_rung_is_a_row_with_its_reason():
    bare = {
        "schema": 1,
        "name": "x",
        "status": "failed",
        "reason": "exit code 9 | killed",
        **{
            name: {}
            for name in (
                "settings",
                "origins",
                "environment",
                "evidence",
                "loss",
                "throughput",
                "memory",
                "compile",
                "amp",
            )
        },
    }
    rungs = [rung("a"), rung("x", bare)]
    [_, row] = table(rungs)
    assert row["status"] == "failed" and row["peak_mib"] is None and row["reason"] == "exit code 9 | killed"


def copy_of(tmp_path):
    return Path(shutil.copytree(COMMITTED, tmp_path / "ladder"))


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    folder = copy_of(tmp_path_factory.mktemp("reported"))
    report = read_report(folder)
    write_report(report, folder)
    return folder, report


def test_rungs_are_in_the_ladders_order(reported, tmp_path):
    _, report = reported
    names = ["fp32", "bf16", "fp16", "bf16-accum4", "bf16-accum4-ckpt", "bf16-accum4-ckpt-compile"]
    assert [rung.name for rung in report.rungs] == names
    # And without the ladder's own file, by date.
    alone = copy_of(tmp_path)
    (alone / "ladder.json").unlink()
    assert [rung.name for rung in load(alone)] == names


def test_the_claims_of_the_readme_hold_in_the_committed_results(reported):
    """What does not depend on the machine: memory saved, losses that agree, techniques that were active."""
    _, report = reported
    assert all(rung.status == "ok" for rung in report.rungs)
    undecided = {check.claim for check in report.checks if check.verdict != "PASS"}
    # A claim on times is not decided where somebody has disturbed them.
    disturbed = any(row["disturbed"] for row in report.rows)
    assert undecided <= ({"checkpointing costs little time"} if disturbed else set())
    peaks = {row["rung"]: row["peak_mib"] for row in report.rows}
    assert peaks["fp32"] == pytest.approx(838.14, rel=0.01)
    assert peaks["bf16"] == pytest.approx(534.14, rel=0.01)


def test_the_readme_shows_the_committed_results(reported):
    folder, _ = reported
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert ladder_section(folder, figures.SHORT) in readme


def test_the_files(reported):
    folder, report = reported
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert "torch 2.13.0" in page and "Studied: gradient_accumulation_steps" in page
    for picture in report.pictures:
        title, reading = CAPTIONS[picture.name]
        assert f"## {title}\n\n![{title}]({picture.name})\n\n{reading}\n" in page
    assert list(CAPTIONS) == list(plots.PICTURES)
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert [row["rung"] for row in content["rows"]] == [rung.name for rung in report.rungs]
    assert set(content["rows"][0]) == set(COLUMNS)
    with (folder / "ladder.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert float(rows[1]["peak_mib"]) == content["rows"][1]["peak_mib"]
    assert content["conditions"]["settings"]["global_batch_size"] == 16


def test_the_terminal_table_is_short_and_names_what_failed(reported):
    _, report = reported
    text = terminal_table(report)
    assert max(len(line) for line in text.splitlines()) <= 120
    heads = ["rung", "status", "peak", "MiB", "forecast", "step", "ms", "tokens/s", "loss"]
    assert text.splitlines()[0].split() == heads
    assert "0 FAIL" in text


def test_pictures_are_pictures(reported):
    _, report = reported
    assert [path.name for path in report.pictures] == [
        "ladder.png",
        "map.png",
        "forecast.png",
        "activations.png",
        "loss.png",
        "accumulation.png",
        "memory_timeline.png",
        "profile.png",
    ]
    for path in report.pictures:
        pixels = image.imread(path)
        assert pixels.shape[1] == 1720 and 700 < pixels.shape[0] < 1500
        assert 0.01 < (pixels[..., :3].mean(axis=2) < 0.9).mean() < 0.9  # neither empty nor full


def test_pictures_without_figures_are_not_drawn(tmp_path):
    (tmp_path / "accumulation.png").write_bytes(b"of an earlier report")
    broken = rung("x", status="failed", reason="it broke")
    broken.rounds[0]["loss"] = {}
    assert plots.draw([broken], tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_results(tmp_path):
    with pytest.raises(SettingsError, match=r"holds no <rung>/round-N/result.json"):
        read_report(tmp_path)


def test_conditions_tell_what_is_studied_from_what_is_fixed():
    found = conditions([rung("a"), rung("b", mixed_precision="bf16")])
    assert found["differs"] == ["mixed_precision"]
    assert found["settings"]["seed"] == 0 and "run_name" not in found["settings"]


STATUSES = {
    ("ok", "ok", "skipped"): False,
    ("ok",): False,
    ("ok", "skipped"): True,
    ("skipped", "ok", "skipped"): True,
    ("skipped", "skipped"): True,
    ("skipped",): True,
}


@pytest.mark.parametrize("statuses", STATUSES)
def test_a_ladder_whose_compared_rungs_were_all_skipped_says_so_and_fails(statuses):
    rungs = [
        rung(f"{n}", status=status, reason=None if status == "ok" else "not here") for n, status in enumerate(statuses)
    ]
    made = Report(rungs, table(rungs), [], [])
    assert made.failed == STATUSES[statuses] == (made.nothing_compared is not None)
    for words in (terminal_table(made), markdown(made, "a")):
        assert ("Nothing was compared" in words) == STATUSES[statuses]
    if made.failed:
        skipped = [f"{n}" for n, status in enumerate(statuses) if status == "skipped"]
        assert f"skipped: {', '.join(skipped)}; run the ladder where" in made.nothing_compared


def test_what_was_not_compared_stands_in_the_files(tmp_path):
    for name, status in (("a", "ok"), ("b", "skipped")):
        (tmp_path / name / "round-1").mkdir(parents=True)
        write_result(tmp_path / name / "round-1", result(status=status, reason=None if status == "ok" else "not here"))
    write_report(read_report(tmp_path), tmp_path)
    found = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["nothing_compared"]
    assert found.startswith("Nothing was compared: a alone ran to its end, skipped: b; ")
    assert f"**{found}.**" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_figure_whose_meter_failed_is_said_to_be_lost():
    lost = result()
    lost["not_measured"] = {"memory_timeline": "its meter failed (AttributeError: it has moved)"}
    rungs = [rung("a"), rung("b", lost)]
    report = Report(rungs, table(rungs), [], [])
    line = "b: memory timeline not measured: its meter failed (AttributeError: it has moved)"
    assert f"\n{line}\n" in terminal_table(report) and f"\n- {line}\n" in markdown(report, "l")
    assert "not measured" not in terminal_table(Report(rungs[:1], table(rungs[:1]), [], []))
