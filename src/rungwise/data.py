"""Text, or synthetic tokens, to packed blocks: rows of `input_ids` and `labels`, (B, T) each, int64.

The order of the rows is a function of the seed alone, so every rung sees the same rows in the same order.
"""

import codecs
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from transformers import AutoTokenizer, PreTrainedTokenizerBase, default_data_collator

from .models import load_config
from .problems import SettingsError
from .settings import Settings

STDLIB = "python-stdlib"
SYNTHETIC = "synthetic"
SYNTHETIC_ROWS = 256


class RowOrder(Sampler[int]):
    """Row numbers for a whole run: each epoch a new permutation, epochs joined without a gap.

    A window of `global_batch_size` rows may span two epochs, so that none is cut short.
    """

    def __init__(self, rows: int, total: int, seed: int):
        self.rows, self.total, self.seed = rows, total, seed

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.total, self.rows):
            generator = torch.Generator().manual_seed(self.seed + start // self.rows)
            yield from torch.randperm(self.rows, generator=generator)[: self.total - start].tolist()


def build_dataloader(dataset: datasets.Dataset, settings: Settings) -> DataLoader:
    """Micro-batches of (micro_batch_size, T) for `max_steps` steps over all processes.

    `Accelerator.prepare` deals them to the processes in turn, so that the rows of one optimizer step are the same
    however they are split.
    """
    order = RowOrder(len(dataset), settings.max_steps * settings.global_batch_size, settings.seed)
    batches = BatchSampler(order, settings.micro_batch_size, drop_last=False)
    # Without a generator of its own a loader draws from the global one when it starts, be it in the middle of a run.
    generator = torch.Generator().manual_seed(settings.seed)
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, generator=generator)


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Stacks rows; where they bring no labels, every token is one. The model shifts them by one itself."""
    batch = default_data_collator(rows)
    batch.setdefault("labels", batch["input_ids"].clone())
    return batch


def build_dataset(settings: Settings) -> datasets.Dataset:
    """The blocks of the run's data, one row of `block_size` tokens each.

    Raises:
        SettingsError: the data cannot be had, or is shorter than one block.
    """
    if settings.dataset_name == SYNTHETIC:
        return synthetic(load_config(settings).vocab_size, settings.block_size, settings.seed)
    if not (sys.stderr.isatty() and _named_by_user(settings)):
        datasets.disable_progress_bars()
    text, column = _load_text(settings)
    tokenizer = load_tokenizer(settings)
    blocks = pack(tokenize(text, column, tokenizer), settings.block_size)
    if len(blocks) == 0:
        raise SettingsError(
            [f"{_name(settings)}: the text is shorter than one block of {settings.block_size} tokens; give more text"]
        )
    vocab_size = load_config(settings).vocab_size
    largest = pc.max(pc.list_flatten(blocks.data["input_ids"])).as_py()
    if largest >= vocab_size:
        mend = "use the model's own tokenizer" if tokenizer else "bytes as tokens need a vocab_size of 256"
        raise SettingsError([f"the data has token {largest}, the model knows {vocab_size} tokens; {mend}"])
    return blocks.with_format("torch")


def synthetic(vocab_size: int, block_size: int, seed: int) -> datasets.Dataset:
    """256 rows of uniformly random tokens: the same for every rung, and nothing in them to learn but themselves."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (SYNTHETIC_ROWS, block_size), generator=generator)
    return datasets.Dataset.from_dict({"input_ids": tokens.numpy()}).with_format("torch")


def load_tokenizer(settings: Settings) -> PreTrainedTokenizerBase | None:
    """The tokenizer asked for, else the model's own, else None: bytes are the tokens."""
    name = settings.tokenizer_name or settings.model_name_or_path
    if name is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(name)
    except Exception as error:
        # Tokenizers come from the Hub and from other people's code, which raise anything.
        raise SettingsError(
            [f"no tokenizer in {name}: {str(error).splitlines()[0]}; give --tokenizer_name"]
        ) from error


