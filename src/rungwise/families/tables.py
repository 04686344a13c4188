"""Tables of families in Markdown: how each came out, and counts."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .families import Family

# In how many cells words stand that are said once, below the table.
MANY = 3


@dataclass(frozen=True)
class Cell:
    """How one technique came out on one family, and how far its losses were from fp32's."""

    text: str
    distance: float | None = None


@dataclass(frozen=True)
class Tried:
    """How one family came out: `ok`, `refused` or `failed` in fp32, and each technique."""

    status: str
    reason: str = ""
    draws: bool = False
    trained: float = 1.0
    cells: dict[str, Cell] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)


def has_failed(tried: Tried) -> bool:
    """Whether anything came out otherwise than `ok`, skipped or refused."""
    return tried.status == "failed" or any(cell.text.startswith("failed") for cell in tried.cells.values())


def in_words(tried: Tried) -> str:
    """One line on how a family came out."""
    if tried.status != "ok":
        return f"{tried.status}: {tried.reason}"
    others = [f"{name} {cell.text}" for name, cell in tried.cells.items() if not cell.text.startswith("ok")]
    return "; ".join(["ok", *others])


def table_of_named(rows: dict[Family, Tried], techniques: Sequence[str]) -> str:
    """The table of the families by name, and how near the losses were."""
    lines = [f"| family | model class | {' | '.join(techniques)} |", f"| --- | --- |{' --- |' * len(techniques)}"]
    notes = _notes(rows)
    for family, tried in rows.items():
        cells = [
            _text(family, tried.cells.get(name), notes) if tried.cells else in_words(tried) for name in techniques
        ]
        lines.append(f"| {family.name} | `{family.model_class}` | {' | '.join(map(_cell, cells))} |")
    return "\n".join([*lines, "", *_note_lines(notes), *_distances(rows, techniques)])


def whole_table(rows: dict[Family, Tried], techniques: Sequence[str], where: str) -> str:
    """The file with every model type."""
    lines = [
        "# Every causal language model of Transformers",
        "",
        "Each is made small from its default config alone and trained for four optimizer steps in fp32, and so with "
        "each technique, as in [Your own model and data](own_model.md#families-of-models). `refused` is what a run "
        "says before its first step, or after it if the loss is not one of all tokens of a step.",
        "",
        counts(rows, techniques),
        "",
        f"| model type | model class | fp32 | {' | '.join(techniques)} |",
        f"| --- | --- | --- |{' --- |' * len(techniques)}",
    ]
    notes = _notes(rows)
    for family, tried in sorted(rows.items(), key=lambda item: item[0].name):
        fp32 = in_words(tried) if tried.status != "ok" else f"ok{', draws random numbers' * tried.draws}"
        fp32 += f", trains {tried.trained:.1%}" * (tried.trained < 1)
        texts = [fp32, *(_text(family, tried.cells.get(name), notes) for name in techniques)]
        lines.append(f"| {family.name} | `{family.model_class}` | {' | '.join(map(_cell, texts))} |")
    return "\n".join([*lines, "", *_note_lines(notes), *_distances(rows, techniques), "", where, ""])


def counts(rows: dict[Family, Tried], techniques: Sequence[str]) -> str:
    """How many model types came out how, in a paragraph."""
    trained = [tried for tried in rows.values() if tried.status == "ok"]
    words = [f"Of {counted(len(rows), 'model type')} {len(trained)} are trained"]
    for name in techniques:
        kinds = Counter(tried.cells[name].text.partition(":")[0] for tried in trained)
        words.append(f"{name}: {', '.join(f'{number} {kind}' for kind, number in kinds.most_common())}")
    for status in ("refused", "failed"):
        kinds = Counter(_kind(family, tried) for family, tried in rows.items() if tried.status == status)
        words += [f"{number} {status}: {kind}" for kind, number in kinds.most_common()]
    return "; ".join(words) + "."


def _notes(rows: dict[Family, Tried]) -> dict[str, int]:
    """Numbers of the words that stand in many cells, but for whom they are said of: they are said once."""
    texts = Counter(_of_it(family, cell.text) for family, tried in rows.items() for cell in tried.cells.values())
    return {text: number for number, text in enumerate((t for t in texts if ":" in t and texts[t] >= MANY), 1)}


def _note_lines(notes: dict[str, int]) -> list[str]:
    lines = [f"({number}) {text.partition(': ')[2]}" for text, number in notes.items()]
    return [line for one in lines for line in (one, "")]


def _text(family: Family, cell: Cell | None, notes: dict[str, int]) -> str:
    """What a cell says, or its first word and the number of the note that says the rest."""
    if cell is None:
        return ""
    number = notes.get(_of_it(family, cell.text))
    return f"{cell.text.partition(':')[0]} ({number})" if number else cell.text


def _of_it(family: Family, text: str) -> str:
    return re.sub(rf"\b({family.model_class}|{family.model_type})\b", "it", text)


def _kind(family: Family, tried: Tried) -> str:
    """What a refusal says, without whom it says it of and without particulars."""
    return re.split("[:;,]", _of_it(family, tried.reason))[0]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _distances(rows: dict[Family, Tried], techniques: Sequence[str]) -> list[str]:
    words = []
    for name in techniques:
        cells = [tried.cells[name] for tried in rows.values() if tried.cells]
        known = [cell.distance for cell in cells if cell.distance is not None]
        words += [f"{name} {max(known):.1e}{' (step 1)' * (name == 'bf16')}"] if known else []
    return [f"Largest distance of a loss from fp32's, relative to it: {', '.join(words)}."] if words else []


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
