"""The pictures of a single run: what they show, and that they are there after a run that came to its end."""

import csv
import json
from pathlib import Path

from rungwise.report.plots import draw_run
from rungwise.report.run_plot import owners, step
from rungwise.report.rung_result import OWNERS
from rungwise.report.timelines import read_timeline
from rungwise.run.files import Files
from rungwise.run.record import Record

import pytest
from commands import ablate_here
from drawn import names
from harness import TINY, tiny_settings
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from results import PHASES, forecast_beside, result, rung

PICTURES = ("memory.png", "memory_step.png")
FLAGS = [*TINY, "--config", "accelerate_configs/fp32.yaml", "--max_steps", "3", "--untimed_steps", "2"]


def test_a_step_is_shown_by_phases_with_its_highest_point():
    figure = step(rung("a", timeline=PHASES))
    [axes] = figure.axes
    held, highest = axes.lines
    assert list(held.get_xdata()) == [0, 10, 30, 50, 80, 90, 100]
    assert list(held.get_ydata()) == [mib for _, mib, _ in PHASES]
    assert (highest.get_xdata()[0], highest.get_ydata()[0]) == (10, 30)
    assert [text.get_text() for text in axes.texts] == ["30.0 MiB, forward"]
    assert names(figure) == ["forward", "backward", "clipping and the optimizer's step"]
    assert step(rung("none")) is None


def test_owners_stand_above_the_modules_that_keep_most():
    made = result(peak=1000.0)
    made["forecast"] = forecast_beside(made["memory"], 1010.0)
    rows = [{"module": f"m{n}", "operator": "mul", "mib": 2.0**-n, "tensors": 1} for n in range(12)]
    made["activations"] = {"rows": rows}
    peak, modules = owners(rung("a", made)).axes
    bars = [[bar.get_width() for bar in peak.patches[n : n + len(OWNERS)]] for n in (0, len(OWNERS))]
    assert bars == [[100.0, 100.0, 200.0, 0.0, 600.0], [100.0, 100.0, 200.0, 0.0, 610.0]]
    outlined = [bar.get_facecolor() == to_rgba("white") for bar in peak.patches]
    assert outlined == [False] * len(OWNERS) + [True] * len(OWNERS)
    assert [text.get_text() for text in peak.texts] == ["1,000.0", "1,010.0 forecast, +1.00%"]
    widths = [bar.get_width() for bar in modules.patches]
    assert widths == pytest.approx([2.0**-n for n in range(10)] + [2.0**-10 + 2.0**-11])
    named = [label.get_text() for label in modules.get_yticklabels()]
    assert named == [*(f"m{n}" for n in range(10)), "other"]
    assert modules.texts[0].get_text() == "1.0  50%"
    # An older result knows neither, and one that did not end has no peak to show.
    [alone] = owners(rung("old")).axes
    assert [label.get_text() for label in alone.get_yticklabels()] == ["measured"]
    assert owners(rung("gone", status="failed", reason="why")) is None


def test_a_run_draws_its_pictures_once_all_is_written(tmp_path):
    found = ablate_here(tmp_path, *FLAGS, "--gradient_accumulation_steps", "2", "--plots", "true")
    assert found["status"] == "ok" and all((tmp_path / name).is_file() for name in PICTURES)
    with (tmp_path / "memory_timeline.csv").open(encoding="utf-8") as file:
        phases = [row["phase"] for row in csv.DictReader(file)]
    assert [p for n, p in enumerate(phases) if n == 0 or p != phases[n - 1]] == [
        *["forward", "backward"] * 2,
        "optimizer",
    ]
    # The next run's are its own: none is left of an earlier one.
    ablate_here(tmp_path, *FLAGS)
    assert not any((tmp_path / name).exists() for name in PICTURES)


def test_a_picture_that_cannot_be_drawn_costs_the_run_nothing(tmp_path, monkeypatch, capsys):
    def half(self, path, **_):
        path.write_bytes(b"half")
        raise OSError("No space left on device")

    monkeypatch.setattr(Figure, "savefig", half)
    assert ablate_here(tmp_path, *FLAGS, "--plots", "true")["status"] == "ok"
    assert "no pictures: OSError: No space left on device\n" in capsys.readouterr().err
    assert not any((tmp_path / name).exists() for name in PICTURES)


def test_there_is_no_half_of_a_timeline(tmp_path, monkeypatch):
    files, write_text = Files(tmp_path), Path.write_text
    record = Record(tiny_settings(), status="ok")
    files.begin(record)
    files.end(record, [(0.0, 2**20, "forward"), (1.0, 2**21, "forward")])
    assert read_timeline(tmp_path) == [(0.0, 1.0, "forward"), (1.0, 2.0, "forward")]

    def half(self, text, **options):
        timeline = self.name == "memory_timeline.csv"
        write_text(self, text[: len(text) // 2] if timeline else text, **options)
        if timeline:
            raise OSError("No space left on device")

    files.begin(record)
    monkeypatch.setattr(Path, "write_text", half)
    files.end(record, [(0.0, 2**20, "forward"), (1.0, 2**21, "forward")])
    assert read_timeline(tmp_path) == []


def test_there_is_no_picture_without_its_figures(tmp_path):
    assert draw_run(tmp_path) == []
    (tmp_path / "memory_step.png").write_bytes(b"of an earlier run")
    (tmp_path / "result.json").write_text(json.dumps(result()), encoding="utf-8")
    assert [path.name for path in draw_run(tmp_path)] == ["memory.png"]
    assert not (tmp_path / "memory_step.png").exists()
