"""A run's activations as a person reads them in its summary."""

from typing import Any

from ..report.rung_result import by_module

LARGEST = 10
# Of a block that runs again, in one line.
OF_A_BLOCK = 2
LONGEST_MODULE = 32
# Before a row's names: MiB, share, tensors.
FIGURES = "{:>9} {:>6} {:>7}"


def activation_lines(activations: dict[str, Any], width: int) -> list[str]:
    """The sum, a table of the largest rows, what a checkpointed block needs, and what is not known.

    Args:
        activations: as in `result.json`.
        width: of the longest line; names are shortened to it.
    """
    if not activations:
        return []
    total, rows = activations["total_mib"], activations["rows"]
    largest = rows[:LARGEST]
    which = f"; the largest {len(largest)} of {len(rows)} rows" if len(rows) > len(largest) else ""
    lines = [f"{total:,.1f} MiB kept for backward by one micro-batch{which}"]
    modules = min(LONGEST_MODULE, max((len(row["module"]) for row in largest), default=0))
    heads = FIGURES.format("MiB", "share", "tensors")
    operators = width - len(heads) - modules - 3
    lines.append(f"{heads}  {'module':<{modules}} operator")
    for row in largest:
        figures = FIGURES.format(f"{row['mib']:,.1f}", f"{row['mib'] / total:.1%}", f"{row['tensors']:,}")
        module, operator = _short(row["module"], modules), _short(row["operator"], operators)
        lines.append(f"{figures}  {module:<{modules}} {operator}")
    if again := activations["recompute"]:
        sizes = by_module(again["rows"])
        most = ", ".join(
            f"{_short(name, LONGEST_MODULE)} {mib:,.1f}" for name, mib in list(sizes.items())[:OF_A_BLOCK]
        )
        text = f"a block that runs again ({again['module']}) needs {again['total_mib']:,.1f} MiB: {most}"
        lines.append(_short(text, width))
    return lines + [_short(f"not known: {what}", width) for what in activations["unknown"]]


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."
