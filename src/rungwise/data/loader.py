"""The rows of a run, to train on and to evaluate on, and their batches.

A batch has `input_ids` and `labels`, (B, T) each, int64, and an `attention_mask` where rows are padded.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import BatchSampler, DataLoader
from transformers import PreTrainedTokenizerBase, default_data_collator

from ..errors import SettingsError
from ..model.model import load_config
from ..model.probe import vocab_size
from ..settings.fields import Settings
from .packing import count_tokens, map_rows, stream_rows
from .sampling import EvaluationRows, Row, RowOrder, StreamedRows, labels_of
from .sources import (
    STDLIB,
    Source,
    load_text,
    load_tokenizer,
    readable,
    too_few_tokens,
    training_source,
    validation_source,
)

SYNTHETIC = "synthetic"
SYNTHETIC_ROWS = 256


def build_dataloader(dataset: datasets.Dataset | StreamedRows, settings: Settings) -> DataLoader:
    """Micro-batches of (micro_batch_size, T) for `max_steps` steps over all processes.

    `Accelerator.prepare` deals them to the processes in turn, so that the rows of one optimizer step are the same
    however they are split. A loader has a generator of its own: the global one stays what it is for the model.
    """
    if isinstance(dataset, StreamedRows):
        batches: dict[str, Any] = {"batch_size": settings.micro_batch_size}
    else:
        order = RowOrder(len(dataset), settings.max_steps * settings.global_batch_size, settings.seed)
        batches = {"batch_sampler": BatchSampler(order, settings.micro_batch_size, drop_last=False)}
    return DataLoader(dataset, **batches, collate_fn=collate, generator=torch.Generator())


def build_eval_dataloader(dataset: Sequence[Row], settings: Settings) -> DataLoader:
    """All rows in their order, in micro-batches of (micro_batch_size, T) which `Accelerator.prepare` can deal out.

    The last batches may have rows whose labels are all -100.
    """
    rows = EvaluationRows(dataset, settings.micro_batch_size * settings.num_processes)
    return DataLoader(rows, settings.micro_batch_size, collate_fn=collate, generator=torch.Generator())


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stacks rows, with labels where they bring none. The model shifts them by one itself."""
    batch = default_data_collator(rows)
    batch["labels"] = labels_of(batch)
    return batch


def build_dataset(settings: Settings) -> datasets.Dataset | StreamedRows:
    """The rows to train on; see `build_datasets`."""
    return build_datasets(settings)[0]


def build_datasets(settings: Settings) -> tuple[datasets.Dataset | StreamedRows, Sequence[Row] | None]:
    """The rows to train on, and those to evaluate on, of `block_size` tokens each.

    Returns:
        A data set or, with `streaming`, `StreamedRows`; and a sequence of at most `max_eval_samples` rows, or None
        if `eval_steps` is unset. Without a validation file they are held out from the data to train on.

    Raises:
        SettingsError: the data cannot be had, is shorter than one row, or does not fit the model.
    """
    hold_out = settings.eval_steps is not None and not settings.validation_file
    train, evaluation = _streamed(settings, hold_out) if settings.streaming else _whole(settings, hold_out)
    if settings.eval_steps is not None and settings.validation_file:
        source = validation_source(settings)
        evaluation = _first_rows(source, _reader(source, settings), settings)
    return train, evaluation


