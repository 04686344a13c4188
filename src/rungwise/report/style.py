"""How pictures look: sizes, colours, hatches and dashes in one place, and words that are kept from one another.

Colour-blind readers tell the colours (Okabe and Ito's) apart, and a print in black and white by hatches, dashes and
markers.
"""

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

# A README is 860 px wide: its pictures have twice as many, and 100 of its px to an inch.
WIDTH = 8.6
STYLE = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "figure.facecolor": "white",
    # Also while it is laid out: letters are not twice as wide at twice as many pixels.
    "figure.dpi": 200,
}
SMALL = 9.5
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
HATCHES = ("", "///", "...", "xx", "\\\\\\", "++", "oo", "--")
DASHES = ("-", "--", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY, LIGHT = "#999999", "#dddddd"
# Who owns memory, and what a step does: colour and hatch.
OWNER_LOOKS = {
    "parameters": (COLOURS[0], ""),
    "gradients": (COLOURS[1], "///"),
    "optimizer_state": (COLOURS[2], "..."),
    "buffers": (COLOURS[3], "xx"),
    "activations": (COLOURS[4], ""),
}
PHASE_LOOKS = {
    "forward": (COLOURS[4], ""),
    "backward": (COLOURS[0], ""),
    "optimizer": (COLOURS[1], "////"),
}
# Behind words that stand on a bar or on a line.
PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
# Between a bar and the words behind it, and between them and the frame, in points.
GAP = 4
# Characters of a rung's name, a line; how wide a digit is, in font sizes.
LONGEST_LINE = 26
CHARACTER = 0.65
PLAIN = StrMethodFormatter("{x:,.10g}")


def filled(look: tuple[str, str]) -> dict[str, Any]:
    """A bar in this colour, with its hatch in white."""
    colour, hatch = look
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}


def outlined(look: tuple[str, str]) -> dict[str, Any]:
    """The same bar, drawn in outline."""
    colour, hatch = look
    return {"facecolor": "white", "hatch": hatch, "edgecolor": colour, "linewidth": 1.0}


def line(number: int) -> dict[str, Any]:
    """The look of a picture's n-th line; 24 of them are told apart, in black and white by dashes and markers."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "markersize": 4.5,
        "linewidth": 1.6,
    }


def spaced(number: int, of: int, points: int) -> tuple[int, int]:
    """Which of a line's points have a marker: every so many, and those of several lines not at the same places."""
    every = max(1, points // 8)
    return (number * every // max(1, of) % every, every)


def wrapped(name: str, width: int = LONGEST_LINE, lines: int = 2) -> str:
    """A rung's name in at most so many lines of so many characters, broken behind a dash.

    Of one that is longer the middle is left out.
    """
    most = width * lines
    if len(name) > most:
        name = f"{name[: most // 2 - 1]}…{name[len(name) - most // 2 :]}"
    found = []
    while len(name) > width and len(found) < lines - 1:
        # Behind a dash, where what is left still fits into the lines that are left.
        least = max(1, len(name) - width * (lines - len(found) - 1))
        behind = max((n for n in range(least, width + 1) if name[n - 1] in "-_ "), default=width)
        found.append(name[:behind])
        name = name[behind:]
    return "\n".join([*found, name])


def name_bars(axes: Axes, names: Sequence[str]) -> None:
    """Names the bars of a picture at their left, the first one on top."""
    axes.set_yticks(range(len(names)), [wrapped(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)


def behind(axes: Axes, x: float, y: float, words: str, **look: Any) -> Text:
    """Words behind the end of a bar; `make_room` makes place for them."""
    text = axes.annotate(words, (x, y), (GAP, 0), textcoords="offset points", va="center", **look)
    text.set_in_layout(False)
    return text


def inside(axes: Axes, x: float, y: float, words: str) -> None:
    """Words in the middle of a part of a bar."""
    axes.text(x, y, words, ha="center", va="center", fontsize=SMALL, bbox=PAPER)


def scale_bars(axes: Axes) -> None:
    """Lets bars begin at 0, with a grid and plain numbers."""
    axes.grid(axis="x")
    axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(PLAIN)
    axes.tick_params(axis="y", length=0)


def make_room(figure: Figure) -> None:
    """Ends each axes so far behind its bars that the words behind them fit in, with as many ticks as can be read."""
    figure.draw_without_rendering()
    for axes in figure.axes:
        width = axes.get_window_extent().width
        gap = 2 * GAP * figure.dpi / 72
        ends = [axes.dataLim.x1]
        for text in (text for text in axes.texts if text.get_ha() == "left"):
            taken = text.get_window_extent().width + gap
            ends.append(text.xy[0] * width / max(width - taken, width / 10))
        end = max(ends) or 1.0
        label = CHARACTER * axes.xaxis.label.get_size() * figure.dpi / 72 * len(PLAIN(end // 1 or end))
        axes.xaxis.set_major_locator(MaxNLocator(max(2, min(8, int(width / (1.6 * label))))))
        axes.set_xlim(0, end)


def name_fewer(axes: Axes) -> None:
    """Leaves out the names of ticks on the x axis that have no room behind the one before."""
    axes.get_figure().draw_without_rendering()
    end, names = -math.inf, []
    for label in axes.get_xticklabels():
        place = label.get_window_extent()
        fits = place.x0 > end + GAP * axes.get_figure().dpi / 72
        names.append(label.get_text() if fits else "")
        end = place.x1 if fits else end
    axes.set_xticks(axes.get_xticks(), names)


def legend_height(labels: Sequence[str], columns: int) -> float:
    """The inches that a legend of these labels takes, column by column, of font size 11."""
    each = [0.18 * (1 + label.count("\n")) + 0.08 for label in labels]
    rows = math.ceil(len(each) / columns)
    return max(sum(each[n : n + rows]) for n in range(0, len(each), rows))


def number(value: float) -> str:
    """A figure for reading: whole, or with three digits that say something."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def change(share: float) -> str:
    """A change in per cent, for reading: -36% of -0.363."""
    words = f"{share:+.0%}"
    return "±0%" if words in ("+0%", "-0%") else words
