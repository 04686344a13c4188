"""Texts to rows: no token is lost, moved or made up; whole and streamed the same; tokenized once."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

from rungwise.data import loader
from rungwise.data.packing import encoder, map_rows, packer, padder, stream_rows
from rungwise.data.sources import Source, load_tokenizer
from rungwise.data.texts import load_text, stdlib_files
from rungwise.settings.parse import parse

import numpy as np
import pytest
import torch
from harness import (
    ENVIRONMENT,
    HANGS,
    ROOT,
    build_dataset,
    data_errors,
    file_settings,
    open_inputs,
    tiny_settings,
    word_tokenizer,
)
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

TEXTS = st.lists(st.text(alphabet="abä\n", max_size=9), min_size=1, max_size=30)


def in_batches(step, column, size):
    """What a step makes of a column, batch by batch, joined."""
    rows = {}
    for start in range(0, len(column), size):
        for name, values in step({"input_ids": column[start : start + size]}).items():
            rows.setdefault(name, []).extend(values)
    return rows


@given(TEXTS, st.integers(1, 7), st.integers(1, 9))
def test_packing_loses_only_the_last_incomplete_block(texts, block_size, batch_size):
    tokens = encoder("text", None)({"text": texts})["input_ids"]
    joined = list("".join(texts).encode())
    rows = in_batches(packer(block_size), tokens, batch_size)["input_ids"]
    assert [token for row in rows for token in row] == joined[: len(joined) // block_size * block_size]
    assert all(len(row) == block_size for row in rows)


@given(TEXTS, st.integers(2, 7), st.integers(1, 9), st.integers(0, 255))
def test_padding_keeps_the_start_of_each_text(texts, block_size, batch_size, pad):
    tokens = encoder("text", None)({"text": texts})["input_ids"]
    rows = in_batches(padder(block_size, pad), tokens, batch_size)
    kept = [text.encode()[:block_size] for text in texts if len(text.encode()) > 1]
    pairs = list(zip(rows["input_ids"], rows["attention_mask"], strict=True))
    assert [bytes(ids[mask == 1].tolist()) for ids, mask in pairs] == kept
    for ids, mask in pairs:
        assert len(ids) == len(mask) == block_size and (ids[mask == 0] == pad).all()
        # All padding is behind the text.
        assert (np.diff(mask.astype(int)) <= 0).all()


@pytest.mark.parametrize("packing", ["true", "false"])
def test_whole_and_streamed_rows_are_the_same(tmp_path, packing):
    """More texts than one batch holds, and more empty ones at the start than that: nothing is lost at the seams."""
    path = tmp_path / "lines.txt"
    path.write_text("\n" * 1200 + "".join(f"{n} and on\n" for n in range(2500)))
    settings = file_settings(path, "--block_size", "9", "--packing", packing)
    source = Source("train_file", str(path))
    whole = map_rows(load_text(source, settings, streaming=False), settings, None)[0]
    streamed = list(stream_rows(load_text(source, settings, streaming=True), settings, None))
    assert whole.column_names == list(streamed[0]) == ["input_ids", *["attention_mask"] * (packing == "false")]
    for name in whole.column_names:
        assert whole[:][name].dtype == torch.int64
        assert whole[:][name].tolist() == np.stack([row[name] for row in streamed]).tolist()
    rows = whole[:]["input_ids"]
    if packing == "true":
        text = path.read_bytes()
        assert bytes(rows.flatten().tolist()) == text[: len(text) // 9 * 9]
    else:
        assert len(rows) == 2500 and bytes(rows[2].tolist()) == b"2 and on\0"


def test_texts_that_are_missing_are_empty():
    encoded = encoder("text", None)({"text": [None, "ab"]})["input_ids"]
    assert [list(ids) for ids in encoded] == [[], [97, 98]]


def test_padding_is_the_tokenizers(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("w1 w2\nw3\n\nw4 w5 w6 w7 w8\n")
    for special, pad in (({"pad_token": "w9"}, 9), ({"eos_token": "w8"}, 8), ({}, 0)):
        name = word_tokenizer(tmp_path / str(pad), 64, **special)
        settings = file_settings(path, "--packing", "false", "--tokenizer_name", name, append_eos=False)
        text = load_text(Source("train_file", str(path)), settings, streaming=False)
        rows = map_rows(text, settings, load_tokenizer(settings))[0][:]
        assert rows["input_ids"].tolist() == [[1, 2, pad, pad], [4, 5, 6, 7]]
        assert rows["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_the_standard_library_is_text_of_bytes():
    settings = tiny_settings("--dataset_name", "python-stdlib")
    rows = map_rows(load_text(Source("dataset_name", "python-stdlib"), settings, streaming=False), settings, None)[0]
    source = b"".join(Path(file).read_bytes() for file in stdlib_files()[:3])
    joined = rows[: len(source) // 32]["input_ids"].flatten()
    assert bytes(joined.tolist()) == source[: len(joined)]
    assert len(rows) * 32 > 2_000_000


# Of a process that imports this file, too.
HERE = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(Path(__file__).parent)])}
COUNTED = """
import sys
sys.path.append("tests/data")
import test_packing

