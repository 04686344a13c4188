"""Compiled rungs, each beside the eager rung that differs from it in compiling alone: costs, and whether it paid."""

from typing import Any

from .rung_result import RungResult, break_even, eager_and_compiled
from .table import longer, step_columns, step_words

HEADS = (
    "compiled rung",
    "eager rung",
    "compile s (cache)",
    "graphs",
    "graph breaks",
    "recompiles",
    "peak MiB",
    "step ms",
    "break-even",
)


def compiled_rows(rungs: list[RungResult]) -> list[dict[str, Any]]:
    """One row a compiled rung that ran to its end; what needs an eager rung is None where no such rung is there."""
    twins = {compiled.name: eager for eager, compiled in eager_and_compiled(rungs)}
    rows = []
    for rung in (rung for rung in rungs if rung.ok and rung.settings.get("torch_compile")):
        eager = twins.get(rung.name)
        eager = eager if eager and eager.ok else None
        steps, verdict = None, "no eager rung differs from it in compiling alone"
        if eager and rung.compile_seconds is not None:
            steps, verdict = break_even(rung.compile_seconds, eager.step_ms, rung.step_ms)
        notes = rung.rounds[0]["compile"]
        rows.append(
            {
                "rung": rung.name,
                "eager": eager.name if eager else None,
                "seconds": rung.compile_seconds,
                "cache": notes.get("cache"),
                **{name: notes.get(name) for name in ("graphs", "graph_breaks", "recompiles")},
                **{name: notes.get(name, []) for name in ("graph_break_reasons", "recompile_reasons")},
                "peak_mib": rung.peak,
                "eager_peak_mib": eager.peak if eager else None,
                **step_columns(rung.step_ms),
                **{f"eager_{name}": value for name, value in step_columns(eager and eager.step_ms).items()},
                "step_vs_eager": longer(eager and eager.step_ms, rung.step_ms),
                "break_even_steps": steps,
                "break_even": verdict,
            }
        )
    return rows


def compiled_lines(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as a Markdown table, and under it the reasons of graph breaks and recompiles."""
    lines = [f"| {' | '.join(HEADS)} |", "| --- | --- " + "| ---: " * (len(HEADS) - 3) + "| --- |"]
    for row in rows:
        cells = [
            row["rung"],
            row["eager"] or "",
            "" if row["seconds"] is None else f"{row['seconds']:,.1f} ({row['cache']})",
            *("" if row[name] is None else str(row[name]) for name in ("graphs", "graph_breaks", "recompiles")),
            memory_words(row),
            _step_words(row),
            row["break_even"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    reasons = [
        f"- {row['rung']}, {kind.replace('_', ' ')}: {reason}"
        for row in rows
        for kind in ("graph_break", "recompile")
        for reason in row[f"{kind}_reasons"]
    ]
    return [*lines, *([""] if reasons else []), *reasons]


def memory_words(row: dict[str, Any]) -> str:
    """How compiling changed the peak: compilers fuse and recompute, but also plan buffers of their own."""
    before, after = row["eager_peak_mib"], row["peak_mib"]
    if before is None or after is None:
        return "" if after is None else f"{after:,.1f}"
    change = after / before - 1
    text = f"{before:,.1f} → {after:,.1f} ({change:+.1%})"
    return f"{text}, {'unchanged' if f'{before:.1f}' == f'{after:.1f}' else 'lower' if change < 0 else 'higher'}"


def _step_words(row: dict[str, Any]) -> str:
    eager = {name.removeprefix("eager_"): value for name, value in row.items() if name.startswith("eager_step_ms")}
    before, after = step_words(eager), step_words(row)
    if not before or not after:
        return after
    return f"{before} → {after}, {'≈' if row['step_vs_eager'] is None else format(row['step_vs_eager'], '+.1%')}"
