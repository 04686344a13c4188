"""Bars of memory by owner, as several pictures have them."""

from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
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


def explain_owners(figure: Figure) -> None:
    """Names the owners above the bars of a figure."""
    handles = [Patch(**filled(OWNER_LOOKS[owner]), label=owner.replace("_", " ")) for owner in OWNERS]
    look = {"loc": "outside upper left", "ncols": len(OWNERS), "columnspacing": 1.2, "handlelength": 1.6}
    figure.legend(handles=handles, **look)
