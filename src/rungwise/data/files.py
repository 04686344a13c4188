"""What stands in a file with text, exactly as it was written.

Nothing is inferred of a value: a cell `NA`, a number 007 and a string that looks like a date stay what they are.
"""

import bz2
import csv
import gzip
import json
import lzma
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

OPENERS: dict[str, Callable[..., IO[Any]]] = {
    "gzip": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
    "lzma": lzma.open,
}
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
PEEKED_ROWS = 100
# About so many bytes, or values, are read at a time.
CHUNK, BATCH = 2**22, 1000
# Text column of a file that has none by name: plain text, or a JSON list of strings.
TEXT = "text"


class Unreadable(ValueError):
    """A file cannot be read as text; the message has the reason and the remedy."""


class Number(str):
    """A number, true or false, as it was written."""


@dataclass(frozen=True)
class Form:
    """How a file is read."""

    reader: str
    compression: str | None = None
    delimiter: str | None = None
    # Of plain text: its lines end as on Windows, and are read with the ends of all others.
    crlf: bool = False

    def __str__(self) -> str:
        parts = [self.reader]
        parts += [f"delimiter {DELIMITERS[self.delimiter]}"] if self.delimiter else []
        parts += [self.compression] if self.compression else []
        parts += ["CRLF read as LF"] if self.crlf else []
        return ", ".join(parts)


def opened(path: str, form: Form, newline: str | None = None) -> IO[str]:
    """The file as text. A mark of byte order at its start is no part of the text."""
    opener = OPENERS.get(form.compression or "", open)
    return opener(path, "rt", encoding="utf-8-sig", newline=newline)


def values_of(path: str, form: Form) -> Iterator[dict[str, Any]]:
    """The rows of a JSON or CSV file, by column; of CSV, each value is text.

    Raises:
        ValueError: what is wrong with the file, and where.
    """
    return _json_rows(path, form) if form.reader == "json" else csv_rows(path, form, form.delimiter or ",")


def schema_of(path: str, form: Form) -> pa.Schema:
    """The columns of a parquet or an Arrow file."""
    if form.reader == "parquet":
        return pq.read_schema(path)
    with _arrow(path) as reader:
        return reader.schema


def texts_of(path: str, form: Form, column: str, joined: bool) -> Iterator[tuple[list[str | None], list[bool]]]:
    """The texts of a file in batches, and of each whether a document ends with it.

    Each value of `column` is a document. Lines of plain text are texts without their ends; `joined`, with them, and
    together they are one document.
    """
    if form.reader == "text":
        yield from _lines(path, form, joined)
        return
    read = _columnar if form.reader in ("parquet", "arrow") else _by_rows
    for texts in read(path, form, column):
        yield texts, [True] * len(texts)


def as_text(value: Any, column: str) -> str | None:
    """A value as text: a number as it was written, and nothing where there is none.

    Raises:
        ValueError: it is nested.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict | list | tuple | bytes):
        raise Unreadable(f"{column} is {kind_in_words(value)}, no text; save its text as a column of its own")
    return json.dumps(value) if isinstance(value, bool) else str(value)


def kind_in_words(value: Any) -> str:
    """What a value is that is no text."""
    if isinstance(value, list | tuple):
        turn = value[0] if value else None
        return "a list of turns" if isinstance(turn, dict) and {"role", "from", "content"} & set(turn) else "a list"
    return {dict: "an object", bytes: "bytes", Number: "a number"}.get(type(value), type(value).__name__)


def csv_rows(path: str, form: Form, delimiter: str) -> Iterator[dict[str, str]]:
    """The rows of a CSV file by column, their cells parted by `delimiter`; raises as `values_of`."""
    # A text may be longer than what the module takes for a mistake.
    csv.field_size_limit(sys.maxsize)
    with opened(path, form, newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = next(reader, [])
            if len(set(header)) < len(header):
                raise Unreadable(f"its first row ({', '.join(header)}) names a column twice; give each its name")
            for cells in reader:
                if len(cells) > len(header) or 0 < len(cells) < len(header):
                    raise Unreadable(
                        f"line {reader.line_num} has {len(cells)} cells, the header {len(header)}; "
                        "put texts with a delimiter in quotes"
                    )
                yield dict(zip(header, cells or [""] * len(header), strict=True))
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num}: {error}") from None


def _json_rows(path: str, form: Form) -> Iterator[dict[str, Any]]:
    with opened(path, form, newline="\n") as file:
        first = next((line for line in file if line.strip()), "")
    with opened(path, form, newline="\n") as file:
        items = _list_items(file) if first.lstrip().startswith("[") else _line_items(file)
        for number, item in items:
            if not isinstance(item, dict | str) or isinstance(item, Number):
                raise Unreadable(f"row {number} is no JSON object with a column of text, but {kind_in_words(item)}")
            yield {TEXT: item} if isinstance(item, str) else item


def _list_items(file: IO[str]) -> Iterator[tuple[int, Any]]:
    yield from enumerate(_parsed(file.read(), "it"), 1)


def _line_items(file: IO[str]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            yield number, _parsed(line, f"line {number}")


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number)
    except json.JSONDecodeError as error:
        raise Unreadable(f"{where} is not JSON ({error.msg}); give one object a line, or one list of them") from None


def _by_rows(path: str, form: Form, column: str) -> Iterator[list[str | None]]:
    rows = values_of(path, form)
    while batch := list(islice(rows, BATCH)):
        # An object may lack a value; a table that lacks the column is another one than the first of its folder.
        if form.reader == "csv" and column not in batch[0]:
            raise Unreadable(f"{Path(path).name} has no column {column}; give each file the same first row")
        yield [as_text(row.get(column), column) for row in batch]


def _columnar(path: str, form: Form, column: str) -> Iterator[list[str | None]]:
    if form.reader == "parquet":
        batches = pq.ParquetFile(path).iter_batches(BATCH, columns=[column])
        yield from ([as_text(value, column) for value in batch.column(0).to_pylist()] for batch in batches)
        return
    with _arrow(path) as reader:
        for batch in reader:
            yield [as_text(value, column) for value in batch.column(column).to_pylist()]


def _arrow(path: str) -> pa.RecordBatchReader:
    """An Arrow file as a stream of batches, whichever of its two kinds it is."""
    file = pa.memory_map(path)
    try:
        return pa.ipc.open_stream(file)
    except pa.ArrowInvalid:
        table = pa.ipc.open_file(file)
        return pa.RecordBatchReader.from_batches(
            table.schema, (table.get_batch(number) for number in range(table.num_record_batches))
        )


def _lines(path: str, form: Form, joined: bool) -> Iterator[tuple[list[str], list[bool]]]:
    with opened(path, form) as file:
        lines = file.readlines(CHUNK)
        while lines:
            following = file.readlines(CHUNK)
            texts = lines if joined else [line.removesuffix("\n") for line in lines]
            yield texts, [not joined] * (len(lines) - 1) + [not joined or not following]
            lines = following
