"""Where a step's time goes, of the rungs that had an untimed step to profile."""

from typing import Any

from .rung_result import RungResult

TITLE = "Where a step's time goes"
# In the order of the bars; keyed as in `result.json`, without the unit.
LABELS = {
    "products": "products",
    "attention": "attention",
    "fused": "fused by the compiler",
    "loss": "loss",
    "normalisation": "normalisation",
    "activation": "activation",
    "optimizer": "optimizer",
    "data": "data",
    "rest": "rest",
}


def profile_rows(rungs: list[RungResult]) -> list[dict[str, Any]]:
    """One row a rung that ran to its end: the ms of the profiled step and of each class, or None and a `reason`."""
    return [
        {
            "rung": rung.name,
            "step_ms": rung.profile.get("step_ms"),
            **{f"{name}_ms": rung.profile.get(f"{name}_ms") for name in LABELS},
            "reason": rung.profile.get("reason"),
        }
        for rung in rungs
        if rung.ok and rung.profile
    ]


def known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows whose rungs had a step profiled."""
    return [row for row in rows if row["step_ms"] is not None]


def shown_classes(rows: list[dict[str, Any]]) -> list[str]:
    """The classes that any of the rows has time in."""
    return [name for name in LABELS if any(row[f"{name}_ms"] for row in rows)]


def profile_section(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a section of a Markdown page: their shares, and why others are not known. Empty without any."""
    profiled = known(rows)
    if not profiled:
        return []
    classes = shown_classes(profiled)
    heads = ("rung", "profiled step ms", *(LABELS[name] for name in classes))
    lines = [f"## {TITLE}", "", f"| {' | '.join(heads)} |", f"| --- {'| ---: ' * (len(heads) - 1)}|"]
    for row in profiled:
        # Nothing is not 0%: in compiled code a class may hide among what was fused.
        spent = (row[f"{name}_ms"] for name in classes)
        shares = (f"{ms / row['step_ms']:.1%}" if ms else "" for ms in spent)
        lines.append(f"| {' | '.join((row['rung'], format(row['step_ms'], ',.0f'), *shares))} |")
    reasons = [f"- {row['rung']}: not known, {row['reason']}" for row in rows if row["step_ms"] is None]
    return [*lines, "", *reasons, *([""] if reasons else []), NOTES, ""]


NOTES = """\
Of one untimed step under the profiler, which makes it longer than a timed one, most of all a step of small operators.
Compiled code shows what it calls; the rest of it is what the compiler fused. The rest of a step is all else: other
operators, Python between them, waiting."""
