"""How a report's pictures look. Colour-blind readers tell their colours (Okabe and Ito's) apart."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
DASHES = ("-", "--", ":")
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.dpi": 150,
}
WIDTH = 10.0
POINTS = {"textcoords": "offset points", "fontsize": 9}


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Names the bars of a picture at their left, the first one on top."""
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def scale_bars(axes: Axes, margin: float) -> None:
    """Lets bars begin at 0, with a grid and whole numbers; `margin` is a share of the width, behind the longest."""
    axes.grid(axis="x")
    axes.margins(x=margin)
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.tick_params(axis="y", length=0)
