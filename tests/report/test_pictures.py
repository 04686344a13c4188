"""What pictures show is what the results say: each mark's place, length, look and words."""

from rungwise.report.frontier import frontier
from rungwise.report.ladder_plot import memory_and_speed
from rungwise.report.loss_plot import losses
from rungwise.report.map_plot import rung_map
from rungwise.report.style import PHASE_LOOKS, wrapped
from rungwise.report.timeline_plot import PHASE_WORDS, timelines
from rungwise.report.trade_off_plot import accumulation

import pytest
from drawn import names
from matplotlib.colors import to_rgba
from results import PHASES, rung


def test_the_ladders_picture_shows_each_rung_owner_and_spread_and_what_is_saved():
    rungs = [
        rung("fp32"),
        rung("gone", status="out_of_memory", reason="too large"),
        rung("bf16", peak=600.0, step_ms=50.0),
        rung("close", peak=1001.0, step_ms=101.0),
    ]
    figure = memory_and_speed(rungs)
    left, right = figure.axes
    assert [label.get_text() for label in left.get_yticklabels()] == ["fp32", "gone", "bf16", "close"]
    # Five owners for each of three rungs; together they reach the peak.
    assert len(left.patches) == 15
    assert sum(bar.get_width() for bar in left.patches[5:10]) == pytest.approx(600.0)
    assert [bar.get_width() for bar in right.patches] == [100.0, 50.0, 101.0]
    assert len(right.containers) == 6 and "(ms)" in right.get_xlabel() and "(MiB)" in left.get_xlabel()
    assert [text.get_text() for text in left.texts] == ["1,000", "out of memory", "600  -40%", "1,001  ±0%"]
    assert [text.get_text() for text in right.texts] == ["100", "50  -50%", "101  ≈"]
    # Words begin at the ends of bars and whiskers.
    assert [text.xy for text in left.texts] == [(1000, 0), (0, 1), (600, 2), (1001, 3)]
    assert [text.xy for text in right.texts] == [(105, 0), (55, 2), (106, 3)]
    assert names(figure) == ["parameters", "gradients", "optimizer state", "buffers", "activations"]


def test_a_first_rung_that_did_not_end_saves_nothing():
    figure = memory_and_speed([rung("gone", status="failed", reason="why"), rung("bf16", peak=600.0)])
    assert [text.get_text() for text in figure.axes[0].texts] == ["failed", "600"]
    assert [text.get_text() for text in figure.axes[1].texts] == ["100"]


def test_a_rung_whose_memory_was_lost_has_its_time():
    lost = rung("lost", step_ms=50.0)
    lost.rounds[0]["memory"] = {"peak_allocated_mib": None}
    figure = memory_and_speed([lost])
    assert [text.get_text() for axes in figure.axes for text in axes.texts] == ["not measured", "50"]


def of(*figures):
    """Rungs of these peaks and step times, each with a spread of 5 ms to both sides."""
    return [rung(f"{peak:g}, {ms:g}", peak=float(peak), step_ms=float(ms)) for peak, ms in figures]


def test_the_frontier_takes_more_memory_only_for_a_step_that_is_told_apart():
    rungs = of((500, 300), (1000, 100), (900, 205), (600, 200), (700, 195), (650, 290), (1100, 100))
    assert [one.name for one in frontier(rungs)] == ["500, 300", "600, 200", "1000, 100"]
    # Each overlaps the next one: what is on it is told apart from all that is on it, and not from its neighbours.
    chain = of((10, 130), (20, 122), (30, 114))
    assert [one.name for one in frontier(chain)] == ["10, 130", "30, 114"]
    # Of equal memory the faster one; of what was disturbed, did not end or was not timed nothing is claimed.
    same = of((10, 130), (10, 90), (5, 10), (4, 20), (3, 30))
    same[2].rounds[0]["throughput"]["disturbed"] = "it was"
    same[3].rounds[0]["status"] = "failed"
    same[4].rounds[0]["throughput"]["step_ms_median"] = None
    assert [one.name for one in frontier(same)] == ["10, 90"]


def test_rungs_stand_on_the_map_where_their_figures_are():
    rungs = of((1000, 100), (600, 50), (300, 300), (650, 49))
    rungs.insert(1, rung("gone", status="failed", reason="why"))
    rungs[3].rounds[0]["throughput"]["disturbed"] = "it was"
    figure = rung_map(rungs)
    [axes] = figure.axes
    points = [line for line in axes.lines if len(line.get_xdata()) == 1]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [
        (100, 1000),
        (50, 600),
        (300, 300),
        (49, 650),
    ]
    assert [line.get_marker() for line in points] == ["o", "o", "X", "o"]
    # 600 MiB are the least of those whose speed is claimed, and none that takes more is faster.
    hollow = [to_rgba(line.get_markerfacecolor()) == to_rgba("white") for line in points]
    assert hollow == [True, False, False, True]
    whiskers = [line for line in axes.lines if line.get_marker() == "|"]
    spreads = [(list(line.get_xdata()), line.get_ydata()[0]) for line in whiskers]
    assert spreads == [([95, 105], 1000), ([45, 55], 600), ([295, 305], 300), ([44, 54], 650)]
    ways = [(text.xyann, text.xy) for text in axes.texts if not text.get_text()]
    assert ways == [((100, 1000), (50, 600)), ((50, 600), (300, 300)), ((300, 300), (49, 650))]
    named = {text.get_text(): text.xy for text in axes.texts if text.get_text()}
    assert named == {
        "1  1000, 100": (100, 1000),
        "3  600, 50": (50, 600),
        "4  300, 300": (300, 300),
        "5  650, 49": (49, 650),
    }
    said = ["Pareto frontier: lower left is better", "other rungs", "disturbed: no speed is claimed", "p10 to p90"]
    assert names(figure) == said and names(rung_map(of((1000, 100), (600, 50)))) == [said[0], said[1], said[3]]
    assert names(rung_map(of((1000, 100), (600, 150)))) == [said[0], said[3]]
    assert rung_map(rungs[:2]) is None