def tokenize(text: datasets.Dataset, column: str, tokenizer: PreTrainedTokenizerBase | None) -> datasets.Dataset:
    """A dataset of token lists, `input_ids`, one for each text. Special tokens are left to the packing: none."""

    def encode(batch: dict[str, list[str]]) -> dict[str, list[Any]]:
        if tokenizer is None:
            return {"input_ids": [np.frombuffer(text.encode(), dtype=np.uint8) for text in batch[column]]}
        return {"input_ids": tokenizer(batch[column], add_special_tokens=False)["input_ids"]}

    return text.map(encode, batched=True, remove_columns=text.column_names, desc="Tokenizing")


def pack(tokens: datasets.Dataset, block_size: int) -> datasets.Dataset:
    """Joins all tokens in order and cuts them into blocks; only a last incomplete block is dropped."""
    carried: list[np.ndarray] = []

    def cut(batch: dict[str, list[np.ndarray]]) -> dict[str, list[np.ndarray]]:
        # What does not fill a block waits for the next batch of texts; `map` in one process keeps their order.
        joined = np.concatenate([*carried, *(np.asarray(ids) for ids in batch["input_ids"])])
        whole = len(joined) // block_size * block_size
        carried[:] = [joined[whole:]]
        return {"input_ids": list(joined[:whole].reshape(-1, block_size))}

    blocks = tokens.with_format("numpy").map(cut, batched=True, remove_columns=tokens.column_names, desc="Packing")
    return blocks.with_format(None)


def problems(settings: Settings) -> list[str]:
    """What is wrong with a text file, found before anything is built."""
    if not settings.train_file:
        return []
    path = Path(settings.train_file)
    if not path.is_file():
        return [f"--train_file {path}: no such file; give the path of a text file"]
    size = path.stat().st_size
    if size == 0:
        return [f"--train_file {path}: the file is empty; give a file with text"]
    try:
        with path.open("rb") as file:
            for _ in codecs.iterdecode(iter(lambda: file.read(1 << 20), b""), "utf-8"):
                pass
    except UnicodeDecodeError as error:
        return [f"--train_file {path}: not UTF-8 text ({error.reason}); convert it, or give another file"]
    bytes_are_tokens = not (settings.tokenizer_name or settings.model_name_or_path)
    if bytes_are_tokens and size < settings.block_size:
        return [
            f"--train_file {path}: its {size} bytes are shorter than one block of {settings.block_size} tokens; "
            f"give more text, or --block_size {size} or less"
        ]
    return []


def stdlib_files() -> list[str]:
    """The modules of the running Python's standard library, by name: about 5 MB of source text."""
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


def _load_text(settings: Settings) -> tuple[datasets.Dataset, str]:
    """A dataset with a text column, and the column's name."""
    if settings.train_file or settings.dataset_name == STDLIB:
        files = [settings.train_file] if settings.train_file else stdlib_files()
        return datasets.load_dataset("text", data_files=files, split="train", keep_linebreaks=True), "text"
    name, split = settings.dataset_name, settings.dataset_split or "train"
    try:
        text = datasets.load_dataset(name, settings.dataset_config_name, split=split)
    except Exception as error:
        # A dataset comes from the Hub, a folder or a file, and each fails in its own way.
        raise SettingsError([f"--dataset_name {name}, split {split}: {str(error).splitlines()[0]}"]) from error
    columns = [
        key for key, feature in text.features.items() if getattr(feature, "dtype", None) in ("string", "large_string")
    ]
    column = settings.text_column or ("text" if "text" in columns else next(iter(columns), None))
    if column not in columns:
        raise SettingsError([f"--text_column {column}: {name} has no such text column; it has {', '.join(columns)}"])
    return text, column


def _named_by_user(settings: Settings) -> bool:
    return settings.dataset_name != STDLIB


def _name(settings: Settings) -> str:
    return f"--train_file {settings.train_file}" if settings.train_file else f"--dataset_name {settings.dataset_name}"
