"""Which row comes when: a function of the seed alone, so every rung sees the same rows in the same order."""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

# Rows that a stream holds back to shuffle: each next one is drawn from among them.
SHUFFLE_BUFFER = 1024

Row = dict[str, torch.Tensor]


class EpochSampler(Sampler[int]):
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


class StreamingRows(IterableDataset):
    """Rows for a whole run, read as they are needed: read anew each epoch, and shuffled anew within a buffer."""

    def __init__(self, read: Callable[[], Iterator[Row]], total: int, seed: int):
        self.read, self.total, self.seed = read, total, seed

    def __len__(self) -> int:
        return self.total

    def __iter__(self) -> Iterator[Row]:
        generators = (torch.Generator().manual_seed(self.seed + epoch) for epoch in count())
        epochs = (shuffled(self.read(), SHUFFLE_BUFFER, generator) for generator in generators)
        return islice(chain.from_iterable(epochs), self.total)


class PaddedEvalRows(Dataset):
    """Rows to evaluate on, filled up to a multiple of `multiple` with rows that carry no loss.

    So every process gets the same number of batches, and no token is counted twice.
    """

    def __init__(self, rows: Sequence[Row], multiple: int):
        self.rows, self.multiple = rows, multiple

    def __len__(self) -> int:
        return -(-len(self.rows) // self.multiple) * self.multiple

    def __getitem__(self, index: int) -> Row:
        row = self.rows[min(index, len(self.rows) - 1)]
        labels = labels_of(row)
        return {**row, "labels": labels if index < len(self.rows) else torch.full_like(labels, -100)}


def labels_of(row: Row) -> torch.Tensor:
    """The labels of a row, or of a batch: its own, else each token, and -100 on what is masked. Same shape."""
    if "labels" in row:
        return row["labels"]
    if "attention_mask" in row:
        return row["input_ids"].masked_fill(row["attention_mask"] == 0, -100)
    return row["input_ids"].clone()


def shuffled(rows: Iterator[Row], buffer: int, generator: torch.Generator) -> Iterator[Row]:
    """All rows, each drawn from `buffer` of them that are held at a time."""
    held = list(islice(rows, buffer))
    for row in rows:
        index = int(torch.randint(len(held), (), generator=generator))
        yield held[index]
        held[index] = row
    yield from (held[index] for index in torch.randperm(len(held), generator=generator).tolist())
