"""A source opened: one column of text, read whole into the cache of `datasets` or as it is needed."""

import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets.utils.info_utils import is_small_dataset

from ..errors import SettingsError
from ..settings.fields import Settings
from ..settings.needs import STDLIB
from . import columns
from .files import PEEKED_ROWS, TEXT, Form, schema_of, texts_of, values_of
from .forms import OWN_READERS, form_of
from .sources import Source, check_cache, from_cache, readable, too_few_tokens

# Whether a document ends with a text; without this column, one ends with each.
ENDS = "ends"
# Another one when files are read otherwise, so that nothing is taken for them that was cached before.
READ_AS = "1"


@dataclass(frozen=True)
class Located:
    """Where a source's rows are: files by split that are read here, a folder saved by datasets, or its builder."""

    files: dict[str, list[str]] = field(default_factory=dict)
    saved: Path | None = None
    builder: datasets.DatasetBuilder | None = None


@dataclass(frozen=True)
class Text:
    """A data set, of which one column holds text."""

    rows: datasets.Dataset | datasets.IterableDataset
    column: str
    located: Located
    # What was chosen to read it, in words, by name: `reader`, `column`, `columns`.
    chosen: dict[str, Any] = field(default_factory=dict)


@dataclass
class FilesConfig(datasets.BuilderConfig):
    """Files, each with its size and time of change, by split; their column; whether lines are joined."""

    splits: Any = None
    column: str = TEXT
    joined: bool = True
    read_as: str = ""


class Files(datasets.ArrowBasedBuilder):
    """Files to a data set of texts, cached by what the files are and by what was chosen."""

    BUILDER_CONFIG_CLASS = FilesConfig

    def _info(self) -> datasets.DatasetInfo:
        features = {TEXT: datasets.Value("string"), ENDS: datasets.Value("bool")}
        return datasets.DatasetInfo(features=datasets.Features(features))

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"paths": [path for path, _, _ in files]})
            for split, files in self.config.splits
        ]

    def _generate_tables(self, paths: list[str]) -> Iterator[tuple[str, pa.Table]]:
        column, joined = self.config.column, self.config.joined
        for number, path in enumerate(paths):
            for batch, (texts, ends) in enumerate(texts_of(path, form_of(path), column, joined)):
                yield f"{number}_{batch}", pa.table({TEXT: pa.array(texts, pa.string()), ENDS: ends})


def locate(source: Source, settings: Settings) -> Located:
    """Finds a source without reading its rows.

    Raises:
        SettingsError, or what `datasets` raises: it cannot be had.
    """
    if source.name == STDLIB:
        return Located({"train": stdlib_files()})
    if source.path is not None:
        return Located({"train": [str(source.path)]})
    folder = Path(source.name)
    if any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        return Located(saved=folder)
    builder = datasets.load_dataset_builder(source.name, settings.dataset_config_name)
    files = builder.config.data_files or {}
    paths = {str(split): [str(path) for path in found] for split, found in files.items()}
    local = paths and all(Path(path).is_file() for found in paths.values() for path in found)
    if local and builder.name in OWN_READERS:
        return Located(paths)
    if builder.name == "csv":
        # A cell is text, also where pandas takes it for a missing value.
        plain = {"keep_default_na": False, "na_filter": False}
        builder = datasets.load_dataset_builder(source.name, settings.dataset_config_name, **plain)
    return Located(builder=builder)


def load_text(source: Source, settings: Settings, streaming: bool) -> Text:
    """Opens the text: read whole into the cache of `datasets`, or read as it is needed.

    Raises:
        SettingsError: it cannot be had or read, has no rows, or it is not clear which column is meant.
    """
    _check_file(source, settings)
    check_cache()
    if not (sys.stderr.isatty() and source.name != STDLIB):
        datasets.disable_progress_bars()
    with readable(source), _unlogged():
        located = locate(source, settings)
        if located.files:
            text = _from_files(located, source, settings, streaming)
        else:
            text = _from_datasets(located, source, settings, streaming)
        if next(iter(text.rows), None) is None:
            raise SettingsError([f"{source}: there are no rows in it; give data with text"])
    return text


def stdlib_files() -> list[str]:
    """The modules of the running Python's standard library, by name: about 5 MB of source text."""
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


def split_of(source: Source, settings: Settings) -> str:
    """The split of the data set that is meant; a file has one alone."""
    return (settings.dataset_split if source.flag == "dataset_name" else None) or "train"


