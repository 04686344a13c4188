"""The rows of a run, to train on and to evaluate on, and their batches.

A batch has `input_ids` and `labels`, (B, T) each, int64, and an `attention_mask` where rows are padded.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import BatchSampler, DataLoader
from transformers import default_data_collator

from ..errors import SettingsError
from ..settings.fields import Settings
from ..settings.needs import SYNTHETIC
from .opened import Inputs, OpenedData
from .packing import count_tokens, end_token, map_rows, stream_rows
from .sampling import EpochSampler, PaddedEvalRows, Row, StreamingRows, labels_of
from .sources import Source, readable, too_few_tokens, training_source, validation_source

SYNTHETIC_ROWS = 256


def build_dataloader(dataset: datasets.Dataset | StreamingRows, settings: Settings) -> DataLoader:
    """Micro-batches of (micro_batch_size, T) for `max_steps` steps over all processes.

    `Accelerator.prepare` deals them to the processes in turn, so that the rows of one optimizer step are the same
    however they are split. A loader has a generator of its own: the global one stays what it is for the model.
    """
    if isinstance(dataset, StreamingRows):
        batches: dict[str, Any] = {"batch_size": settings.micro_batch_size}
    else:
        order = EpochSampler(len(dataset), settings.max_steps * settings.global_batch_size, settings.seed)
        batches = {"batch_sampler": BatchSampler(order, settings.micro_batch_size, drop_last=False)}
    return DataLoader(dataset, **batches, collate_fn=collate, generator=torch.Generator())


def build_eval_dataloader(dataset: Sequence[Row], settings: Settings) -> DataLoader:
    """All rows in their order, in micro-batches of (micro_batch_size, T) which `Accelerator.prepare` can deal out.

    The last batches may have rows whose labels are all -100.
    """
    rows = PaddedEvalRows(dataset, settings.micro_batch_size * settings.num_processes)
    return DataLoader(rows, settings.micro_batch_size, collate_fn=collate, generator=torch.Generator())


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stacks rows, with labels where they bring none. The model shifts them by one itself."""
    batch = default_data_collator(rows)
    batch["labels"] = labels_of(batch)
    return batch


def build_datasets(
    settings: Settings, inputs: Inputs
) -> tuple[datasets.Dataset | StreamingRows, Sequence[Row] | None]:
    """The rows to train on, and those to evaluate on, of `block_size` tokens each.

    Args:
        settings: the run's.
        inputs: what `configure` opened. What became of each text is added to `inputs.data`.

    Returns:
        A data set or, with `streaming`, `StreamingRows`; and a sequence of at most `max_eval_samples` rows, or None
        if `eval_steps` is unset. Without a validation file they are held out from the data to train on.

    Raises:
        SettingsError: the data is shorter than one row, or does not fit the model.
    """
    data = inputs.data
    hold_out = settings.eval_steps is not None and not settings.validation_file
    train, evaluation = _streamed(settings, data, hold_out) if settings.streaming else _whole(settings, data, hold_out)
    data.train["rows"] = None if isinstance(train, StreamingRows) else len(train)
    if settings.eval_steps is not None and settings.validation_file:
        source = validation_source(settings)
        evaluation = _to_evaluate_on(source, settings, data)
    else:
        source = training_source(settings)
    if evaluation is not None:
        chosen = _chosen(source, settings, data) if source in data.texts else {}
        data.evaluation = {**chosen, **data.evaluation, "rows": len(evaluation)}
    return train, evaluation


