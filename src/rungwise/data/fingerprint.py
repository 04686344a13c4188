"""What tells a run's data from other data of the same name: one fingerprint for each text, by its name.

A file's is its size and a hash of all its bytes, at about 1 GB/s: who made it and when says nothing of what is in it.
"""

import functools
import hashlib
from collections.abc import Sized
from pathlib import Path
from typing import Any

import datasets

from ..model.model import load_config
from ..settings.fields import Settings
from .loader import SYNTHETIC, SYNTHETIC_ROWS
from .sampling import StreamedRows
from .sources import STDLIB, Source, load_arguments, readable, split_of, stdlib_files, training_source
from .sources import validation_source as given_validation

CHUNK = 2**20


def fingerprint(source: Source, settings: Settings) -> str:
    """The same text for the same content, of a source that can be read.

    Raises:
        SettingsError: it can no longer be read.
    """
    with readable(source):
        if source.name == SYNTHETIC:
            tokens = f"{SYNTHETIC_ROWS} rows of {settings.block_size} tokens"
            return f"{tokens} of {load_config(settings).vocab_size}, seed {settings.seed}"
        if source.path is not None:
            return _of_files([str(source.path)])
        if source.name == STDLIB:
            return _of_files(stdlib_files())
        # The one that `datasets` gives to what it has read whole; a stream brings none.
        builder = datasets.load_dataset_builder(**load_arguments(source, settings))
        return f"datasets {builder._get_dataset_fingerprint(split_of(source, settings))}"


def fingerprints(settings: Settings) -> dict[str, str]:
    """The fingerprint of each text that the settings name, by the flag and the name."""
    sources = [training_source(settings), given_validation(settings)]
    return {str(source): fingerprint(source, settings) for source in sources if source}


def describe(settings: Settings, rows: Sized | None, held_out: Sized | None) -> dict[str, Any]:
    """What a run trains on and, apart, what it is evaluated on, of the rows that `build_datasets` made.

    Returns:
        Nothing without such rows: of others nothing is known. Else `train` and, if anything is evaluated,
        `evaluation`, each with `source`, `reader` (of a file), `fingerprint` and the number of `rows` (None for a
        stream to train on). Rows that are held out have the source of those to train on.
    """
    if rows is None:
        return {}
    found = {"train": _part(training_source(settings), settings)}
    found["train"]["rows"] = None if isinstance(rows, StreamedRows) else len(rows)
    if held_out is not None:
        source = given_validation(settings) or training_source(settings)
        found["evaluation"] = {**_part(source, settings), "rows": len(held_out)}
    return found


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """In words, each text whose content is another than it was; of those that both know."""
    return [
        f"{name} has changed (it was {before[name]} and is now {now[name]})"
        for name in now
        if name in before and before[name] != now[name]
    ]


def _part(source: Source, settings: Settings) -> dict[str, Any]:
    arguments = load_arguments(source, settings)
    reader = arguments["path"] if "data_files" in arguments else None
    return {"source": str(source), "reader": reader, "fingerprint": fingerprint(source, settings)}


def _of_files(paths: list[str]) -> str:
    digest, size = hashlib.blake2b(digest_size=16), 0
    for path in paths:
        stat = Path(path).stat()
        digest.update(_hash(path, stat.st_size, stat.st_mtime_ns))
        size += stat.st_size
    return f"{size} bytes, blake2b {digest.hexdigest()}"


@functools.cache
def _hash(path: str, size: int, changed: int) -> bytes:
    """A hash of the content of a file, read once in a process while its size and time of change stay the same."""
    digest = hashlib.blake2b(digest_size=16)
    with Path(path).open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.digest()