def test_losses_and_their_distances_are_those_of_the_results():
    rungs = [
        rung("bf16", mixed_precision="bf16", losses=[4.0, 3.25, 2.5]),
        rung("fp32", losses=[4.0, 3.0, 2.0]),
        rung("same", losses=[4.0, 3.0, 2.0]),
        rung("short", losses=[3.5, 3.0]),
    ]
    figure = losses(rungs)
    above, below = figure.axes
    assert [list(line.get_ydata()) for line in above.lines] == [one.losses for one in rungs]
    # Zeros have no place on a logarithmic axis; they are counted.
    drawn = [(list(line.get_xdata()), list(line.get_ydata())) for line in below.lines]
    assert drawn == [([2, 3], [0.25, 0.5]), ([1], [0.5])] and below.get_yscale() == "log"
    assert names(figure) == [
        "bf16: equal at 1 of 3 steps",
        "fp32: the others are held against it",
        "same: equal at all 3 steps",
        "short: equal at 1 of 2 steps",
    ]
    assert below.get_ylabel() == "distance from\nfp32" and below.get_xlabel() == "optimizer step"
    for lines in (above.lines, below.lines):
        assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == len(lines)
    assert below.lines[0].get_color() == above.lines[0].get_color()
    assert below.lines[1].get_marker() == above.lines[3].get_marker()


def test_where_no_loss_differs_there_is_no_second_panel():
    figure = losses([rung("a"), rung("b")])
    assert len(figure.axes) == 1 and names(figure)[1] == "b: equal at all 3 steps"
    assert len(losses([rung("a")]).axes) == 1


def test_a_panel_shows_a_rungs_step_by_phases():
    rungs = [rung("a", timeline=PHASES), rung("gone", timeline=PHASES, status="failed", reason="why"), rung("none")]
    rungs += [rung("b", timeline=[(2 * ms, 2 * mib, phase) for ms, mib, phase in PHASES])]
    figure = timelines(rungs)
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in panels] == ["a\n30 MiB", "b\n60 MiB"]
    assert panels[0].get_ylim() == panels[1].get_ylim() and panels[0].get_ylim()[1] > 60
    for axes, factor in zip(panels, (1, 2), strict=True):
        held, reference = axes.lines
        assert list(held.get_xdata()) == [0, 10, 30, 50, 80, 90, 100]
        assert list(held.get_ydata()) == [factor * mib for _, mib, _ in PHASES]
        assert set(reference.get_ydata()) == {30.0}
        # From where a phase begins to where the next one does, up to what is held.
        spans = [axes.collections[n].get_paths()[0].get_extents() for n in range(3)]
        assert [(span.x0, span.x1) for span in spans] == [(0, 30), (30, 80), (80, 100)]
        assert [span.y1 for span in spans] == [factor * mib for mib in (30, 30, 14)]
        colours = [tuple(part.get_facecolor()[0]) for part in axes.collections]
        assert colours == [to_rgba(colour) for colour, _ in PHASE_LOOKS.values()]
    assert names(figure) == [*PHASE_WORDS.values(), "highest in a"]
    # An older result knows no phases, and says so.
    old = timelines([rung("old", timeline=[(ms, mib, "") for ms, mib, _ in PHASES])])
    assert names(old) == ["older results: no phases", "highest in old"] and len(old.axes[0].collections) == 1
    assert timelines([rung("none"), rungs[1]]) is None


def test_a_trade_off_shows_memory_and_time_over_its_setting():
    family = [rung(f"{n}", peak=1000.0 / n, step_ms=100.0 + n, gradient_accumulation_steps=n) for n in (4, 1, 2)]
    memory, time = accumulation(family).axes
    assert list(memory.lines[0].get_xdata()) == [1, 2, 4]
    assert list(memory.lines[0].get_ydata()) == [1000.0, 500.0, 250.0]
    assert list(time.lines[0].get_ydata()) == [101.0, 102.0, 104.0]


def test_long_names_are_broken_behind_dashes_and_cut_in_their_middle():
    assert wrapped("bf16-accum4", 26) == "bf16-accum4"
    assert wrapped("bf16-accum4-checkpointed-compiled", 26) == "bf16-accum4-checkpointed-\ncompiled"
    cut = wrapped("a" * 40 + "-" + "b" * 40, 26)
    assert [len(line) <= 26 for line in cut.split("\n")] == [True, True]
    assert cut.startswith("aaaa") and cut.endswith("bbbb") and cut.count("…") == 1
