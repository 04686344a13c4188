"""Places names beside the points of a picture, so that no name lies on another, on a point, or out of the frame."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from .style import SMALL

# In points, all of them: how near a name may come to its point, how much further each try, and how far it may go.
NEAREST, FURTHER, FARTHEST = 7.0, 8.0, 280.0
# From this distance on a line leads from a name to its point.
LED = 14.0
DIRECTIONS = [math.tau * n / 24 for n in range(24)]
# Half the side of a point, the room around a name, and how far apart places on a line are looked at.
POINT, AROUND, EVERY = 6.0, 3.0, 5.0
# What it costs a name to lie on a line, and its own line to cross another name or a point.
ON_A_LINE, CROSSING = 12.0, 40.0
Point = tuple[float, float]


def name_points(
    axes: Axes, points: Sequence[Point], names: Sequence[str], lines: Sequence[tuple[Point, Point]]
) -> None:
    """Names each point, as near to it as there is room.

    Args:
        axes: with all but the names in it; its scale and its place are not to change any more.
        points: in data coordinates.
        names: of the points, each of one or more lines.
        lines: from point to point, in data coordinates; names stay out of their way where they can.
    """
    figure = axes.get_figure()
    figure.draw_without_rendering()
    unit = 72 / figure.dpi  # points a pixel
    places = unit * axes.transData.transform(points)
    frame = unit * axes.get_window_extent().extents
    taken = [_box(place, 2 * POINT, 2 * POINT) for place in places]
    crossed = [_along(*(unit * axes.transData.transform(line))) for line in lines]
    for name, point, place in zip(names, points, places, strict=True):
        text = axes.annotate(name, point, fontsize=SMALL)
        extent = text.get_window_extent()
        width, height = unit * extent.width + 2 * AROUND, unit * extent.height + AROUND
        text.remove()
        away = _place(place, width, height, frame, np.array(taken), np.concatenate(crossed))
        center = place + away
        taken.append(_box(center, width, height))
        leader = None
        if (abs(away) - (width / 2, height / 2)).max() > LED:
            leader = {"arrowstyle": "-", "color": "black", "linewidth": 0.6, "shrinkA": 0, "shrinkB": POINT - 1}
            crossed.append(_along(place, center))
        paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.75}
        axes.annotate(
            *(name, point, away),
            **{"textcoords": "offset points", "ha": "center", "va": "center", "fontsize": SMALL},
            **{"arrowprops": leader, "bbox": paper, "zorder": 4},
        ).set_in_layout(False)


def _place(
    place: np.ndarray, width: float, height: float, frame: np.ndarray, taken: np.ndarray, crossed: np.ndarray
) -> np.ndarray:
    """Where the middle of a name is best, seen from its point, in points: of all free places the cheapest."""
    best, least = np.zeros(2), math.inf
    for distance in np.arange(NEAREST, FARTHEST, FURTHER):
        if distance > least:
            break
        for angle in DIRECTIONS:
            direction = np.array([math.cos(angle), math.sin(angle)])
            away = direction * (distance + np.array([width, height]) / 2)
            box = _box(place + away, width, height)
            inside = (box[:2] >= frame[:2]).all() and (box[2:] <= frame[2:]).all()
            if not inside or _overlapping(box, taken):
                continue
            cost = distance + ON_A_LINE * _within(crossed, box) ** 0.5
            if distance > LED:
                leader = _along(place + 2 * POINT * direction, place + away)
                cost += CROSSING * sum(_within(leader, other) > 0 for other in taken)
            if cost < least:
                best, least = away, cost
    return best


def _box(center: np.ndarray, width: float, height: float) -> np.ndarray:
    """Left, bottom, right and top."""
    half = np.array([width, height]) / 2
    return np.concatenate([center - half, center + half])


def _overlapping(box: np.ndarray, others: np.ndarray) -> bool:
    return bool(((others[:, :2] < box[2:]) & (others[:, 2:] > box[:2])).all(axis=1).any())


def _within(points: np.ndarray, box: np.ndarray) -> int:
    """How many of the points lie in a box."""
    return int(((points > box[:2]) & (points < box[2:])).all(axis=1).sum())


def _along(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Points of a line."""
    count = 2 + int(np.hypot(*(end - start)) / EVERY)
    return np.linspace(start, end, count)
