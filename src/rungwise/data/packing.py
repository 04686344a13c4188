"""Text to rows of tokens, (T,) each: packed into blocks, or each text padded on its own.

Each step is a function of a batch of columns, so that it serves both a whole data set and a stream. With a tokenizer
that has an end of text, one stands behind each document. In a packed row attention reaches across documents, over the
ends between them; nothing masks it. A document is a row of a data set, or a plain text file; of padded rows, a line.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets.fingerprint import Hasher
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ..settings.fields import Settings
from .files import as_text
from .sources import from_cache
from .texts import ENDS, Text

Columns = dict[str, list[Any]]
Step = Callable[[Columns], Columns]
# Texts that a stream reads at a time, as many as `datasets` maps at a time.
BATCH = 1000


def encoder(column: str, tokenizer: PreTrainedTokenizerBase | None, end: int | None = None) -> Step:
    """Texts to lists of tokens, `input_ids`. Special tokens are left out but for `end`, behind each document.

    A text without a token has no end, and one that brings its end gets no second one.
    """

    def encode(batch: Columns) -> Columns:
        texts = [as_text(text, column) or "" for text in batch[column]]
        if tokenizer is None:
            return {"input_ids": [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]}
        # Not verbose: texts longer than the model's positions are expected, and cut.
        rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        if end is not None:
            ends = batch.get(ENDS, [True] * len(rows))
            for ids, last in zip(rows, ends, strict=True):
                if last and ids and ids[-1] != end:
                    ids.append(end)
        return {"input_ids": rows}

    return encode


def packer(block_size: int) -> Step:
    """Joins all tokens in order and cuts them into blocks; only a last incomplete block is dropped.

    One packer serves one pass over the texts, in their order.
    """
    carried: list[np.ndarray] = []

    def pack(batch: Columns) -> Columns:
        # What does not fill a block waits for the next batch of texts.
        joined = np.concatenate([*carried, *(np.asarray(ids) for ids in batch["input_ids"])])
        whole = len(joined) // block_size * block_size
        carried[:] = [joined[whole:]]
        return {"input_ids": list(joined[:whole].reshape(-1, block_size))}

    return pack


def padder(block_size: int, pad_token: int) -> Step:
    """Each text is a row: cut off at `block_size` tokens or padded to them, `attention_mask` 0 on the padding.

    A label is predicted from the token before it, so a text of fewer than 2 tokens teaches nothing and is dropped.
    """

    def pad(batch: Columns) -> Columns:
        texts = [np.asarray(ids)[:block_size] for ids in batch["input_ids"] if len(ids) > 1]
        return {
            "input_ids": [np.pad(ids, (0, block_size - len(ids)), constant_values=pad_token) for ids in texts],
            "attention_mask": [(np.arange(block_size) < len(ids)).astype(np.int8) for ids in texts],
        }

    return pad


def row_maker(settings: Settings, tokenizer: PreTrainedTokenizerBase | None) -> Step:
    """Lists of tokens to rows of `block_size`, as the settings ask; for one pass over the texts."""
    return packer(settings.block_size) if settings.packing else padder(settings.block_size, pad_token(tokenizer))


def pad_token(tokenizer: PreTrainedTokenizerBase | None) -> int:
    """The tokenizer's padding token, else its end of text, else 0: it carries neither attention nor loss."""
    ids = [tokenizer.pad_token_id, tokenizer.eos_token_id] if tokenizer else []
    return next((token for token in ids if token is not None), 0)


def end_token(settings: Settings, tokenizer: PreTrainedTokenizerBase | None) -> int | None:
    """The token behind each document, which carries a loss as any other; None if there is none."""
    return tokenizer.eos_token_id if tokenizer and settings.append_eos else None


