"""Rows: complete, in one order, each seen once an epoch."""

from pathlib import Path

from rungwise import data
from rungwise.data import RowOrder, build_dataloader, build_dataset, pack, stdlib_files, tokenize
from rungwise.problems import SettingsError

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from harness import tiny_settings
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


@given(st.integers(1, 40), st.integers(1, 200), st.integers(0, 5))
def test_each_row_is_seen_once_an_epoch(rows, total, seed):
    order = list(RowOrder(rows, total, seed))
    assert len(order) == total == len(RowOrder(rows, total, seed))
    for start in range(0, total - rows + 1, rows):
        assert sorted(order[start : start + rows]) == list(range(rows))
    assert len(set(order[total - total % rows :])) == total % rows
    assert order == list(RowOrder(rows, total, seed))


def test_epochs_and_seeds_differ():
    order = list(RowOrder(50, 100, seed=0))
    assert order[:50] != order[50:]
    assert order != list(RowOrder(50, 100, seed=9))


@pytest.mark.parametrize("accumulation", [1, 2, 4, 16])
def test_the_same_rows_in_the_same_order_however_they_are_split(accumulation):
    def windows(accumulation):
        settings = tiny_settings("--gradient_accumulation_steps", str(accumulation), "--max_steps", "20")
        batches = list(Accelerator(cpu=True).prepare(build_dataloader(build_dataset(settings), settings)))
        assert all(batch["input_ids"].shape == (16 // accumulation, 32) for batch in batches)
        return torch.cat([batch["input_ids"] for batch in batches])

    assert torch.equal(windows(accumulation), windows(1))


@given(st.lists(st.text(alphabet="abä\n", max_size=9), min_size=1, max_size=30), st.integers(1, 7))
def test_packing_loses_only_the_last_incomplete_block(texts, block_size):
    tokens = tokenize(Dataset.from_dict({"text": texts}), "text", tokenizer=None)
    joined = list("".join(texts).encode())
    blocks = pack(tokens, block_size)
    packed = [token for row in blocks["input_ids"] for token in row]
    assert packed == joined[: len(joined) // block_size * block_size]
    assert all(len(row) == block_size for row in blocks["input_ids"])


def test_packing_carries_over_the_batches_of_map():
    """More texts than one batch of `map` holds: nothing is lost at the seams."""
    texts = [f"{n}\n" for n in range(2500)]
    blocks = pack(tokenize(Dataset.from_dict({"text": texts}), "text", tokenizer=None), 7)
    packed = bytes(token for row in blocks["input_ids"] for token in row)
    assert packed == "".join(texts).encode()[: len(packed)]
    assert len("".join(texts)) - len(packed) < 7


def test_the_standard_library_is_text_of_bytes():
    with pytest.raises(SettingsError, match="knows 128 tokens; bytes as tokens need a vocab_size of 256"):
        build_dataset(tiny_settings("--dataset_name", "python-stdlib"))
    rows = build_dataset(tiny_settings("--dataset_name", "python-stdlib", config_overrides="vocab_size=256"))
    source = b"".join(Path(file).read_bytes() for file in stdlib_files()[:3])
    joined = np.concatenate([np.asarray(row) for row in rows[: len(source) // 32]["input_ids"]])
    assert bytes(joined.astype(np.uint8)) == source[: len(joined)]
    assert len(rows) * 32 > 2_000_000
    assert set(rows[0]) == {"input_ids"} and rows[0]["input_ids"].dtype == torch.int64


def test_synthetic_rows_are_fixed():
    rows = build_dataset(tiny_settings())
    again = build_dataset(tiny_settings())
    other = build_dataset(tiny_settings("--seed", "1"))
    assert rows.num_rows == 256
    assert torch.equal(rows[:]["input_ids"], again[:]["input_ids"])
    assert not torch.equal(rows[:]["input_ids"], other[:]["input_ids"])
    assert rows[:]["input_ids"].max() < 128


def word_tokenizer(folder, vocab_size):
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


def file_settings(path, *flags):
    settings = tiny_settings("--block_size", "4", *flags)
    import dataclasses

    return dataclasses.replace(settings, dataset_name=None, train_file=str(path))


def test_a_file_with_a_tokenizer(tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("w1 w2 w3\nw4 w5\n\nw6 w7 w8 w9\n")
    settings = file_settings(text, "--tokenizer_name", word_tokenizer(tmp_path / "tokenizer", 64))
    assert build_dataset(settings)[:]["input_ids"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_a_tokenizer_that_does_not_fit_the_model(tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("w1 w2 w3 w500\n" * 9)
    settings = file_settings(text, "--tokenizer_name", word_tokenizer(tmp_path / "tokenizer", 600))
    with pytest.raises(SettingsError, match="has token 500, the model knows 128 tokens; use the model's own"):
        build_dataset(settings)


def test_a_file_shorter_than_a_block_of_tokens(tmp_path):
    text = tmp_path / "words.txt"
    text.write_text("w1 w2 w3 and no more than these few")
    settings = file_settings(text, "--block_size", "32", "--tokenizer_name", word_tokenizer(tmp_path / "t", 64))
    with pytest.raises(SettingsError, match="shorter than one block of 32 tokens"):
        build_dataset(settings)


def test_local_data_by_dataset_name(tmp_path):
    (tmp_path / "some.jsonl").write_text('{"n": 1, "body": "aaaa"}\n{"n": 2, "body": "bbbbcc"}\n')
    flags = ["--dataset_name", str(tmp_path), "--block_size", "4"]
    assert build_dataset(tiny_settings(*flags))[:]["input_ids"].tolist() == [[97] * 4, [98] * 4]
    with pytest.raises(SettingsError, match=r"--text_column n: .* has no such text column; it has body"):
        build_dataset(tiny_settings(*flags, "--text_column", "n"))
    with pytest.raises(SettingsError, match="--dataset_name /no/such/folder, split train"):
        build_dataset(tiny_settings("--dataset_name", "/no/such/folder"))


@pytest.mark.parametrize(
    "content, message",
    [
        (None, "no such file"),
        (b"", "the file is empty"),
        (b"abc", "its 3 bytes are shorter than one block of 4 tokens; give more text, or --block_size 3 or less"),
        (b"caf\xe9 au lait", "not UTF-8 text"),
        (b"long enough, cut in a letter \xc3", "not UTF-8 text"),
    ],
)
def test_bad_text_files(tmp_path, content, message):
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    [problem] = data.problems(file_settings(path))
    assert message in problem and str(path) in problem


def test_good_text_files(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ä" * 2**20 + "b", encoding="utf-8")  # letters of two bytes across the seams of reading
    assert data.problems(file_settings(path)) == []
