"""A bench in words: `bench.md`, the section of the README, and what the terminal shows."""

from collections.abc import Sequence

from ..report.checks import Check, tally
from ..report.sections import source
from .checks import Bench, run_checks
from .figures import ENGINES, Ratio, Rung

HEADS = (
    "rung",
    "tokens/s",
    "in times the bare loop's",
    "in times Trainer's",
    "peak MiB",
    "of the bare loop",
    "of Trainer",
)

NOTES = """\
Tokens/s are those of `recipes/ablate.py`, all that it does beside training included, and in times those of the same
training by a bare PyTorch loop (`src/rungwise/bench/bare.py`) and by `transformers.Trainer` with the same techniques.
Each engine is started in {heats} heats on each rung, with {threads} threads on the CPU; they take turns of {steps}
steps, {rounds} in a heat. A ratio is the median of all rounds, with their 10th and 90th percentile. Where it is
disturbed, rounds were too unequal, and nothing is decided. The peak is the allocator's, over building the model and
one whole step that is not among the timed ones."""


def page(bench: Bench) -> str:
    """`bench.md`: the table, what it means, losses, the checks, and the flags of each rung."""
    notes = NOTES.format(
        steps=bench.steps, heats=bench.heats, rounds=bench.rounds, threads=bench.environment["threads"]
    )
    lines = ["# Bench", "", *_head(bench), "", notes, "", *losses(bench.rungs), "", "## Checks", ""]
    lines += ["| check | rung | verdict | measured | bound |", "| --- | --- | --- | --- | --- |"]
    for check in run_checks(bench):
        cells = (check.claim, *check.rungs, f"**{check.verdict}**", check.measured, check.bound)
        lines.append(f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |")
    rungs = [_flags(rung) for rung in (*bench.rungs, bench.least)]
    return "\n".join([*lines, "", "## Rungs", "", *rungs, ""])


def section(bench: Bench) -> str:
    """What the README shows: the table, its source, and how the checks came out."""
    checks = run_checks(bench)
    left = [f"- {line}" for line in not_passed(checks)]
    return "\n".join([*_head(bench), "", f"Checks: {tally(checks)}.", *([""] if left else []), *left])


def _head(bench: Bench) -> list[str]:
    return [*table(bench), "", source("make bench", bench.environment, bench.seconds), "", defaults(bench)]


def table(bench: Bench) -> list[str]:
    """In Markdown, a line a rung."""
    lines = [f"| {' | '.join(HEADS)} |", "| --- " + "| ---: " * (len(HEADS) - 1) + "|"]
    for rung in bench.rungs:
        rate = rung.tokens_per_second("ours")
        cells = [
            rung.name,
            "failed" if rate is None else f"{rate:,.0f}",
            *(_times(rung.speed("ours", engine)) if engine in rung.laps else "" for engine in ("bare", "trainer")),
            *(_figure(rung, engine, "peak_mib", 1) for engine in ("ours", "bare", "trainer")),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def defaults(bench: Bench) -> str:
    """The fastest rung and the one of the least memory beside a Trainer that was asked for nothing, in a sentence."""
    fastest, least = bench.rungs[-1], bench.least.lap("ours")
    times, trainer = fastest.speed("ours", "trainer_default"), fastest.lap("trainer_default")
    if times is None or trainer is None or least is None:
        return "There are no figures of what a Trainer does by its defaults, or of the least memory."
    return (
        f"{fastest.name} has {_times(times)} times the tokens/s of a Trainer that is asked for nothing, and "
        f"{bench.least.name} {least.peak_mib:,.1f} MiB of its {trainer.peak_mib:,.1f}, "
        f"{least.peak_mib / trainer.peak_mib:.1%}."
    )


def losses(rungs: Sequence[Rung]) -> list[str]:
    """In Markdown, the loss of each engine's last weights on each rung."""
    engines = ("ours", "bare", "trainer")
    heads = " | ".join(ENGINES[engine] for engine in engines)
    lines = [f"| loss after the last step | {heads} |", "| --- | ---: | ---: | ---: |"]
    for rung in rungs:
        cells = [_figure(rung, engine, "loss", 6) for engine in engines]
        lines.append(f"| {rung.name} | {' | '.join(cells)} |")
    return lines


def not_passed(checks: Sequence[Check]) -> list[str]:
    """A line for each check that did not pass."""
    return [line(check) for check in checks if check.verdict != "PASS"]


def line(check: Check) -> str:
    """A check with its figure and its bound."""
    return f"{check.verdict} {', '.join(check.rungs)}: {check.claim}: {check.measured}; {check.bound}"


def _flags(rung: Rung) -> str:
    """A rung's flags, and whose kernels `ablate.py` had where they were not PyTorch's."""
    lap = rung.lap("ours")
    others = [name for name, kernels in lap.kernels.items() if kernels != "pytorch"] if lap else []
    words = "".join(f"; {ENGINES['ours']} computed {name} products by kernels of its own" for name in others)
    return f"- {rung.name}: `{rung.flags}`{words}"


def _times(ratio: Ratio | None) -> str:
    if ratio is None:
        return "failed"
    return f"{ratio} disturbed" if ratio.disturbed else str(ratio)


def _figure(rung: Rung, engine: str, name: str, digits: int) -> str:
    """Of an engine that failed, that it did; of one that was not asked, nothing."""
    if lap := rung.lap(engine):
        return f"{getattr(lap, name):,.{digits}f}"
    return "failed" if engine in rung.laps else ""