def _from_files(located: Located, source: Source, settings: Settings, streaming: bool) -> Text:
    files = located.files
    known = {split: [(path, *_stamp(path)) for path in paths] for split, paths in files.items()}
    split = split_of(source, settings)
    first = next((paths[0] for name, paths in files.items() if split.startswith(name)), next(iter(files.values()))[0])
    form = form_of(first)
    column, kinds = _column_of_file(first, form, source, settings)
    how = {"column": column, "joined": settings.packing, "read_as": READ_AS}
    builder = Files(splits=list(known.items()), **how)
    chosen = {"reader": str(form), "column": None if form.reader == "text" else column, "columns": sorted(kinds)}
    return Text(_open(builder, split, streaming), TEXT, located, chosen)


def _from_datasets(located: Located, source: Source, settings: Settings, streaming: bool) -> Text:
    split = split_of(source, settings)
    if located.saved:
        rows, reader = _saved(located.saved, split, source), "saved by datasets"
        rows = rows.to_iterable_dataset() if streaming else rows
    else:
        rows, reader = _open(located.builder, split, streaming), located.builder.name
    if rows.features is None:
        # Some data sets are not described before they are read.
        kinds = columns.kinds_of_values(islice(rows, PEEKED_ROWS))
    else:
        kinds = columns.kinds_of_features(rows.features)
    if not kinds:
        raise StopIteration
    column = columns.choose(kinds, settings.text_column, source)
    chosen = {"reader": reader, "column": column, "columns": sorted(kinds)}
    return Text(rows.select_columns([column]), column, located, chosen)


def _saved(folder: Path, split: str, source: Source) -> datasets.Dataset:
    found = datasets.load_from_disk(str(folder))
    if isinstance(found, datasets.Dataset):
        return found
    if split not in found:
        raise SettingsError([f"{source}: it has no split {split}; give --dataset_split, one of {', '.join(found)}"])
    return found[split]


def _open(
    builder: datasets.DatasetBuilder, split: str, streaming: bool
) -> datasets.Dataset | datasets.IterableDataset:
    if streaming:
        return builder.as_streaming_dataset(split=split)

    def whole() -> datasets.Dataset:
        builder.download_and_prepare()
        return builder.as_dataset(split=split, in_memory=is_small_dataset(builder.info.dataset_size))

    return from_cache(whole, Path(builder.cache_dir))


def _column_of_file(path: str, form: Form, source: Source, settings: Settings) -> tuple[str, dict[str, str]]:
    """The column with the text, and all that there are with what they hold."""
    if form.reader == "text":
        if settings.text_column not in (None, TEXT):
            raise SettingsError(
                [f"--text_column {settings.text_column}: {source} is plain text, without columns; drop it"]
            )
        return TEXT, {}
    if form.reader in ("parquet", "arrow"):
        kinds = columns.kinds_of_schema(schema_of(path, form))
    else:
        rows = list(islice(values_of(path, form), PEEKED_ROWS))
        if not rows:
            raise StopIteration
        kinds = (columns.kinds_of_cells if form.reader == "csv" else columns.kinds_of_values)(rows)
        if form.reader == "csv":
            columns.check_header(rows, settings.text_column)
    return columns.choose(kinds, settings.text_column, source), kinds


def _stamp(path: str) -> tuple[int, int]:
    stat = Path(path).stat()
    return stat.st_size, stat.st_mtime_ns


def _check_file(source: Source, settings: Settings) -> None:
    """What can be told of a file without a reader."""
    if source.path is None:
        return
    if not source.path.is_file():
        raise SettingsError([f"{source}: no such file; give the path of a text, JSON lines, CSV or parquet file"])
    size = source.path.stat().st_size
    if size == 0:
        raise SettingsError([f"{source}: the file is empty; give a file with text"])
    bytes_are_tokens = not (settings.tokenizer_name or settings.model_name_or_path)
    if bytes_are_tokens and settings.packing and size < settings.block_size:
        with readable(source):
            form = form_of(str(source.path))
            if form == Form("text"):
                # As it is read: without a mark of byte order.
                text = source.path.read_text(encoding="utf-8-sig")
                raise too_few_tokens(source, len(text.encode()), settings)


@contextmanager
def _unlogged() -> Iterator[None]:
    """`datasets` logs what it raises as well; said once is enough."""
    before = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(before)
