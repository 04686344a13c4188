"""The pictures of a report and of a single run, sized for a README."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from matplotlib import rc_context
from matplotlib.figure import Figure

from ..result_file import read_result
from .activation_plot import activations
from .forecast_plot import forecast_bars
from .ladder_plot import memory_and_speed
from .loss_plot import losses
from .map_plot import rung_map
from .profile_plot import profile_bars
from .run_plot import owners, step
from .rung_result import RungResult
from .style import STYLE
from .timeline_plot import timelines
from .timelines import read_timeline
from .trade_off_plot import accumulation, memory_budget

PICTURES: dict[str, Callable[[list[RungResult]], Figure | None]] = {
    "ladder.png": memory_and_speed,
    "map.png": rung_map,
    "forecast.png": forecast_bars,
    "activations.png": activations,
    "loss.png": losses,
    "accumulation.png": accumulation,
    "memory_budget.png": memory_budget,
    "memory_timeline.png": timelines,
    "profile.png": profile_bars,
}


RUN_PICTURES: dict[str, Callable[[RungResult], Figure | None]] = {"memory.png": owners, "memory_step.png": step}
Shown = TypeVar("Shown")


def draw(rungs: list[RungResult], folder: Path) -> list[Path]:
    """Draws every picture that these rungs have the figures for. Returns the files."""
    return _write(PICTURES, rungs, folder)


def draw_run(folder: Path) -> list[Path]:
    """Draws the pictures of the run in a folder that it has the figures for. Returns the files."""
    result = read_result(folder)
    if result is None:
        return []
    return _write(RUN_PICTURES, RungResult(result["name"], [result], read_timeline(folder)), folder)


def _write(pictures: dict[str, Callable[[Shown], Figure | None]], shown: Shown, folder: Path) -> list[Path]:
    drawn = []
    with rc_context(STYLE):
        for name, picture in pictures.items():
            figure = picture(shown)
            path = folder / name
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            try:
                figure.savefig(path)
            except OSError:
                path.unlink(missing_ok=True)  # a full disk takes half of it
                raise
            drawn.append(path)
    return drawn
