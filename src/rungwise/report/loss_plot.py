"""The picture of losses: those of all rungs over steps, and below how far each lies from that of the fp32 rung."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .rung_result import RungResult, reference
from .style import WIDTH, legend_height, line, spaced, wrapped

Points = list[tuple[int, float]]
# Characters of a label, a line.
LONGEST_LINE = 36


def losses(rungs: list[RungResult]) -> Figure | None:
    """Both panels; the first alone where no two losses differ. None where no rung has a loss."""
    shown = [rung for rung in rungs if any(loss is not None for loss in rung.losses)]
    if not shown:
        return None
    against = reference(shown) or shown[0]
    apart = {rung.name: distances_by_step(against, rung) for rung in shown if rung is not against}
    compared = any(distance for points in apart.values() for _, distance in points)
    labels = [_label(rung.name, apart.get(rung.name)) for rung in shown]
    columns = min(2, len(shown))
    height = (5.8 if compared else 3.3) + legend_height(labels, columns)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.subplots(2 if compared else 1, 1, sharex=True, squeeze=False)[:, 0]
    for n, rung in enumerate(shown):
        points = [(step, loss) for step, loss in enumerate(rung.losses, 1) if loss is not None]
        _draw(axes[0], points, n, len(shown))
        if compared:
            # On a logarithmic axis there is no place for 0; the legend says how often it is.
            _draw(axes[1], [point for point in apart.get(rung.name, []) if point[1]], n, len(shown))
    axes[0].set_ylabel("training loss\n(nats a token)")
    axes[-1].set_xlabel("optimizer step")
    if compared:
        axes[1].set_yscale("log")
        axes[1].set_ylabel(f"distance from\n{wrapped(against.name, 22)}")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for each in axes:
        each.grid()
    figure.align_ylabels()
    figure.legend(axes[0].lines, labels, loc="outside upper left", ncols=columns, columnspacing=1.5, handlelength=3.5)
    return figure


def distances_by_step(a: RungResult, b: RungResult) -> Points:
    """How far the losses of two rungs lie apart at each step that both have one of: (step, nats a token)."""
    both = enumerate(zip(a.losses, b.losses, strict=False), 1)
    return [(step, abs(y - x)) for step, (x, y) in both if x is not None and y is not None]


def _label(name: str, apart: Points | None) -> str:
    """A rung's name, and at how many steps its loss is exactly the one that it is held against."""
    if apart is None:
        words = "the others are held against it"
    else:
        same = sum(not distance for _, distance in apart)
        words = f"equal at {'all' if same == len(apart) else f'{same} of'} {len(apart)} steps" if same else ""
    between = "\n" if len(name) > 8 else ": "
    return wrapped(name, LONGEST_LINE) + (f"{between}{words}" if words else "")


def _draw(axes: Axes, points: Points, number: int, of: int) -> None:
    if points:
        axes.plot(*zip(*points, strict=True), markevery=spaced(number, of, len(points)), **line(number))
