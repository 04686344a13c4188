"""What tells a run's data from other data of the same name: one fingerprint for each text, by its name.

A file's is its size and a hash of all its bytes, at about 1 GB/s: who made it and when says nothing of what is in it.
"""

import functools
import hashlib
from pathlib import Path
from typing import Any

from ..model.model import load_config
from ..model.probe import vocab_size
from ..settings.fields import Settings
from ..settings.needs import SYNTHETIC
from .loader import SYNTHETIC_ROWS
from .opened import OpenedData, Opening, open_data
from .sources import Source, readable, sources, training_source, validation_source
from .texts import Located, locate, split_of

CHUNK = 2**20


def fingerprint(source: Source, settings: Settings, located: Located | None = None, known: int | None = None) -> str:
    """The same text for the same content, of a source that can be read.

    Args:
        source: the text.
        settings: what else decides it.
        located: where its rows are [looks for them].
        known: how many tokens the model of synthetic rows knows [loads its config].

    Raises:
        SettingsError: it can no longer be read.
    """
    with readable(source):
        if source.name == SYNTHETIC:
            known = known or vocab_size(load_config(settings))
            return f"{SYNTHETIC_ROWS} rows of {settings.block_size} tokens of {known}, seed {settings.seed}"
        located = located or locate(source, settings)
        if located.files:
            return _of_files([path for paths in located.files.values() for path in paths])
        if located.saved:
            return _of_files(sorted(str(path) for path in located.saved.rglob("*") if path.is_file()))
        # The one that `datasets` gives to what it has read whole; a stream brings none.
        return f"datasets {located.builder._get_dataset_fingerprint(split_of(source, settings))}"


def fingerprints(settings: Settings, opening: Opening | None = None) -> dict[str, str]:
    """The fingerprint of each text that the settings name, by the flag and the name.

    `opening` has what was opened before; without it, everything is looked for anew.
    """
    if opening is None:
        return {str(source): fingerprint(source, settings) for source in sources(settings)}
    data, _ = open_data(settings, opening)
    return {str(source): _fingerprint(source, settings, data) for source in sources(settings)}


def describe(settings: Settings, data: OpenedData | None) -> dict[str, Any]:
    """What a run trains on and, apart, what it is evaluated on, as `build_datasets` made it.

    Returns:
        Nothing without opened data: of other rows nothing is known. Else `train` and, if anything is evaluated,
        `evaluation`, each with `source` and `fingerprint`, the number of `rows` (None for a stream to train on) and,
        of a text, `reader`, `column` among `columns`; of one that was read whole, too, `texts`, of these `empty` and
        `missing`, `tokens`, and what was `dropped` and why. Rows that are held out have the source of the others.
    """
    if data is None:
        return {}

    def part(source: Source, report: dict[str, Any]) -> dict[str, Any]:
        return {"source": str(source), "fingerprint": _fingerprint(source, settings, data), **report}

    found = {"train": part(training_source(settings), data.train)}
    if data.evaluation:
        source = validation_source(settings) or training_source(settings)
        found["evaluation"] = part(source, data.evaluation)
    return found


def changes(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """In words, each text whose content is another than it was; of those that both know."""
    return [
        f"{name} has changed (it was {before[name]} and is now {now[name]})"
        for name in now
        if name in before and before[name] != now[name]
    ]


def _fingerprint(source: Source, settings: Settings, data: OpenedData) -> str:
    located = data.texts[source].located if source in data.texts else None
    return fingerprint(source, settings, located, data.vocab_size)


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
