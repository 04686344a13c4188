"""Every place that shows a figure of a ladder shows what its result files say; made-up ones, counted independently."""

import csv
import io
import json
import statistics
from typing import Any

from rungwise.report import ladder_plot, loss_plot, plots, report, trade_off_plot
from rungwise.report.report import Report, markdown, read_report, terminal_table, write_report
from rungwise.report.rung_result import OWNERS, RungResult
from rungwise.report.table import COLUMNS, table
from rungwise.report.table_text import markdown_table

import pytest
from drawn import names
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from results import forecast_beside, result, rung

TIME = st.floats(1, 1e4)


@st.composite
def made_results(draw: st.DrawFn) -> dict[str, Any]:
    """One round's result: memory, a speed or none, losses, and an end."""
    low, median, high = sorted(draw(st.lists(TIME, min_size=3, max_size=3)))
    if draw(st.booleans()):  # As on a quiet machine.
        low, high = 0.95 * median, 1.05 * median
    made = result(losses=draw(st.lists(st.floats(0.1, 9), min_size=1, max_size=4)))
    sizes = {owner: draw(st.floats(0, 1000)) for owner in OWNERS}
    made["memory"] = {f"{owner}_mib": size for owner, size in sizes.items()}
    made["memory"]["peak_allocated_mib"] = sum(sizes.values()) + 1
    made["memory"]["activations_mib"] += 1
    speed = {"step_ms_median": median, "step_ms_p10": low, "step_ms_p90": high, "tokens_per_second": draw(TIME)}
    speed |= {"model_tflops": draw(TIME), "utilization": draw(st.floats(0.01, 1))} if draw(st.booleans()) else {}
    made["throughput"] |= speed if draw(st.integers(0, 5)) else dict.fromkeys(speed)
    made["throughput"]["disturbed"] = draw(st.sampled_from([None, None, None, "the mean is 12% over the median"]))
    if draw(st.booleans()):
        made["forecast"] = forecast_beside(made["memory"], draw(TIME))
    if not draw(st.integers(0, 7)):
        made["status"], made["reason"] = draw(st.sampled_from(["failed", "out_of_memory"])), "it ended"
    return made


@st.composite
def made_ladders(draw: st.DrawFn) -> list[RungResult]:
    """Rungs of some rounds; the rounds of one rung have the same losses."""
    rungs = []
    for n in range(draw(st.integers(1, 4))):
        rounds = draw(st.lists(made_results(), min_size=1, max_size=3))
        rungs.append(RungResult(f"rung{n}", [{**made, "loss": rounds[0]["loss"]} for made in rounds], []))
    return rungs


def expected(rung: RungResult) -> dict[str, Any]:
    """The figures of one rung, read off its result files."""
    ok = all(made["status"] == "ok" for made in rung.rounds)
    if not ok:
        return dict.fromkeys(("peak_mib", "step_ms", "step_ms_low", "step_ms_high", "disturbed", "last_loss"))
    largest = max((made["memory"] for made in rung.rounds), key=lambda memory: memory["peak_allocated_mib"])
    row: dict[str, Any] = {f"{owner}_mib": largest[f"{owner}_mib"] for owner in OWNERS if owner != "buffers"}
    forecast = next(made.get("forecast", {}) for made in rung.rounds if made["memory"] is largest)
    row |= {"forecast_peak_mib": forecast.get("peak_allocated_mib")}
    off = forecast and 100 * (forecast["peak_allocated_mib"] / largest["peak_allocated_mib"] - 1)
    row["forecast_error_percent"] = pytest.approx(off) if forecast else None
    row |= {"peak_mib": largest["peak_allocated_mib"], "last_loss": rung.rounds[0]["loss"]["last"]}
    speeds = [made["throughput"] for made in rung.rounds if made["throughput"]["tokens_per_second"] is not None]
    if not speeds:
        return row | dict.fromkeys(("step_ms", "step_ms_low", "step_ms_high", "tokens_per_second", "disturbed"))
    row["step_ms"] = statistics.median([speed["step_ms_median"] for speed in speeds])
    row["step_ms_low"] = min(speed["step_ms_p10"] for speed in speeds)
    row["step_ms_high"] = max(speed["step_ms_p90"] for speed in speeds)
    row["tokens_per_second"] = statistics.median([speed["tokens_per_second"] for speed in speeds])
    # Where a model's FLOPs cannot be counted, there is no such rate.
    counted = [speed for speed in speeds if speed.get("utilization") is not None]
    for name in ("model_tflops", "utilization"):
        row[name] = statistics.median([speed[name] for speed in counted]) if counted else None
    row["disturbed"] = any(s["disturbed"] for s in speeds) or row["step_ms_high"] > 2 * row["step_ms_low"]
    return row


