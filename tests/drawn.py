"""What a figure shows once it is drawn: its words and where they are."""

import itertools
from unittest import mock

from rungwise.report.style import STYLE

from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def words(figure):
    """Every word that is drawn, with its box in pixels: ticks that are out of sight are not."""
    found = []
    draw = Text.draw

    def noted(self, renderer, *args, **kwargs):
        draw(self, renderer, *args, **kwargs)
        if self.get_visible() and self.get_text().strip():
            found.append((self.get_text(), Text.get_window_extent(self, renderer)))

    assert figure.dpi == STYLE["figure.dpi"], "made outside of the style"
    with rc_context(STYLE), mock.patch.object(Text, "draw", noted):
        FigureCanvasAgg(figure).draw()
    return found


def collisions(figure):
    """Pairs of words that lie on one another, and words that leave the page; by more than a pixel."""
    found = words(figure)
    width, height = figure.bbox.size
    out = [(text,) for text, b in found if b.x0 < -1 or b.y0 < -1 or b.x1 > width + 1 or b.y1 > height + 1]
    pairs = itertools.combinations(found, 2)
    return out + [(a, b) for (a, x), (b, y) in pairs if x.padded(-1).overlaps(y.padded(-1))]


def names(figure):
    """What its legend says."""
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]
