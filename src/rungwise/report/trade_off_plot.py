"""Pictures of one setting's trade: memory and time over accumulation steps, or over the compiler's memory budget."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from .rung_result import RungResult, eager_and_compiled, pairs
from .spread import Spread
from .style import COLOURS, PLAIN, WIDTH, name_fewer, number, wrapped

MEMORY, TIME = COLOURS[0], COLOURS[5]
DISTURBED = {"marker": "X", "markersize": 11, "color": "black", "linestyle": "", "zorder": 4}


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
    figure = Figure(figsize=(WIDTH, 4.6 + 0.24 * len(lines)), layout="constrained")
    memory = figure.subplots()
    time = memory.twinx()
    time.spines["right"].set_visible(True)
    memory.set_xlabel(label)
    if log:
        memory.set_xscale("log", base=2)
    memory.set_xticks(values, [f"{value:.3g}" for value in values])
    memory.minorticks_off()
    memory.grid(axis="x")
    [solid] = memory.plot(values, [rung.peak for rung in family], marker="o", color=MEMORY, linewidth=2)
    handles = {"peak allocated memory (left)": solid}
    timed = [(value, rung.step_ms) for value, rung in zip(values, family, strict=True) if rung.step_ms]
    if timed:
        handles["step time (right), p10 to p90"] = _times(time, timed)
    if disturbed := [(value, spread.median) for value, spread in timed if spread.disturbed]:
        [cross] = time.plot(*zip(*disturbed, strict=True), **DISTURBED)
        handles["disturbed: no speed is claimed"] = cross
    for rung in lines:
        words, line = _flat(memory, time, rung)
        handles[words] = line
    for axes, colour, words in (
        (memory, MEMORY, "peak allocated memory (MiB)"),
        (time, TIME, "step time (ms)"),
    ):
        axes.set_ylim(0, 1.1 * axes.dataLim.y1)
        axes.yaxis.set_major_formatter(PLAIN)
        axes.set_ylabel(words, color=colour)
    figure.legend(handles.values(), handles, loc="outside upper left", ncols=1 if lines else 2, columnspacing=1.2)
    name_fewer(memory)
    return figure


def _times(axes: Axes, timed: list[tuple[float, Spread]]) -> ErrorbarContainer:
    """Step times over a setting, with their spreads."""
    low = [max(0, spread.median - spread.low) for _, spread in timed]
    high = [max(0, spread.high - spread.median) for _, spread in timed]
    look = {"marker": "s", "linestyle": "--", "color": TIME, "capsize": 3, "linewidth": 2}
    values, medians = zip(*((value, spread.median) for value, spread in timed), strict=True)
    return axes.errorbar(values, medians, yerr=[low, high], **look)


def _flat(memory: Axes, time: Axes, rung: RungResult) -> tuple[str, Line2D]:
    """A rung without the setting as a flat line on each axis, its spread as a band. Returns what the legend says."""
    line = memory.axhline(rung.peak, color=MEMORY, linestyle=":")
    words = f"{wrapped(rung.name, 40, lines=1)}: {number(rung.peak)} MiB"
    if rung.step_ms:
        time.axhline(rung.step_ms.median, color=TIME, linestyle=":")
        time.axhspan(rung.step_ms.low, rung.step_ms.high, color=TIME, alpha=0.1, linewidth=0)
        words += f", {number(rung.step_ms.median)} ms{' disturbed' if rung.step_ms.disturbed else ''}"
    return words, line


def family_of(rungs: list[RungResult], setting: str) -> list[RungResult]:
    """The largest set of finished rungs that differ in this setting alone, by its rising value."""
    families: dict[str, dict[str, RungResult]] = {}
    for before, after in pairs(rungs, setting, lambda *_: True):
        if before.peak is not None and after.peak is not None:
            families.setdefault(before.name, {before.name: before})[after.name] = after
    largest = max(families.values(), key=len, default={})
    return sorted(largest.values(), key=lambda rung: rung.settings[setting])