print(test_packing.tokenizer_calls(sys.argv[1], sys.argv[2]))
"""


def tokenizer_calls(path, tokenizer):
    """How often a tokenizer is called for data of three block sizes."""
    calls, call = [], PreTrainedTokenizerBase.__call__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            PreTrainedTokenizerBase, "__call__", lambda *args, **kwargs: calls.append(args) or call(*args, **kwargs)
        )
        for block_size in ("4", "8", "4"):
            build_dataset(file_settings(path, "--tokenizer_name", tokenizer, "--block_size", block_size))
    return len(calls)


def test_texts_are_tokenized_once_for_all_runs(tmp_path):
    """Over block sizes and processes; again when the file is another."""
    path, tokenizer = tmp_path / "words.txt", word_tokenizer(tmp_path / "tokenizer", 64)
    path.write_text("w1 w2 w3 w4\n" * 50)
    assert tokenizer_calls(path, tokenizer) == 1
    command = [sys.executable, "-c", COUNTED, str(path), tokenizer]
    done = subprocess.run(command, cwd=ROOT, env=HERE, capture_output=True, text=True, timeout=HANGS)
    # No bar where there is no terminal, and no warning that a cache cannot be used.
    assert (done.stdout, done.stderr) == ("0\n", "")
    path.write_text("w1 w2 w3 w5\n" * 50)
    assert tokenizer_calls(path, tokenizer) == 1


def test_a_cached_text_is_not_tokenized_with_another_tokenizer(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("w1 w2 w3 w4\n" * 50)
    source = Source("train_file", str(path))

    def first_row(*flags):
        settings = file_settings(path, *flags)
        rows, _ = map_rows(load_text(source, settings, streaming=False), settings, load_tokenizer(settings))
        return rows[0]["input_ids"].tolist()

    assert first_row("--tokenizer_name", word_tokenizer(tmp_path / "a", 64)) == [1, 2, 3, 4]
    assert first_row("--tokenizer_name", word_tokenizer(tmp_path / "b", 3)) == [1, 2, 0, 0]
    assert first_row() == list(b"w1 w")


END = 63
ROWS = ["w1 w2", "", "w3", None, "w4 w5 w63", "w6 w7 w8 w9 w10"]


def rows_with_ends(tmp_path, name, content, *flags):
    """The rows of a file by a tokenizer whose end of text is 63, and what is recorded of it."""
    (tmp_path / name).write_text(content)
    tokenizer = word_tokenizer(tmp_path / "t", 64, eos_token="w63")
    settings = file_settings(tmp_path / name, "--tokenizer_name", tokenizer, *flags)
    inputs = open_inputs(settings)
    rows, _ = loader.build_datasets(settings, inputs)
    return rows, inputs.data.train


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("end", [True, False])
def test_an_end_of_text_stands_behind_each_document_of_packed_rows(tmp_path, streaming, end):
    """None behind an empty one, no second one where a text brings its own."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in ROWS)
    flags = ("--block_size", "2", "--streaming", streaming, *(() if end else ("--append_eos", "false")))
    rows, report = rows_with_ends(tmp_path, "a.jsonl", content, *flags)
    tokens = [1, 2, *[END] * end, 3, *[END] * end, 4, 5, END, 6, 7, 8, 9, 10, *[END] * end]
    expected = [tokens[start : start + 2] for start in range(0, len(tokens) - 1, 2)]
    found = [row["input_ids"].tolist() for row in islice(rows, len(expected))]
    assert (sorted(found) == sorted(expected)) if streaming == "true" else (found == expected)
    assert report["end_of_text"] == ("w63" if end else None)
    if streaming == "false":
        counts = {"texts": 6, "empty": 1, "missing": 1, "tokens": len(tokens), "rows": len(expected)}
        assert report.items() >= counts.items()


