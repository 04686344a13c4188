"""Bars of memory by owner, as several pictures have them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from .rung_result import OWNERS
from .style import OWNER_LOOKS, filled


def owner_bar(
    axes: Axes,
    y: float,
    sizes: Mapping[str, float],
    height: float = 0.7,
    drawn: Callable[[tuple[str, str]], dict[str, Any]] = filled,
) -> float:
    """One bar, its owners beside one another, each in its look as it is `drawn`. Returns where it ends."""
    start = 0.0
    for owner in OWNERS:
        axes.barh(y, sizes[owner], left=start, height=height, **drawn(OWNER_LOOKS[owner]))
        start += sizes[owner]
    return start


def explain_owners(figure: Figure, lines: Sequence[Line2D] = (), columns: int = len(OWNERS)) -> None:
    """Names the owners above the bars of a figure, and after them lines by their labels."""
    owners = [Patch(**filled(OWNER_LOOKS[owner]), label=owner.replace("_", " ")) for owner in OWNERS]
    look = {"loc": "outside upper left", "ncols": columns, "columnspacing": 1.2, "handlelength": 1.6}
    figure.legend(handles=[*owners, *lines], **look)
