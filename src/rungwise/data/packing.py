"""Text to rows of tokens, (T,) each: packed into blocks, or each text padded on its own.

Each step is a function of a batch of columns, so that it serves both a whole data set and a stream.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from ..settings.fields import Settings
from .sources import Text

Columns = dict[str, list[Any]]
Step = Callable[[Columns], Columns]
# Texts that a stream reads at a time, as many as `datasets` maps at a time.
BATCH = 1000


def encoder(column: str, tokenizer: PreTrainedTokenizerBase | None) -> Step:
    """Texts to lists of tokens, `input_ids`. Special tokens are left out: rows are cut from running text."""

    def encode(batch: Columns) -> Columns:
        texts = [text or "" for text in batch[column]]
        if tokenizer is None:
            return {"input_ids": [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]}
        # Not verbose: texts longer than the model's positions are expected, and cut.
        return {"input_ids": tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]}

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


def map_rows(text: Text, settings: Settings, tokenizer: PreTrainedTokenizerBase | None) -> datasets.Dataset:
    """All rows of a text, cached by `datasets`: another block size tokenizes nothing again.

    The processes of one machine take turns: the first one tokenizes, the others find what it left.
    """
    # Types are stated, since there may be no row in a first batch to tell them from.
    tokens = datasets.Features({"input_ids": datasets.List(datasets.Value("int32" if tokenizer else "uint8"))})
    mask = {} if settings.packing else {"attention_mask": datasets.List(datasets.Value("int8"))}
    features = datasets.Features({**tokens, **mask})
    with FileLock(Path(text.rows.cache_files[0]["filename"]).parent / "rungwise.lock"):
        encoded = _map(text.rows, encoder(text.column, tokenizer), tokens, "Tokenizing")
        rows = _map(encoded.with_format("numpy"), row_maker(settings, tokenizer), features, "Making rows")
    return rows.with_format("torch")


def stream_rows(
    text: Text, settings: Settings, tokenizer: PreTrainedTokenizerBase | None
) -> Iterator[dict[str, np.ndarray]]:
    """The same rows one by one, as they are needed; nothing is kept."""
    encode, make_rows = encoder(text.column, tokenizer), row_maker(settings, tokenizer)
    for batch in text.rows.iter(BATCH):
        columns = make_rows(encode(batch))
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def count_tokens(text: Text, tokenizer: PreTrainedTokenizerBase | None) -> int:
    """How many tokens a text has, of all its rows together."""
    encode = encoder(text.column, tokenizer)
    return sum(len(ids) for batch in text.rows.iter(BATCH) for ids in encode(batch)["input_ids"])


def _map(rows: datasets.Dataset, step: Step, features: datasets.Features, words: str) -> datasets.Dataset:
    # In one process, which keeps the order of the texts.
    return rows.map(
        step, batched=True, batch_size=BATCH, remove_columns=rows.column_names, features=features, desc=words
    )