def synthetic(known: int, block_size: int, seed: int) -> datasets.Dataset:
    """256 rows of uniformly random tokens: the same for every rung, and nothing in them to learn but themselves."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(known, (SYNTHETIC_ROWS, block_size), generator=generator)
    return datasets.Dataset.from_dict({"input_ids": tokens.numpy()}).with_format("torch")


def _whole(settings: Settings, data: OpenedData, hold_out: bool) -> tuple[datasets.Dataset, datasets.Dataset | None]:
    """All rows, and the last ones apart if they are held out."""
    source = training_source(settings)
    if source.name == SYNTHETIC:
        rows = synthetic(data.vocab_size, settings.block_size, settings.seed)
    else:
        rows, data.train = _mapped(source, settings, data)
        data.first_row = _decoded(rows[0], data)
    if not hold_out:
        return rows, None
    kept = len(rows) - max(1, len(rows) * settings.validation_split_percentage // 100)
    if kept == 0:
        raise _all_held_out(source, settings, len(rows))
    last = min(len(rows), kept + settings.max_eval_samples)
    _drop(data.train, "rows held out beyond max_eval_samples", len(rows) - last)
    return rows.select(range(kept)), rows.select(range(kept, last))


def _to_evaluate_on(source: Source, settings: Settings, data: OpenedData) -> Sequence[Row]:
    """The first rows of a text of its own."""
    if settings.streaming:
        return _first_rows(source, _reader(source, settings, data), settings, data)
    rows, data.evaluation = _mapped(source, settings, data)
    kept = min(len(rows), settings.max_eval_samples)
    _drop(data.evaluation, "rows beyond max_eval_samples", len(rows) - kept)
    return rows.select(range(kept))


def _mapped(source: Source, settings: Settings, data: OpenedData) -> tuple[datasets.Dataset, dict[str, Any]]:
    """All rows of a text, and what was chosen, counted and dropped on the way to them."""
    with readable(source):
        rows, counts = map_rows(data.texts[source], settings, data.tokenizer)
    if len(rows) == 0:
        raise _too_short(source, settings, data)
    _check_token(pc.max(pc.list_flatten(rows.data["input_ids"])).as_py(), source, data)
    return rows, {**_chosen(source, settings, data), **counts}


def _chosen(source: Source, settings: Settings, data: OpenedData) -> dict[str, Any]:
    end = end_token(settings, data.tokenizer)
    name = None if end is None else data.tokenizer.convert_ids_to_tokens(end)
    return {**data.texts[source].chosen, "end_of_text": name}


def _drop(report: dict[str, Any], why: str, count: int) -> None:
    if count:
        report["dropped"] = {**report.get("dropped", {}), why: count}


def _streamed(settings: Settings, data: OpenedData, hold_out: bool) -> tuple[StreamingRows, list[Row] | None]:
    """Rows as they come, without the first ones if they are held out."""
    source = training_source(settings)
    read = _reader(source, settings, data)
    held_out = _first_rows(source, read, settings, data) if hold_out else []

    def kept() -> Iterator[Row]:
        return islice(read(), len(held_out), None)

    first = next(kept(), None)
    if first is None:
        raise _all_held_out(source, settings, len(held_out)) if held_out else _too_short(source, settings, data)
    data.train, data.first_row = _chosen(source, settings, data), _decoded(first, data)
    rows = StreamingRows(kept, settings.max_steps * settings.global_batch_size, settings.seed)
    return rows, held_out or None


def _reader(source: Source, settings: Settings, data: OpenedData) -> Callable[[], Iterator[Row]]:
    """A function that reads the rows from the beginning; each is checked as it comes."""

    def read() -> Iterator[Row]:
        with readable(source):
            for row in stream_rows(data.texts[source], settings, data.tokenizer):
                _check_token(int(row["input_ids"].max()), source, data)
                yield {name: torch.from_numpy(values.astype(np.int64)) for name, values in row.items()}

    return read


def _first_rows(source: Source, read: Callable[[], Iterator[Row]], settings: Settings, data: OpenedData) -> list[Row]:
    """The rows to evaluate on, of a text that is read no further than that."""
    rows = list(islice(read(), settings.max_eval_samples))
    if not rows:
        raise _too_short(source, settings, data)
    return rows


def _check_token(largest: int, source: Source, data: OpenedData) -> None:
    if largest >= data.vocab_size:
        remedy = "use the model's own tokenizer" if data.tokenizer else "bytes as tokens need a vocab_size of 256"
        words = f"it has token {largest}, the model knows {data.vocab_size} tokens"
        raise SettingsError([f"{source}: {words}; {remedy}"])


def _decoded(row: Row, data: OpenedData) -> str:
    """The text of a row, without its padding."""
    ids = row["input_ids"][row["attention_mask"] == 1] if "attention_mask" in row else row["input_ids"]
    return bytes(ids.tolist()).decode(errors="replace") if data.tokenizer is None else data.tokenizer.decode(ids)


def _too_short(source: Source, settings: Settings, data: OpenedData) -> SettingsError:
    if settings.packing:
        return too_few_tokens(source, count_tokens(data.texts[source], settings, data.tokenizer), settings)
    return SettingsError([f"{source}: no text in it has 2 tokens, so that one could be learnt; give more text"])


def _all_held_out(source: Source, settings: Settings, rows: int) -> SettingsError:
    less = "lower --max_eval_samples, or " if settings.streaming and rows > 1 else ""
    return SettingsError(
        [f"{source}: evaluation takes the only {rows} rows there are; {less}give more text, or --validation_file"]
    )
