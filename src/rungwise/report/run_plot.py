"""The two pictures of a single run: its memory over one step, and who owns its peak and its activations."""

from matplotlib.figure import Figure

from .activation_plot import OTHER
from .forecast_plot import forecast_words
from .forecasts import forecast_rows
from .owner_bars import explain_owners, owner_bar
from .rung_result import RungResult
from .style import OWNER_LOOKS, SMALL, WIDTH, behind, filled, make_room, name_bars, outlined, scale_bars
from .timeline_plot import fill, phases_of, scale

MOST_MODULES = 10


def step(run: RungResult) -> Figure | None:
    """What is held over one optimizer step, phase by phase, with its highest point; None where it was not measured."""
    if len(run.timeline) < 2:
        return None
    figure = Figure(figsize=(WIDTH, 4.0), layout="constrained")
    axes = figure.subplots()
    end = run.timeline[-1][0]
    points = [(100 * ms / end, mib, phase) for ms, mib, phase in run.timeline]
    fill(axes, points)
    x, highest, phase = max(points, key=lambda point: point[1])
    axes.plot(x, highest, marker="o", color="black", markersize=6)
    words = f"{highest:,.1f} MiB{f', {phase}' if phase else ''}"
    side = {"ha": "left", "xytext": (8, 2)} if x < 60 else {"ha": "right", "xytext": (-8, 2)}
    axes.annotate(words, (x, highest), textcoords="offset points", va="bottom", **side)
    scale(axes, 1.06 * highest)
    axes.grid(axis="y")
    axes.set_xlim(0, 100)
    axes.set_xlabel("part of one optimizer step (%)")
    axes.set_ylabel("allocated memory (MiB)")
    phases = phases_of([run])
    figure.legend(phases.values(), phases, loc="outside upper left", ncols=3, columnspacing=1.5)
    return figure


def owners(run: RungResult) -> Figure | None:
    """The peak by owner, as measured and as forecast, above the activations by module; None without a peak."""
    if run.peak is None:
        return None
    [row] = forecast_rows([run])
    bars = [("measured", row["measured_mib"], filled, f"{run.peak:,.1f}")]
    if row["reason"] is None:
        bars.append(("forecast", row["forecast_mib"], outlined, forecast_words(row)))
    kept = _largest(run.activations)
    rows = [len(bars), *([len(kept)] if kept else [])]
    figure = Figure(figsize=(WIDTH, 1.6 + 0.9 * bool(kept) + 0.33 * sum(rows)), layout="constrained")
    peak, *modules = figure.subplots(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for y, (_, sizes, drawn, words) in enumerate(bars):
        behind(peak, owner_bar(peak, y, sizes, drawn=drawn), y, words)
    name_bars(peak, [name for name, *_ in bars])
    peak.set_xlabel("peak allocated memory (MiB)")
    for axes in modules:
        axes.barh(range(len(kept)), kept.values(), height=0.7, **filled(OWNER_LOOKS["activations"]))
        for y, mib in enumerate(kept.values()):
            behind(axes, mib, y, f"{mib:,.1f}  {mib / sum(kept.values()):.0%}", fontsize=SMALL)
        name_bars(axes, list(kept))
        axes.set_xlabel("kept for backward by one micro-batch (MiB), by module")
    for axes in figure.axes:
        scale_bars(axes)
    explain_owners(figure)
    make_room(figure)
    return figure


def _largest(owned: dict[str, float]) -> dict[str, float]:
    """The modules that own most, and all others together."""
    named = dict(list(owned.items())[:MOST_MODULES])
    rest = sum(owned.values()) - sum(named.values())
    return named | ({OTHER: rest} if len(owned) > MOST_MODULES else {})
