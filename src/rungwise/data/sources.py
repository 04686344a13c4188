"""Where text comes from, and what is wrong with it: a file, the standard library, a data set on disk or the Hub."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import datasets
import pyarrow as pa
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..errors import SettingsError
from ..redact import redacted
from ..settings.fields import Settings
from .files import Unreadable

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """The flag that names some text, and the name. As text it is recorded, and tells no secret."""

    flag: str
    name: str

    def __str__(self) -> str:
        return redacted(f"--{self.flag} {self.name}")

    @property
    def path(self) -> Path | None:
        """The file that is meant; None for the standard library, a folder, or a data set of the Hub."""
        return Path(self.name) if self.flag != "dataset_name" or Path(self.name).is_file() else None


def training_source(settings: Settings) -> Source:
    """The text to train on."""
    if settings.train_file:
        return Source("train_file", settings.train_file)
    return Source("dataset_name", settings.dataset_name)


def validation_source(settings: Settings) -> Source | None:
    """The text to evaluate on, if it is another than that to train on."""
    return Source("validation_file", settings.validation_file) if settings.validation_file else None


def sources(settings: Settings) -> list[Source]:
    """All texts of a run."""
    return [source for source in (training_source(settings), validation_source(settings)) if source]


def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase | None:
    """The tokenizer asked for, else the model's own, else None: bytes are the tokens.

    Raises:
        SettingsError: there is none by this name.
    """
    name = settings.tokenizer_name or settings.model_name_or_path
    if name is None:
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=settings.trust_remote_code)
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


def check_cache() -> None:
    """Whether the cache of `datasets`, which keeps what was read and tokenized, can be written.

    Raises:
        SettingsError: it cannot.
    """
    folder = Path(datasets.config.HF_DATASETS_CACHE).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingsError(
            [f"the cache of datasets, {folder}, cannot be written ({error.strerror}); set HF_DATASETS_CACHE"]
        ) from error


def from_cache(read: Callable[[], T], cached: Path) -> T:
    """What is read from the cache, or made and put there; made anew where what is there is damaged.

    Args:
        read: reads or makes it.
        cached: the file or the folder of the cache that it is read from. One that could not be made is not there.
    """
    try:
        return read()
    except (OSError, pa.ArrowException):
        if not cached.exists():
            raise  # what it is made of is at fault
    shutil.rmtree(cached) if cached.is_dir() else cached.unlink()
    return read()


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
        bottom = _bottom(error)
        remedy = "" if isinstance(bottom, Unreadable) else f"; {_remedy(source)}"
        raise SettingsError([f"{source}: {_reason(bottom)}{remedy}"]) from error


def _bottom(error: BaseException) -> BaseException:
    """What was at the bottom of an error."""
    while error.__cause__ is not None and not isinstance(error, Unreadable):
        error = error.__cause__
    return error


def _reason(error: BaseException) -> str:
    """The first line of what was at the bottom of an error."""
    error = _bottom(error)
    if isinstance(error, UnicodeError):
        return f"not UTF-8 text ({error.reason})" if hasattr(error, "reason") else "not UTF-8 text"
    if isinstance(error, StopIteration) or "corresponds to no data" in str(error):
        return "there are no rows in it"
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".!")


def _remedy(source: Source) -> str:
    if source.path is not None:
        return "convert or correct the file, or give another"
    return "check --dataset_name, --dataset_config_name and --dataset_split, and that the Hub can be reached"
