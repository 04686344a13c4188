"""What a person sees of an answer: what was asked, the candidates, the one to take, what would fit instead."""

import shlex
from collections import Counter
from collections.abc import Sequence

import torch

from ..model.model import empty_model
from .advice import Advice
from .candidates import Question
from .choice import Choice, Row
from .memory import LEFT_OUT
from .trial import Fastest, Measured

HEADS = ("", "", "micro-batches", "peak MiB", "params", "grads", "optimizer", "activations", "extra FLOPs")
SHOWN = ("parameters", "gradients", "optimizer_state", "activations")
OF_NVIDIA = "the forecast is of NVIDIA's kernels; AMD's allocate otherwise, by an amount that is not known"


def question_lines(question: Question) -> list[str]:
    """The model, its batch, and the memory that there is."""
    base, room = question.base, question.room
    model = empty_model(base, question.config)
    count = sum(parameter.numel() for parameter in model.parameters())
    several = f", {question.processes} processes" if question.processes > 1 else ""
    lines = [
        f"{type(model).__name__}, {_millions(count)} parameters; a step is {base.global_batch_size:,} rows of "
        f"{base.block_size:,} tokens{several}",
        f"there are {room.free:,.0f} MiB: {room.mib:,.0f} ({room.words}) less {room.reserve:,.0f} (--reserve) for "
        f"what no forecast counts: {LEFT_OUT[room.device]}",
    ]
    if room.device == "cuda" and room.capability is None and (not room.here or torch.version.hip):
        lines.append(OF_NVIDIA)
    return lines


def table(rows: Sequence[Row], chosen: Row | None, exact: bool) -> list[str]:
    """A line for each candidate; `*` marks the first that fits. Not `exact`, extra FLOPs are the most there can be.

    Behind them what such forecasts have to be called, and of those that have none a line for each reason.
    """
    body = [_cells(row, row is chosen, exact) for row in rows if row.forecast is not None]
    widths = [max(len(line[n]) for line in (HEADS, *body)) for n in range(len(HEADS))]
    lines = []
    for line in (HEADS, *body) if body else ():
        cells = [
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    reasons = Counter(row.reason for row in rows if row.forecast is None)
    notes = dict.fromkeys(row.forecast.note for row in rows if row.forecast and row.forecast.note)
    return [*lines, *notes, *(f"no forecast of {count} candidates: {reason}" for reason, count in reasons.items())]


def chosen_lines(row: Row) -> list[str]:
    """The answer, and the command to take away."""
    changes = "".join(f"; {change}" for change in row.candidate.level.changes)
    return [
        f"* fits first, {row.free - row.forecast.peak_mib:,.1f} MiB below what there is{changes}:",
        f"  {shlex.join(row.candidate.rung().command())}",
    ]


def nothing_lines(choice: Choice, found: Sequence[Advice]) -> list[str]:
    """By how much nothing fits, and what would."""
    least = choice.least()
    if least is None:
        return ["nothing can be said of what fits"]
    over = least.forecast.peak_mib - choice.free
    lines = [f"nothing fits: {least.candidate.name} takes least, {over:,.1f} MiB more than there is"]
    if found:
        lines += ["with it", *(f"  {_advice(advice)}" for advice in found)]
    return lines


def left_out_lines(question: Question) -> list[str]:
    """What was not tried, and why."""
    return [f"not tried: {reason}" for reason in question.left_out]


def measured_lines(row: Row, found: Sequence[Measured]) -> list[str]:
    """Forecast against measured."""
    lines = [f"{row.candidate.name}, MiB     forecast    measured    error"]
    width = len(lines[0]) - len("    forecast    measured    error")
    for figure in found:
        error = "" if figure.error is None else f"{figure.error:+.2f}%"
        name = figure.name.replace("_", " ").ljust(width)
        lines.append(f"{name}{figure.forecast:12,.1f}{figure.measured:12,.1f}{error:>9}")
    return lines


def fastest_lines(found: Fastest | None, rows: Sequence[Row]) -> list[str]:
    """Who is fastest, or has the shortest median where it is not told apart from others; the command to take away."""
    if found is None:
        return ["none of them has a speed"]
    step = found.rung.step_ms
    disturbed = f", disturbed: {step.disturbed}" if step.disturbed else ""
    what = "the shortest median" if found.undecided else "the fastest"
    lines = [f"{what}: {found.rung.name}, {step.median:,.0f} ms a step ({step.low:,.0f}–{step.high:,.0f}){disturbed}"]
    lines += [f"  not told apart from {name}: {why}" for name, why in found.undecided.items()]
    [row] = [row for row in rows if row.candidate.name == found.rung.name]
    return [*lines, f"  {shlex.join(row.candidate.rung().command())}"]


def _cells(row: Row, chosen: bool, exact: bool) -> tuple[str, ...]:
    candidate, level = row.candidate, row.candidate.level
    settings = candidate.settings
    head = (
        "*" if chosen else "",
        candidate.name,
        f"{settings.gradient_accumulation_steps} x {settings.micro_batch_size}",
    )
    owners = [f"{row.forecast.owners[owner]:,.1f}" for owner in SHOWN]
    extra = "to compare" if level.reference else f"{'' if exact or not level.share else '<= '}{level.share:.1%}"
    return (*head, f"{row.forecast.peak_mib:,.1f}", *owners, extra)


def _advice(advice: Advice) -> str:
    row = advice.row
    if row.forecast is None:
        return f"{advice.words}: no forecast: {row.reason}"
    verdict = "fits" if row.fits else f"{row.forecast.peak_mib - row.free:,.1f} too much"
    return f"{advice.words}: {row.forecast.peak_mib:,.1f} MiB, {verdict}"


def _millions(count: int) -> str:
    return f"{count / 1e9:,.2f} billion" if count >= 1e9 else f"{count / 1e6:,.1f} million"