def test_a_plain_text_file_is_one_document(tmp_path):
    rows, report = rows_with_ends(tmp_path, "a.txt", "w1 w2\n\nw3\n", "--block_size", "2")
    assert rows[:]["input_ids"].tolist() == [[1, 2], [3, END]] and report["texts"] == 1


def test_each_file_of_several_is_a_document(tmp_path):
    folder = tmp_path / "several"
    folder.mkdir()
    for number, text in enumerate(["w1 w2\nw3", "w4", "w5\nw6\n"]):
        (folder / f"{number}.txt").write_text(text)
    tokenizer = word_tokenizer(tmp_path / "t", 64, eos_token="w63")
    flags = ("--dataset_name", str(folder), "--tokenizer_name", tokenizer, "--block_size", "3")
    rows = build_dataset(tiny_settings(*flags))
    assert rows[:]["input_ids"].tolist() == [[1, 2, 3], [END, 4, END], [5, 6, END]]


def test_a_padded_text_has_its_end_if_it_fits_and_learns_it(tmp_path):
    """A text of one token has two with its end; one that is cut off has none."""
    content = "w1 w2\nw3\n\nw4 w5 w6\nw7 w8 w9 w10\n"
    rows, report = rows_with_ends(tmp_path, "a.txt", content, "--packing", "false")
    assert rows[:]["input_ids"].tolist() == [[1, 2, END, END], [3, END, END, END], [4, 5, 6, END], [7, 8, 9, 10]]
    labels = loader.collate(list(rows))["labels"].tolist()
    assert labels == [[1, 2, END, -100], [3, END, -100, -100], [4, 5, 6, END], [7, 8, 9, 10]]
    counts = {"texts": 5, "empty": 1, "missing": 0, "tokens": 14, "rows": 4}
    assert report.items() >= counts.items()
    assert report["dropped"] == {"texts of fewer than 2 tokens": 1, "tokens cut off behind block_size": 1}


@pytest.mark.parametrize("tokenizer, why", [(False, "no tokenizer with an end"), (True, "this tokenizer has no end")])
def test_an_end_of_text_that_is_not_there_is_not_promised(tmp_path, tokenizer, why):
    (tmp_path / "a.txt").write_text("w1 w2 w3")
    flags = ["--tokenizer_name", word_tokenizer(tmp_path / "t", 64)] if tokenizer else []
    flags += ["--config", "accelerate_configs/fp32.yaml", "--train_file", str(tmp_path / "a.txt"), "--block_size", "4"]
    for value in ("true", "false"):
        settings, _ = parse([*flags, "--append_eos", value])
        [problem] = data_errors(settings)
        assert problem.startswith("--append_eos has no effect: ") and why in problem
