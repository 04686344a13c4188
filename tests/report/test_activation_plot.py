"""The picture of activations: bars of a ladder's results, segment by segment."""

from rungwise.report import activation_plot
from rungwise.report.plots import draw

import pytest
from results import result, rung


def owned(**sizes):
    """A result whose modules own so many MiB, each by two operators."""
    made = result()
    rows = [
        {"module": name, "operator": operator, "mib": mib / 2, "tensors": 1}
        for name, mib in sizes.items()
        for operator in ("mul", "addmm")
    ]
    made["activations"] = {"total_mib": sum(sizes.values()), "rows": rows, "recompute": None, "unknown": []}
    return made


def test_bars_are_the_results():
    many = {f"m{n}": float(100 - n) for n in range(9)}
    # Nearly nothing of the first rung, and half of the second.
    first, second = rung("first", owned(**many, late=1.0)), rung("second", owned(late=50.0, m0=50.0))
    old = result()
    del old["activations"]
    figure = activation_plot.activations([first, rung("old", old), second])
    [axes] = figure.axes
    [legend] = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["m0", "late", "m1", "m2", "m3", "m4", "m5", "other"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["first", "old", "second"]
    widths = [bar.get_width() for bar in axes.patches]
    assert widths[:8] == pytest.approx([100, 1, 99, 98, 97, 96, 95, 94 + 93 + 92])
    assert widths[8:] == pytest.approx([50, 50, 0, 0, 0, 0, 0, 0])
    # Without colours they are told apart by hatching and place; with them, no two are alike.
    assert len({bar.get_hatch() for bar in axes.patches[:7]}) == 7
    assert len({bar.get_facecolor() for bar in axes.patches[:8]}) == 8
    texts = [text.get_text() for text in axes.texts]
    assert {"865", "not known", "100", "99"} <= set(texts)


def test_older_results_have_no_such_picture(tmp_path):
    old = result()
    del old["activations"]
    assert activation_plot.activations([rung("old", old), rung("failed", status="failed", reason="why")]) is None
    assert "activations.png" not in [path.name for path in draw([rung("old", old)], tmp_path)]
    assert "activations.png" in [path.name for path in draw([rung("new", owned(a=1.0))], tmp_path)]