def synthetic(known: int, block_size: int, seed: int) -> datasets.Dataset:
    """256 rows of uniformly random tokens: the same for every rung, and nothing in them to learn but themselves."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(known, (SYNTHETIC_ROWS, block_size), generator=generator)
    return datasets.Dataset.from_dict({"input_ids": tokens.numpy()}).with_format("torch")


def problems(settings: Settings) -> list[str]:
    """What is wrong with the texts and the tokenizer, found before anything is built."""
    given = [training_source(settings), validation_source(settings)]
    sources = [source for source in given if source and source.name not in (STDLIB, SYNTHETIC)]
    checks = [partial(load_text, source, settings, settings.streaming) for source in sources]
    if settings.tokenizer_name or (given != [Source("dataset_name", SYNTHETIC), None] and _is_model(settings)):
        checks.append(partial(load_tokenizer, settings))
    found = []
    for check in checks:
        try:
            check()
        except SettingsError as error:
            found += error.problems
    return found


def _is_model(settings: Settings) -> bool:
    """Whether the model is there; if it is not, that it has no tokenizer is no problem of its own."""
    try:
        load_config(settings)
    except Exception:
        # As in `models.problems`, which says what it was.
        return False
    return True


def _whole(settings: Settings, hold_out: bool) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """All rows, and the last ones apart if they are held out."""
    source = training_source(settings)
    if source.name == SYNTHETIC:
        rows = synthetic(vocab_size(load_config(settings)), settings.block_size, settings.seed)
    else:
        tokenizer = load_tokenizer(settings)
        rows = map_rows(load_text(source, settings, streaming=False), settings, tokenizer)
        if len(rows) == 0:
            raise _too_short(source, settings)
        largest = pc.max(pc.list_flatten(rows.data["input_ids"])).as_py()
        _check_token(largest, vocab_size(load_config(settings)), tokenizer)
    if not hold_out:
        return rows, None
    kept = len(rows) - max(1, len(rows) * settings.validation_split_percentage // 100)
    if kept == 0:
        raise _all_held_out(source, settings, len(rows))
    last = min(len(rows), kept + settings.max_eval_samples)
    return rows.select(range(kept)), rows.select(range(kept, last))


def _streamed(settings: Settings, hold_out: bool) -> tuple[StreamedRows, list[Row] | None]:
    """Rows as they come, without the first ones if they are held out."""
    source = training_source(settings)
    read = _reader(source, settings)
    held_out = _first_rows(source, read, settings) if hold_out else []

    def kept() -> Iterator[Row]:
        return islice(read(), len(held_out), None)

    if next(kept(), None) is None:
        raise _all_held_out(source, settings, len(held_out)) if held_out else _too_short(source, settings)
    rows = StreamedRows(kept, settings.max_steps * settings.global_batch_size, settings.seed)
    return rows, held_out or None


def _reader(source: Source, settings: Settings) -> Callable[[], Iterator[Row]]:
    """A function that reads the rows from the beginning; each is checked as it comes."""
    tokenizer = load_tokenizer(settings)
    text = load_text(source, settings, streaming=True)
    known = vocab_size(load_config(settings))

    def read() -> Iterator[Row]:
        with readable(source):
            for row in stream_rows(text, settings, tokenizer):
                _check_token(int(row["input_ids"].max()), known, tokenizer)
                yield {name: torch.from_numpy(values.astype(np.int64)) for name, values in row.items()}

    return read


def _first_rows(source: Source, read: Callable[[], Iterator[Row]], settings: Settings) -> list[Row]:
    """The rows to evaluate on, of a text that is read no further than that."""
    rows = list(islice(read(), settings.max_eval_samples))
    if not rows:
        raise _too_short(source, settings)
    return rows


def _check_token(largest: int, known: int, tokenizer: PreTrainedTokenizerBase | None) -> None:
    if largest >= known:
        mend = "use the model's own tokenizer" if tokenizer else "bytes as tokens need a vocab_size of 256"
        raise SettingsError([f"the data has token {largest}, the model knows {known} tokens; {mend}"])


def _too_short(source: Source, settings: Settings) -> SettingsError:
    if settings.packing:
        text = load_text(source, settings, settings.streaming)
        return too_few_tokens(source, count_tokens(text, load_tokenizer(settings)), settings)
    return SettingsError([f"{source}: no text in it has 2 tokens, so that one could be learnt; give more text"])


def _all_held_out(source: Source, settings: Settings, rows: int) -> SettingsError:
    less = "lower --max_eval_samples, or " if settings.streaming and rows > 1 else ""
    return SettingsError(
        [f"{source}: evaluation takes the only {rows} rows there are; {less}give more text, or --validation_file"]
    )
