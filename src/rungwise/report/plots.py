"""The pictures of a report, sized for a README."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

from .activation_plot import activations
from .forecast_plot import forecast_bars
from .profile_plot import profile_bars
from .rung_result import OWNERS, RungResult, eager_and_compiled, pairs
from .style import COLOURS, DASHES, POINTS, STYLE, WIDTH, name_bars, scale_bars

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter


def draw(rungs: list[RungResult], folder: Path) -> list[Path]:
    """Draws every picture that these rungs have the figures for. Returns the files."""
    pictures: dict[str, Callable[[list[RungResult]], Figure | None]] = {
        "ladder.png": memory_and_speed,
        "forecast.png": forecast_bars,
        "activations.png": activations,
        "loss.png": losses,
        "accumulation.png": accumulation,
        "memory_budget.png": memory_budget,
        "memory_timeline.png": timelines,
        "profile.png": profile_bars,
    }
    drawn = []
    with plt.rc_context(STYLE):
        for name, picture in pictures.items():
            figure = picture(rungs)
            path = folder / name
            if figure is None:
                path.unlink(missing_ok=True)
                continue
            figure.savefig(path)
            plt.close(figure)
            drawn.append(path)
    return drawn


def memory_and_speed(rungs: list[RungResult]) -> Figure | None:
    """Peak memory by owner beside step time with its spread: one pair of bars a rung, the first rung on top."""
    if not any(rung.ok for rung in rungs):
        return None
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(WIDTH, 1.9 + 0.5 * len(rungs)), sharey=True, layout="constrained", width_ratios=(3, 2)
    )
    for y, rung in enumerate(rungs):
        if rung.peak is None:
            left.text(0, y, f" {rung.status.replace('_', ' ')}", va="center", style="italic")
            continue
        start = 0.0
        for owner, colour in zip(OWNERS, COLOURS, strict=False):
            size = rung.memory(f"{owner}_mib")
            left.barh(
                y,
                size,
                left=start,
                color=colour,
                height=0.7,
                label=owner.replace("_", " ") if y == _first(rungs) else None,
            )
            start += size
        left.text(start, y, f" {rung.peak:,.0f}", va="center")
        if rung.step_ms is not None:
            time = rung.step_ms
            error = [[max(0, time.median - time.low)], [max(0, time.high - time.median)]]
            right.barh(y, time.median, color="#999999", height=0.7, xerr=error, ecolor="black", capsize=3)
            note = " disturbed" if time.disturbed else ""
            right.text(time.high, y, f" {time.median:,.0f}{note}", va="center")
        else:
            right.text(0, y, " not claimed", va="center", style="italic")
    name_bars(left, [rung.name for rung in rungs])
    left.set_xlabel("peak allocated memory (MiB)")
    right.set_xlabel("step time (ms), bars: p10 to p90")
    for axes in (left, right):
        scale_bars(axes, margin=0.16)
    figure.legend(loc="outside upper left", ncols=len(OWNERS), columnspacing=1.2, handlelength=1.2)
    return figure


def losses(rungs: list[RungResult]) -> Figure | None:
    """The loss of every rung over optimizer steps; rungs that agree lie on one another, so dashes differ, too."""
    shown = [rung for rung in rungs if any(loss is not None for loss in rung.losses)]
    if not shown:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, 4.5), layout="constrained")
    for n, rung in enumerate(shown):
        points = [(step, loss) for step, loss in enumerate(rung.losses, 1) if loss is not None]
        axes.plot(*zip(*points, strict=True), label=rung.name, **_line(n))
    axes.set_xlabel("optimizer step")
    axes.set_ylabel("training loss (nats a token)")
    axes.grid()
    axes.legend()
    return figure


def accumulation(rungs: list[RungResult]) -> Figure | None:
    """Peak memory and step time against accumulation steps, of the most rungs that differ in them alone."""
    family = family_of(rungs, "gradient_accumulation_steps")
    if len(family) < 2:
        return None
    rows = family[0].settings["global_batch_size"]
    return _trade_off(
        family, "gradient_accumulation_steps", f"accumulation steps (global batch {rows} rows)", log=True
    )


def memory_budget(rungs: list[RungResult]) -> Figure | None:
    """Peak memory and step time against the compiler's activation memory budget, and the eager rungs' as lines."""
    family = family_of(rungs, "activation_memory_budget")
    if len(family) < 2:
        return None
    names = {rung.name for rung in family}
    eager = [rung for rung, compiled in eager_and_compiled(rungs) if compiled.name in names and rung.peak]
    label = "activation memory budget (1: as the compiler likes, 0: recompute all)"
    return _trade_off(family, "activation_memory_budget", label, lines=list({r.name: r for r in eager}.values()))


def _trade_off(
    family: list[RungResult], setting: str, label: str, log: bool = False, lines: Sequence[RungResult] = ()
) -> Figure:
    """Memory (left) and time (right) of rungs over the one setting that they differ in; other rungs as flat lines."""
    values = [rung.settings[setting] for rung in family]
    figure, memory_axes = plt.subplots(figsize=(WIDTH, 4.5), layout="constrained")
    memory_axes.plot(values, [rung.peak for rung in family], marker="o", color=COLOURS[0], linewidth=2)
    memory_axes.set_ylabel("peak allocated memory (MiB)", color=COLOURS[0])
    memory_axes.set_xlabel(label)
    if log:
        memory_axes.set_xscale("log", base=2)
    memory_axes.set_xticks(values, [f"{value:g}" for value in values])
    memory_axes.minorticks_off()
    memory_axes.grid(axis="x")
    time_axes = memory_axes.twinx()
    time_axes.spines["right"].set_visible(True)
    timed = [(value, rung.step_ms) for value, rung in zip(values, family, strict=True) if rung.step_ms]
    for value, time in timed:
        if time.disturbed:
            time_axes.annotate("disturbed", (value, time.high), (0, 4), ha="center", **POINTS)
    if timed:
        low = [max(0, time.median - time.low) for _, time in timed]
        high = [max(0, time.high - time.median) for _, time in timed]
        time_axes.errorbar(
            [value for value, _ in timed],
            [time.median for _, time in timed],
            yerr=[low, high],
            marker="s",
            linestyle="--",
            color=COLOURS[5],
            capsize=3,
            linewidth=2,
        )
    for rung in lines:
        memory_axes.axhline(rung.peak, color=COLOURS[0], linestyle=":")
        memory_axes.annotate(f"{rung.name}: {rung.peak:,.0f} MiB", (values[0], rung.peak), (4, 4), **POINTS)
        if rung.step_ms:
            time = rung.step_ms
            time_axes.axhline(time.median, color=COLOURS[5], linestyle=":")
            # Its spread, as wide as the others' bars are long.
            time_axes.axhspan(time.low, time.high, color=COLOURS[5], alpha=0.1, linewidth=0)
            note = ", disturbed" if time.disturbed else ""
            text, place = f"{rung.name}: {time.median:,.0f} ms{note}", (values[-1], time.median)
            time_axes.annotate(text, place, (-4, 4), ha="right", **POINTS)
    for axes in (memory_axes, time_axes):
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    time_axes.set_ylabel("step time (ms), bars: p10 to p90", color=COLOURS[5])
    return figure


def family_of(rungs: list[RungResult], setting: str) -> list[RungResult]:
    """The largest set of finished rungs that differ in this setting alone, by its rising value."""
    families: dict[str, dict[str, RungResult]] = {}
    for before, after in pairs(rungs, setting, lambda *_: True):
        if before.peak is not None and after.peak is not None:
            families.setdefault(before.name, {before.name: before})[after.name] = after
    largest = max(families.values(), key=len, default={})
    return sorted(largest.values(), key=lambda rung: rung.settings[setting])


def timelines(rungs: list[RungResult]) -> Figure | None:
    """Memory over one training step: the forward's ramp, the backward's fall, the flat line under checkpointing.

    Each step is stretched to the same length, since the meter slows some more than others.
    """
    shown = [rung for rung in rungs if len(rung.timeline) > 1 and rung.ok]
    if not shown:
        return None
    figure, axes = plt.subplots(figsize=(WIDTH, 4.5), layout="constrained")
    for n, rung in enumerate(shown):
        end = rung.timeline[-1][0]
        axes.plot(
            [100 * ms / end for ms, _ in rung.timeline], [mib for _, mib in rung.timeline], label=rung.name, **_line(n)
        )
    axes.set_xlabel("part of one optimizer step (%)")
    axes.set_ylabel("allocated memory (MiB)")
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    axes.grid()
    axes.legend(loc="upper right")
    return figure


def _line(number: int) -> dict[str, object]:
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.8,
    }


def _first(rungs: list[RungResult]) -> int:
    return next(y for y, rung in enumerate(rungs) if rung.peak is not None)