def map_rows(
    text: Text, settings: Settings, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[datasets.Dataset, dict[str, Any]]:
    """All rows of a text, cached by `datasets`: another block size tokenizes nothing again.

    The processes of one machine take turns: the first one tokenizes, the others find what it left.

    Returns:
        The rows; and what became of the text: `texts` (documents), of these `empty` and `missing` (without a value),
        `tokens`, `rows`, and what was `dropped`, by the reason in words.
    """
    # Types are stated, since there may be no row in a first batch to tell them from.
    tokens = datasets.Features({"input_ids": datasets.List(datasets.Value("int32" if tokenizer else "uint8"))})
    mask = {} if settings.packing else {"attention_mask": datasets.List(datasets.Value("int8"))}
    features = datasets.Features({**tokens, **mask})
    encode = encoder(text.column, tokenizer, end_token(settings, tokenizer))
    with FileLock(_cache() / f"{text.rows._fingerprint}.lock"):
        encoded = _map(text.rows, encode, tokens, "Tokenizing")
        rows = _map(encoded.with_format("numpy"), row_maker(settings, tokenizer), features, "Making rows")
    return rows.with_format("torch"), _counts(text, encoded, rows, settings)


def stream_rows(
    text: Text, settings: Settings, tokenizer: PreTrainedTokenizerBase | None
) -> Iterator[dict[str, np.ndarray]]:
    """The same rows one by one, as they are needed; nothing is kept."""
    encode = encoder(text.column, tokenizer, end_token(settings, tokenizer))
    make_rows = row_maker(settings, tokenizer)
    for batch in text.rows.iter(BATCH):
        columns = make_rows(encode(batch))
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def count_tokens(text: Text, settings: Settings, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """How many tokens a text has, of all its rows together."""
    encode = encoder(text.column, tokenizer, end_token(settings, tokenizer))
    return sum(len(ids) for batch in text.rows.iter(BATCH) for ids in encode(batch)["input_ids"])


def _counts(text: Text, encoded: datasets.Dataset, rows: datasets.Dataset, settings: Settings) -> dict[str, Any]:
    values, lengths = _column(text.rows, text.column), pc.list_value_length(_column(encoded, "input_ids"))
    lengths = lengths.to_numpy()
    if settings.packing:
        dropped = {"tokens of a last incomplete block": int(lengths.sum()) % settings.block_size}
    else:
        dropped = {
            "texts of fewer than 2 tokens": int((lengths < 2).sum()),
            "tokens cut off behind block_size": int(np.maximum(lengths - settings.block_size, 0).sum()),
        }
    ends = _column(text.rows, ENDS) if ENDS in text.rows.column_names else None
    strings = pa.types.is_string(values.type) or pa.types.is_large_string(values.type)
    return {
        "texts": len(values) if ends is None else pc.sum(ends).as_py(),
        "empty": pc.sum(pc.equal(pc.utf8_length(values), 0)).as_py() or 0 if strings else 0,
        "missing": values.null_count,
        "tokens": int(lengths.sum()),
        "rows": len(rows),
        "dropped": {why: count for why, count in dropped.items() if count},
    }


def _column(rows: datasets.Dataset, name: str) -> pa.ChunkedArray:
    # Rows that were picked from a data set stand in its table in another order, among others.
    return rows.with_format("arrow")[:][name]


def _cache() -> Path:
    """Where tokens and rows are kept: never beside the user's own files."""
    folder = Path(datasets.config.HF_DATASETS_CACHE).expanduser() / "rungwise"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _map(rows: datasets.Dataset, step: Step, features: datasets.Features, words: str) -> datasets.Dataset:
    known = Hasher.hash([rows._fingerprint, step, features])
    # Rows in memory, as small data sets may be, stay there.
    cached = _cache() / f"{known}.arrow" if rows.cache_files else None

    def mapped() -> datasets.Dataset:
        # In one process, which keeps the order of the texts.
        return rows.map(
            step,
            batched=True,
            batch_size=BATCH,
            remove_columns=rows.column_names,
            features=features,
            desc=words,
            keep_in_memory=cached is None,
            cache_file_name=cached and str(cached),
            new_fingerprint=known,
        )

    return from_cache(mapped, cached) if cached else mapped()
