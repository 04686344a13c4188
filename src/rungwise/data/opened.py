"""What a run reads, opened once in a process: the model's config, the tokenizer, the texts."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..errors import SettingsError
from ..model.model import load_config
from ..model.probe import vocab_size
from ..settings.fields import FIELDS, Settings
from ..settings.needs import SYNTHETIC
from .sources import Source, load_tokenizer, sources
from .texts import Text, load_text


class Opening:
    """Opens each thing once, and remembers why where it could not. The rungs of a ladder share one."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Any] = {}

    def config(self, settings: Settings) -> PreTrainedConfig:
        """The model's config; raises as `load_config`."""
        return self._once(("config", *_given(settings, "model")), lambda: load_config(settings))

    def tokenizer(self, settings: Settings) -> PreTrainedTokenizerBase | None:
        """The tokenizer; raises as `load_tokenizer`."""
        key = ("tokenizer", settings.tokenizer_name, *_given(settings, "model"))
        return self._once(key, lambda: load_tokenizer(settings))

    def text(self, source: Source, settings: Settings) -> Text:
        """A text, ready to be read; raises as `load_text`."""
        # Whether a text is too short is told at once, by the block and by whether bytes are its tokens.
        key = ("text", source, settings.block_size, settings.model_name_or_path, *_given(settings, "data"))
        return self._once(key, lambda: load_text(source, settings, settings.streaming))

    def _once(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        if key not in self._made:
            try:
                self._made[key] = make()
            except Exception as error:
                # Whatever it is, it would be the same the next time.
                self._made[key] = error
        if isinstance(self._made[key], Exception):
            raise self._made[key]
        return self._made[key]


def _given(settings: Settings, group: str) -> list[Any]:
    """What a group of flags says."""
    return [getattr(settings, name) for name, field in FIELDS.items() if field.metadata["group"] == group]


@dataclass
class OpenedData:
    """A tokenizer and texts, ready to be read. `build_datasets` adds what it made of them."""

    vocab_size: int | None = None
    tokenizer: PreTrainedTokenizerBase | None = None
    texts: dict[Source, Text] = field(default_factory=dict)
    # Of the rows to train on and to evaluate on: what was chosen, how many there are, what was dropped.
    train: dict[str, Any] = field(default_factory=dict)
    evaluation: dict[str, Any] = field(default_factory=dict)
    # The first row to train on, as text; a row of random tokens has none.
    first_row: str | None = None


@dataclass
class Inputs:
    """What a run reads. Nothing of what its script decides itself."""

    config: PreTrainedConfig | None = None
    data: OpenedData | None = None


def open_data(settings: Settings, opening: Opening) -> tuple[OpenedData, list[str]]:
    """Opens the tokenizer and the texts of a run.

    Returns:
        What could be opened, and everything that is wrong with the others. Of a model that is not there its own
        check tells, and that it has no tokenizer is nothing more.
    """
    data, errors = OpenedData(), []
    try:
        data.vocab_size = vocab_size(opening.config(settings))
        is_model = True
    except Exception:
        # Configs come from the Hub and from other people's code, which raise anything.
        is_model = False
    for source in sources(settings):
        if source.name != SYNTHETIC:
            try:
                data.texts[source] = opening.text(source, settings)
            except SettingsError as error:
                errors += error.errors
    only_synthetic = sources(settings) == [Source("dataset_name", SYNTHETIC)]
    if settings.tokenizer_name or (is_model and not only_synthetic):
        try:
            data.tokenizer = opening.tokenizer(settings)
        except SettingsError as error:
            errors += error.errors
    return data, errors + _no_end(data, settings)


def _no_end(data: OpenedData, settings: Settings) -> list[str]:
    """That there is no end of text to be put anywhere, or left out, if that was asked for."""
    if settings.origins.get("append_eos") != "flag" or (data.tokenizer and data.tokenizer.eos_token_id is not None):
        return []
    why = "this tokenizer has no end of text" if data.tokenizer else "there is no tokenizer with an end of text"
    return [f"--append_eos has no effect: {why}; drop it"]
