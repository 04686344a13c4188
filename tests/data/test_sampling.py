"""Which row comes when: each once an epoch, epochs without a gap, the same whatever reads them."""

from itertools import islice

from rungwise.data.sampling import EpochSampler, PaddedEvalRows, StreamingRows, labels_of, shuffled

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st


def numbered(count):
    return [{"input_ids": torch.tensor([n, n])} for n in range(count)]


def numbers(rows):
    return [int(row["input_ids"][0]) for row in rows]


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 5))
def test_each_row_is_seen_once_an_epoch(rows, total, seed):
    order = list(EpochSampler(rows, total, seed))
    assert len(order) == total == len(EpochSampler(rows, total, seed))
    for start in range(0, total - rows + 1, rows):
        assert sorted(order[start : start + rows]) == list(range(rows))
    assert len(set(order[total - total % rows :])) == total % rows
    assert order == list(EpochSampler(rows, total, seed))


def test_epochs_and_seeds_differ():
    order = list(EpochSampler(50, 100, seed=0))
    assert order[:50] != order[50:]
    assert order != list(EpochSampler(50, 100, seed=9))


@given(st.integers(0, 60), st.integers(1, 80), st.integers(0, 9))
def test_a_shuffled_stream_has_each_row_once(count, buffer, seed):
    def order():
        return list(shuffled(iter(range(count)), buffer, torch.Generator().manual_seed(seed)))

    assert sorted(order()) == list(range(count)) and order() == order()
    # No row comes before it could have been read.
    assert all(row < place + buffer for place, row in enumerate(order()))


@given(st.integers(1, 30), st.integers(1, 100), st.integers(0, 5))
def test_a_stream_is_repeated_in_another_order(count, total, seed):
    stream = StreamingRows(lambda: iter(numbered(count)), total, seed)
    order = numbers(stream)
    assert len(order) == total == len(stream) and order == numbers(stream)
    for start in range(0, total - count + 1, count):
        assert sorted(order[start : start + count]) == list(range(count))
    if count > 5 and total >= 2 * count:
        assert order[:count] != order[count : 2 * count]


def test_a_stream_reads_no_further_than_it_must(monkeypatch):
    monkeypatch.setattr("rungwise.data.sampling.SHUFFLE_BUFFER", 8)
    read = []

    def rows():
        for row in numbered(1000):
            read.append(row)
            yield row

    list(islice(StreamingRows(rows, total=500, seed=0), 5))
    assert len(read) == 8 + 5


@given(st.integers(1, 30), st.integers(1, 12))
def test_rows_that_fill_up_an_evaluation_carry_no_loss(count, multiple):
    rows = PaddedEvalRows(numbered(count), multiple)
    assert len(rows) % multiple == 0 and 0 <= len(rows) - count < multiple
    labels = torch.stack([rows[index]["labels"] for index in range(len(rows))])
    assert labels[:count].tolist() == [[n, n] for n in range(count)]
    assert (labels[count:] == -100).all()


@pytest.mark.parametrize("shape", [(4,), (2, 4)])
def test_labels_are_the_tokens_that_are_not_masked(shape):
    ids, mask = torch.ones(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)
    mask[..., 2:] = 0
    assert labels_of({"input_ids": ids, "labels": 7 * ids}).equal(7 * ids)
    assert labels_of({"input_ids": ids}).equal(ids)
    assert labels_of({"input_ids": ids, "attention_mask": mask}).equal(torch.where(mask == 1, ids, -100))
