"""Where text comes from, and what is wrong with it: a file, the standard library, a data set on disk or the Hub."""

import glob
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..errors import SettingsError
from ..settings.fields import Settings

STDLIB = "python-stdlib"
# The reader of a file by its suffix; any other file is plain text, a row a line.
READERS = {".json": "json", ".jsonl": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class Source:
    """The flag that names some text, and the name."""

    flag: str
    name: str

    def __str__(self) -> str:
        return f"--{self.flag} {self.name}"

    @property
    def path(self) -> Path | None:
        """The file that is meant; None for the standard library, a folder, or a data set of the Hub."""
        return Path(self.name) if self.flag != "dataset_name" or Path(self.name).is_file() else None

    @property
    def reader(self) -> str:
        """Who of `datasets` reads the file."""
        return READERS.get(Path(self.name).suffix.lower(), "text")


@dataclass(frozen=True)
class Text:
    """A data set, of which one column holds text."""

    rows: datasets.Dataset | datasets.IterableDataset
    column: str


def training_source(settings: Settings) -> Source:
    """The text to train on."""
    if settings.train_file:
        return Source("train_file", settings.train_file)
    return Source("dataset_name", settings.dataset_name)


def validation_source(settings: Settings) -> Source | None:
    """The text to evaluate on, if it is another than that to train on."""
    return Source("validation_file", settings.validation_file) if settings.validation_file else None


def load_text(source: Source, settings: Settings, streaming: bool) -> Text:
    """Opens the text: read whole into the cache of `datasets`, or read as it is needed.

    Raises:
        SettingsError: it cannot be had or read, has no rows, or no such column.
    """
    _check_file(source, settings)
    if not (sys.stderr.isatty() and source.name != STDLIB):
        datasets.disable_progress_bars()
    with readable(source), _unlogged():
        rows = datasets.load_dataset(
            **load_arguments(source, settings), split=split_of(source, settings), streaming=streaming
        )
        first = next(iter(rows), None)
    if first is None:
        raise SettingsError([f"{source}: there are no rows in it; give data with text"])
    return Text(rows, _column(source, settings, rows.features, first))


def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase | None:
    """The tokenizer asked for, else the model's own, else None: bytes are the tokens.

    Raises:
        SettingsError: there is none by this name.
    """
    name = settings.tokenizer_name or settings.model_name_or_path
    if name is None:
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except Exception as error:
        # Tokenizers come from the Hub and from other people's code, which raise anything.
        raise SettingsError([f"no tokenizer in {name}: {_reason(error)}; give --tokenizer_name"]) from error
    # Of a folder with a model alone, Transformers makes a tokenizer that knows no word.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise SettingsError([f"no tokenizer in {name}: it has a config and no vocabulary; give --tokenizer_name"])
    return tokenizer


def too_few_tokens(source: Source, tokens: int, settings: Settings) -> SettingsError:
    """That a text is shorter than one row."""
    # A row of one token teaches nothing.
    shorter = f", or --block_size {tokens} or less" if tokens > 1 else ""
    return SettingsError(
        [
            f"{source}: its {tokens} tokens are shorter than one block of {settings.block_size} tokens; "
            f"give more text{shorter}"
        ]
    )


def stdlib_files() -> list[str]:
    """The modules of the running Python's standard library, by name: about 5 MB of source text."""
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


@contextmanager
def readable(source: Source) -> Iterator[None]:
    """Around reading: whatever goes wrong becomes one message that names the source and the reason.

    Raises:
        SettingsError: something went wrong.
    """
    try:
        yield
    except SettingsError:
        raise
    except Exception as error:
        # A data set comes from the Hub, a folder or a file, and each fails in its own way.
        raise SettingsError([f"{source}: {_reason(error)}; {_mend(source)}"]) from error


def load_arguments(source: Source, settings: Settings) -> dict[str, Any]:
    """What `datasets.load_dataset` is told."""
    if source.path is None and source.name != STDLIB:
        return {"path": source.name, "name": settings.dataset_config_name}
    # `datasets` takes names for patterns.
    files = [glob.escape(source.name)] if source.path else stdlib_files()
    reader = source.reader if source.path else "text"
    # Packed, lines are joined to the text they were cut from; on their own, each is a text without its end.
    return {"path": reader, "data_files": files, **({"keep_linebreaks": settings.packing} if reader == "text" else {})}


def split_of(source: Source, settings: Settings) -> str:
    """The split of the data set that is meant; a file has one alone."""
    return (settings.dataset_split if source.flag == "dataset_name" else None) or "train"


def _check_file(source: Source, settings: Settings) -> None:
    """What can be told of a file without reading it."""
    if source.path is None:
        return
    if not source.path.is_file():
        raise SettingsError([f"{source}: no such file; give the path of a text, JSON lines, CSV or parquet file"])
    size = source.path.stat().st_size
    if size == 0:
        raise SettingsError([f"{source}: the file is empty; give a file with text"])
    bytes_are_tokens = not (settings.tokenizer_name or settings.model_name_or_path)
    if bytes_are_tokens and settings.packing and source.reader == "text" and size < settings.block_size:
        raise too_few_tokens(source, size, settings)


def _column(source: Source, settings: Settings, features: datasets.Features | None, first: dict[str, Any]) -> str:
    """The column that holds the text: the one asked for, else `text`, else the first one of strings."""
    if features is None:
        # Some data sets are not described before they are read.
        columns = [key for key, value in first.items() if isinstance(value, str)]
    else:
        strings = ("string", "large_string")
        columns = [key for key, feature in features.items() if getattr(feature, "dtype", None) in strings]
    column = settings.text_column or ("text" if "text" in columns else next(iter(columns), None))
    if column in columns:
        return column
    if not columns:
        raise SettingsError([f"{source}: no column of {', '.join(first)} holds text; give data with one that does"])
    raise SettingsError([f"--text_column {column}: {source} has no such text column; use one of {', '.join(columns)}"])


def _reason(error: BaseException) -> str:
    """The first line of what was at the bottom of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8 text ({error.reason})"
    if isinstance(error, StopIteration) or "corresponds to no data" in str(error):
        return "there are no rows in it"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".!")


def _mend(source: Source) -> str:
    if source.path is not None:
        return "convert or mend the file, or give another"
    return "check --dataset_name, --dataset_config_name and --dataset_split, and that the Hub can be reached"


@contextmanager
def _unlogged() -> Iterator[None]:
    """`datasets` logs what it raises as well; said once is enough."""
    before = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(before)
