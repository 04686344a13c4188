"""Which column of a data set holds the text: one is taken where there is one alone, else the user is asked."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import datasets
import pyarrow as pa

from ..errors import SettingsError
from .files import TEXT, Number, Unreadable, kind_in_words

# What a column holds; any other kind is said in words, and is no text.
WORDS, NUMBERS, NOTHING = "text", "numbers", "nothing"
# How a name in a header looks, and no sentence does.
NAME = re.compile(r"[^\W\d][\w.-]*")


def choose(kinds: Mapping[str, str], asked: str | None, source: object) -> str:
    """The column with the text: the one asked for, else `text`, else the only one with text, else the only one.

    Args:
        kinds: what each column holds.
        asked: the name that the user gave.
        source: what the columns are of, for messages.

    Raises:
        SettingsError: there is no such column, it holds no text, or several might be meant.
    """
    plain = [name for name, kind in kinds.items() if kind in (WORDS, NUMBERS, NOTHING)]
    if asked and asked not in plain:
        why = f"is {kinds[asked]} there, no text" if asked in kinds else "is no column of it"
        remedy = f"use one of {', '.join(plain)}" if plain else "give data with a column of text"
        raise SettingsError([f"--text_column {asked}: {source} has no such text column ({asked} {why}); {remedy}"])
    if asked:
        return asked
    if TEXT in plain:
        return TEXT
    likely = [name for name in plain if kinds[name] == WORDS] or plain
    if len(likely) == 1:
        return likely[0]
    if likely:
        names = ", ".join(likely)
        raise SettingsError([f"{source}: which column holds the text? name one of them in --text_column: {names}"])
    nested = "; ".join(f"{name} is {kind}" for name, kind in kinds.items())
    raise SettingsError(
        [f"{source}: no column holds text ({nested}); save the text that is to be learnt as a column of its own"]
    )


def kinds_of_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What each column holds, of the first rows."""
    found: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            kind = _kind(value)
            # Beside text, a number is text, too; what is nested stays so.
            order = [NOTHING, NUMBERS, WORDS]
            before = found.get(name, NOTHING)
            known = order.index(before) if before in order else len(order)
            found[name] = kind if (order.index(kind) if kind in order else len(order)) > known else before
    return found


def kinds_of_cells(rows: list[dict[str, str]]) -> dict[str, str]:
    """What each column of a CSV file holds, of the first rows: numbers are known by their look."""
    return {
        name: NUMBERS if all(_is_number(row[name]) for row in rows) and any(row[name] for row in rows) else WORDS
        for name in (rows[0] if rows else {})
    }


def kinds_of_features(features: datasets.Features) -> dict[str, str]:
    """What each column holds, as `datasets` describes it."""
    return {name: _kind_of_feature(feature) for name, feature in features.items()}


def kinds_of_schema(schema: pa.Schema) -> dict[str, str]:
    """What each column of a parquet or Arrow file holds."""
    return kinds_of_features(datasets.Features.from_arrow_schema(schema))


def check_header(rows: list[dict[str, str]], asked: str | None) -> None:
    """Asks whether the first row of a CSV file names its columns, where it might be the first of the texts.

    Raises:
        Unreadable: it does not look like names, or no other than the cells below it.
    """
    header = list(rows[0]) if rows else []
    if not header or asked or TEXT in header:
        return
    others = any(cell and not NAME.fullmatch(cell) for row in rows for cell in row.values())
    if not others or not all(NAME.fullmatch(name or "_") for name in header):
        shown = ", ".join(name if len(name) < 40 else f"{name[:37]}..." for name in header)
        raise Unreadable(
            f"its first row ({shown}) may be no header, and its text would be lost; name its column in --text_column, "
            "or put a first row with names, as text, above it"
        )


def _kind(value: Any) -> str:
    if value is None:
        return NOTHING
    if isinstance(value, Number | bool | int | float):
        return NUMBERS
    return WORDS if isinstance(value, str) else kind_in_words(value)


def _is_number(cell: str) -> bool:
    try:
        float(cell or "0")
    except ValueError:
        return False
    # Words that Python reads as numbers, as in nan.
    return not any(letter.isalpha() for letter in cell.lower().replace("e", ""))


def _kind_of_feature(feature: Any) -> str:
    dtype = getattr(feature, "dtype", None) if isinstance(feature, datasets.Value) else None
    if dtype in ("string", "large_string", "string_view"):
        return WORDS
    if dtype is not None and (dtype == "bool" or dtype.startswith(("int", "uint", "float", "decimal"))):
        return NUMBERS
    if dtype == "null":
        return NOTHING
    if isinstance(feature, datasets.List | list):
        inner = feature.feature if isinstance(feature, datasets.List) else feature[0]
        return kind_in_words([dict.fromkeys(inner)] if isinstance(inner, dict) else [])
    if isinstance(feature, dict):
        return kind_in_words(feature)
    return f"of type {dtype or type(feature).__name__}"