def told_apart(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two rungs' steps may be called different."""
    if None in (a["step_ms"], b["step_ms"]) or a["disturbed"] or b["disturbed"]:
        return False
    return a["step_ms_high"] < b["step_ms_low"] or b["step_ms_high"] < a["step_ms_low"]


@given(made_ladders())
@settings(max_examples=40)
def test_tables_say_what_the_results_say(rungs):
    rows = table(rungs)
    made = Report(rungs, rows, [], [])
    page, terminal = markdown_table(rows)[2:], terminal_table(made).splitlines()[1:]
    first = expected(rungs[0])
    for one, row, line, words in zip(rungs, rows, page, terminal, strict=False):
        figures = expected(one)
        for name, value in figures.items():
            known = bool(row[name]) if name == "disturbed" else row[name]
            assert known == (bool(value) if name == "disturbed" else value), name
        change = told_apart(first, figures) and one is not rungs[0]
        assert row["speed_vs_first"] == (pytest.approx(first["step_ms"] / figures["step_ms"] - 1) if change else None)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert cells[0] == words.split()[0] == one.name
        peak = "" if figures["peak_mib"] is None else f"{figures['peak_mib']:,.1f}"
        step = ""
        if figures["step_ms"] is not None:
            step = f"{figures['step_ms']:,.0f} ({figures['step_ms_low']:,.0f}–{figures['step_ms_high']:,.0f})"
            step += " disturbed" if figures["disturbed"] else ""
        loss = "" if figures["last_loss"] is None else f"{figures['last_loss']:.4f}"
        assert (cells[2], cells[6], cells[12]) == (peak, step, loss)
        assert all(text in words for text in (peak, step, loss)) and ("disturbed" in words) == ("disturbed" in step)
        rate = figures.get("tokens_per_second")
        assert cells[7] == ("" if rate is None else f"{rate:,.0f}") and cells[7] in words
        rates = [figures.get(name) for name in ("model_tflops", "utilization")]
        assert cells[9:11] == (["", ""] if None in rates else [f"{rates[0]:,.2f}", f"{rates[1]:.1%}"])
        both = one is not rungs[0] and None not in (first["peak_mib"], figures["peak_mib"])
        assert cells[3] == (f"{figures['peak_mib'] / first['peak_mib'] - 1:+.1%}" if both else "")
        both = one is not rungs[0] and None not in (first["step_ms"], figures["step_ms"])
        faster = f"{first['step_ms'] / figures['step_ms'] - 1:+.1%}" if change else "≈"
        assert cells[8] == (faster if both else "") and cells[8] in words


def percent(share: float) -> str:
    """As a picture has it, in whole per cent."""
    whole = round(100 * share)
    return f"{whole:+d}%" if whole else "±0%"


@given(made_ladders())
@settings(max_examples=15)
def test_bars_are_as_long_as_the_results_say(rungs):
    figure = ladder_plot.memory_and_speed(rungs)
    if figure is None:
        assert all(expected(one)["peak_mib"] is None for one in rungs)
        return
    left, right = figure.axes
    ends = [segment for lines in right.collections for segment in lines.get_segments()]
    for y, one in enumerate(rungs):
        figures = expected(one)
        bars = [bar for bar in left.patches if round(bar.get_y() + bar.get_height() / 2) == y]
        words = [text.get_text() for text in right.texts if text.xy[1] == y]
        if figures["peak_mib"] is not None:
            assert sum(bar.get_width() for bar in bars) == pytest.approx(figures["peak_mib"])
            shown = [bars[n].get_width() for n, owner in enumerate(OWNERS) if owner != "buffers"]
            assert shown == [pytest.approx(figures[f"{owner}_mib"]) for owner in OWNERS if owner != "buffers"]
        else:
            assert bars == []
        times = [bar for bar in right.patches if round(bar.get_y() + bar.get_height() / 2) == y]
        assert [bar.get_width() for bar in times] == ([] if figures["step_ms"] is None else [figures["step_ms"]])
        if times:
            [spread] = [segment for segment in ends if segment[0][1] == y]
            assert [x for x, _ in spread] == pytest.approx([figures["step_ms_low"], figures["step_ms_high"]])
            step = figures["step_ms"]
            shown = [f"{step:,.0f}" if step >= 100 else f"{step:.3g}"]
            if one is not rungs[0] and expected(rungs[0])["step_ms"] is not None:
                first = expected(rungs[0])
                shown += [percent(step / first["step_ms"] - 1) if told_apart(first, figures) else "≈"]
            assert words == ["  ".join(shown + ["disturbed"] * bool(figures["disturbed"]))]
        if figures["peak_mib"] is not None:
            [words] = [text.get_text() for text in left.texts if text.xy[1] == y]
            first = expected(rungs[0])["peak_mib"]
            compared = one is not rungs[0] and first is not None
            assert words.split()[1:] == ([percent(figures["peak_mib"] / first - 1)] if compared else [])
    if lines := loss_plot.losses(rungs):
        for one, line in zip(rungs, lines.axes[0].lines, strict=True):
            assert list(line.get_ydata()) == one.rounds[0]["loss"]["trajectory"]


@given(made_ladders())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_files_say_what_the_results_say(tmp_path_factory, rungs):
    folder = tmp_path_factory.mktemp("ladder")
    for one in rungs:
        for n, made in enumerate(one.rounds, 1):
            place = folder / one.name / f"round-{n}"
            place.mkdir(parents=True)
            (place / "result.json").write_text(json.dumps(made), encoding="utf-8")
    (folder / "ladder.json").write_text(json.dumps({"order": [one.name for one in rungs]}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw", lambda *_: [])
        written = read_report(folder)
        write_report(written, folder)
    assert json.loads((folder / "report.json").read_text(encoding="utf-8"))["rows"] == table(rungs) == written.rows
    text = (folder / "ladder.csv").read_text(encoding="utf-8")
    for row, read in zip(written.rows, csv.DictReader(io.StringIO(text)), strict=True):
        assert list(read) == list(COLUMNS)
        assert read == {name: "" if value is None else str(value) for name, value in row.items()}
    page = (folder / "report.md").read_text(encoding="utf-8")
    assert page == markdown(written, folder.name) and "\n".join(markdown_table(written.rows)) in page


def pair(before: tuple[float, float, float], after: tuple[float, float, float]) -> list[RungResult]:
    """An eager rung, one that is compiled beside it, and one that is checkpointed, with these steps."""
    rungs = [rung("eager"), rung("compiled", torch_compile=True), rung("ckpt", gradient_checkpointing=True)]
    for one, (low, median, high) in zip(rungs, (before, after, after), strict=True):
        one.rounds[0]["throughput"] |= {"step_ms_median": median, "step_ms_p10": low, "step_ms_p90": high}
    return rungs


@given(*[st.lists(st.floats(50, 400), min_size=3, max_size=3).map(sorted) for _ in range(2)])
@settings(max_examples=60)
def test_no_place_calls_two_times_different_that_are_not_told_apart(before, after):
    """Table, compiled table, break-even and claim, by one rule."""
    rungs = pair(before, after)
    apart = told_apart(expected(rungs[0]), expected(rungs[1]))
    _, compiled, checkpointed = table(rungs)
    assert (compiled["speed_vs_first"] is None) == (checkpointed["speed_vs_first"] is None) == (not apart)
    [row] = report.compiled_rows(rungs)
    assert (row["step_vs_eager"] is None) == (not apart)
    assert row["break_even"].startswith("not known") == (not apart)
    cell = report.compiled_lines([row])[2].split("|")[8].strip()
    assert cell.endswith("≈") == (not apart) and f"({before[0]:,.0f}–{before[2]:,.0f}) → {after[1]:,.0f} (" in cell
    [claim] = [check for check in report.run_checks(rungs) if check.claim == "checkpointing costs little time"]
    quiet = 2 * before[0] >= before[2] and 2 * after[0] >= after[2]
    shorter, longer = after[2] < 1.75 * before[0], after[0] > 1.75 * before[2]
    assert claim.verdict == ("PASS" if quiet and shorter else "FAIL" if quiet and longer else "SKIP")
    assert claim.verdict != "FAIL" or apart


def test_a_disturbed_rung_is_marked_wherever_it_is_shown():
    rungs = pair((90.0, 100.0, 110.0), (40.0, 60.0, 500.0))
    made = Report(rungs, table(rungs), report.compiled_rows(rungs), report.run_checks(rungs))
    mark = "compiled: disturbed, p90 is 12.5 times p10; its speed is not compared: run it again on a quiet machine"
    assert f"\n- {mark}\n" in markdown(made, "x") and f"\n{mark}\n" in terminal_table(made)
    assert "60 (40–500) disturbed" in markdown(made, "x")
    assert made.rows[1]["disturbed"] == "p90 is 12.5 times p10" and made.rows[0]["disturbed"] is None
    # Beside the bar, at the point of a trade-off, and at an eager rung's line.
    family = [rung(f"{n}", gradient_accumulation_steps=n) for n in (1, 4)]
    family[1].rounds[0]["throughput"]["disturbed"] = "the mean is 12% over the median"
    figure = trade_off_plot.accumulation(family)
    [cross] = [line for line in figure.axes[1].lines if line.get_marker() == "X"]
    assert (list(cross.get_xdata()), list(cross.get_ydata())) == ([4], [100.0])
    assert "disturbed: no speed is claimed" in names(figure)
    budgets = [rung(f"{n}", torch_compile=True, activation_memory_budget=n) for n in (0.5, 1.0)]
    figure = trade_off_plot.memory_budget([*budgets, rungs[0]])
    assert names(figure)[2:] == ["eager: 1,000 MiB, 100 ms"]
    [band] = [patch for patch in figure.axes[1].patches if patch.get_alpha() == 0.1]
    assert (band.get_y(), band.get_y() + band.get_height()) == (90.0, 110.0)
    rungs[0].rounds[0]["throughput"]["disturbed"] = "the mean is 12% over the median"
    assert names(trade_off_plot.memory_budget([*budgets, rungs[0]]))[2:] == ["eager: 1,000 MiB, 100 ms disturbed"]
