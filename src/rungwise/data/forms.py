"""How a file is read: its reader by its suffix, its compression and its delimiter by what stands in it."""

import csv
import json
from contextlib import suppress
from itertools import islice
from pathlib import Path

from datasets.packaged_modules import _EXTENSION_TO_MODULE

from .files import DELIMITERS, OPENERS, PEEKED_ROWS, Form, Unreadable, csv_rows

# What `datasets` has a reader for, by suffix; those that read text alone are read here. A suffix that it does not
# know, and these, are plain text: it takes Markdown and TOML for a harness's tasks, and .raw for a picture.
READERS = {suffix: module for suffix, (module, _) in _EXTENSION_TO_MODULE.items()} | {
    ".md": "text",
    ".toml": "text",
    ".raw": "text",
}
OWN_READERS = ("text", "json", "csv", "parquet", "arrow")
# What a compressed file begins with, and who opens it; of the others, nobody here.
MAGIC = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bz2",
    b"\xfd7zXZ\x00": "xz",
    b"]\x00\x00": "lzma",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
}
COMPRESSED = {".gz", ".gzip", ".bz2", ".xz", ".lzma", ".zst", ".zstd", ".lz4", ".zip", ".7z", ".rar"}
PEEKED_BYTES = 2**16


def form_of(path: str) -> Form:
    """How to read a file, by its suffix and its first bytes.

    Raises:
        Unreadable: nobody here can, or it is not clear how.
        OSError, ValueError: it is not there, or damaged.
    """
    with Path(path).open("rb") as file:
        head = file.read(max(map(len, MAGIC)))
    compression = next((name for magic, name in MAGIC.items() if head.startswith(magic)), None)
    if compression and compression not in OPENERS:
        raise Unreadable(
            f"it is compressed by {compression}, which nothing here opens; unpack it, or give gzip, bz2 or xz"
        )
    name = Path(path)
    packed = name.suffix.lower() in COMPRESSED
    suffix = (Path(name.stem) if packed else name).suffix.lower()
    reader = READERS.get(suffix, "text")
    if reader not in OWN_READERS:
        raise Unreadable(
            f"a {suffix} file is one for the reader {reader} of datasets, which gives no text; "
            "convert it to text, JSON lines, CSV or parquet"
        )
    if reader in ("parquet", "arrow"):
        if compression:
            raise Unreadable(f"a {reader} file inside {compression} is not read; unpack it")
        return Form(reader)
    start = _start(path, compression)
    if b"\0" in start:
        raise Unreadable("it is a binary file; give a text, JSON lines, CSV or parquet file")
    if reader == "text" and suffix != ".txt" and _is_json(start):
        raise Unreadable("its lines are JSON; call it .jsonl to read their texts, or .txt to learn it as it is")
    form = Form(reader, compression, crlf=reader == "text" and b"\r\n" in start)
    if reader == "csv":
        return Form(reader, compression, "\t" if suffix == ".tsv" else _delimiter(path, form))
    return form


def _start(path: str, compression: str | None) -> bytes:
    with OPENERS.get(compression or "", open)(path, "rb") as file:
        return file.read(PEEKED_BYTES)


def _is_json(start: bytes) -> bool:
    """Whether the first line is a JSON object with a name in it."""
    with suppress(ValueError):
        value = json.loads(start.split(b"\n", 1)[0].decode("utf-8-sig"))
        return isinstance(value, dict) and bool(value)
    return False


def _delimiter(path: str, form: Form) -> str:
    """What parts the cells: the one mark that gives the first rows as many cells as the header, and more than one."""
    fitting = [mark for mark in DELIMITERS if _parts(path, form, mark)]
    if len(fitting) > 1:
        marks = " or ".join(DELIMITERS[mark] for mark in fitting)
        raise Unreadable(f"its cells may be parted by {marks}; save it with commas, texts in quotes")
    return fitting[0] if fitting else ","


def _parts(path: str, form: Form, delimiter: str) -> bool:
    try:
        first = next(islice(csv_rows(path, form, delimiter), 1), {})
        return len(first) > 1 and all(islice(csv_rows(path, form, delimiter), PEEKED_ROWS))
    except (ValueError, csv.Error):
        return False
