"""The picture of an answer: candidates by owner against the line of what there is."""

from types import SimpleNamespace

from rungwise.fit.memory import Room
from rungwise.fit.picture import bars
from rungwise.report.rung_result import OWNERS
from rungwise.report.style import STYLE

from drawn import collisions, names
from matplotlib import rc_context

ROOM = Room("cuda", False, 1000.0, 100.0, "a GPU", "fp16")


def row(name, activations):
    owners = dict(zip(OWNERS, (100.0, 100.0, 200.0, 0.0, activations), strict=True))
    forecast = SimpleNamespace(owners=owners, peak_mib=sum(owners.values()))
    return SimpleNamespace(candidate=SimpleNamespace(name=name), forecast=forecast)


def test_bars_are_as_long_as_forecasts_and_cut_off_where_they_would_hide_the_others():
    rows = [row("fp32", 9600.0), row("fp16", 550.0), row(f"fp16-{'accum64-' * 8}fused", 50.0)]
    with rc_context(STYLE):
        figure = bars(rows, rows[1], ROOM)
        assert not collisions(figure)
    [axes] = figure.axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == [100, 100, 200, 0, 1600, *(100, 100, 200, 0, 550), *(100, 100, 200, 0, 50)]
    assert [text.get_text() for text in axes.texts] == ["10,000 (cut off)", "950  fits first", "450"]
    assert [line.get_xdata()[0] for line in axes.lines] == [900.0, 1000.0]
    owners = [owner.replace("_", " ") for owner in OWNERS]
    assert names(figure) == [*owners, "there is: 900", "with the reserve: 1,000"]
