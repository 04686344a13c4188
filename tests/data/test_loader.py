"""The rows of a run: the same however they are split, held out from training where they are evaluated on."""

from rungwise.data.loader import build_dataloader, build_eval_dataloader
from rungwise.data.sampling import StreamingRows
from rungwise.errors import SettingsError

import pandas
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from harness import LINES, build_dataset, build_datasets, file_settings, tiny_settings, word_tokenizer

PADDED = ("--dataset_name", LINES, "--packing", "false")
KINDS = {
    "synthetic": (),
    "packed": ("--dataset_name", LINES),
    "padded": PADDED,
    "streamed": ("--dataset_name", LINES, "--streaming"),
    "streamed and padded": (*PADDED, "--streaming"),
}


def prepared(loader):
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False)).prepare(loader)


def rows_of(loader):
    """All rows of a loader, (N, T), and their labels."""
    batches = list(loader)
    return tuple(torch.cat([batch[name] for batch in batches]) for name in ("input_ids", "labels"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_rows_in_the_same_order_however_they_are_split(kind):
    def windows(accumulation):
        settings = tiny_settings(*KINDS[kind], "--gradient_accumulation_steps", str(accumulation))
        batches = list(prepared(build_dataloader(build_dataset(settings), settings)))
        assert all(batch["input_ids"].shape == (16 // accumulation, 32) for batch in batches)
        assert all(value.dtype == torch.int64 for value in batches[0].values())
        return torch.cat([batch["input_ids"] for batch in batches])

    whole = windows(1)
    assert len(whole) == 20 * 16
    for accumulation in (2, 4, 16):
        assert torch.equal(windows(accumulation), whole)


@pytest.mark.parametrize("kind", KINDS)
def test_loaders_leave_the_global_generator_alone(kind):
    """A run that goes on from a checkpoint draws the same numbers, wherever its loaders begin."""
    settings = tiny_settings(*KINDS[kind], "--eval_steps", "2")
    train, evaluation = build_datasets(settings)
    before = torch.get_rng_state()
    for loader in (build_dataloader(train, settings), build_eval_dataloader(evaluation, settings)):
        next(iter(prepared(loader)))
    assert torch.equal(torch.get_rng_state(), before)


def test_synthetic_rows_are_fixed():
    rows = build_dataset(tiny_settings())
    again = build_dataset(tiny_settings())
    other = build_dataset(tiny_settings("--seed", "1"))
    assert rows.num_rows == 256
    assert torch.equal(rows[:]["input_ids"], again[:]["input_ids"])
    assert not torch.equal(rows[:]["input_ids"], other[:]["input_ids"])
    assert rows[:]["input_ids"].max() < 128


@pytest.mark.parametrize("flags", [(), ("--packing", "false")])
def test_an_epoch_of_a_stream_has_the_rows_of_the_data_set(flags):
    flags = ("--dataset_name", LINES, *flags)
    whole = build_dataset(tiny_settings(*flags))[:]["input_ids"].tolist()
    stream = build_dataset(tiny_settings(*flags, "--streaming", "--max_steps", "50"))
    assert isinstance(stream, StreamingRows) and len(stream) == 800 > 2 * len(whole) > 200
    order = [row["input_ids"].tolist() for row in stream]
    epochs = [order[start : start + len(whole)] for start in (0, len(whole))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(whole)
    assert epochs[0] != epochs[1] and epochs[0] != whole
    assert order == [row["input_ids"].tolist() for row in stream]


def test_the_standard_library_can_be_streamed():
    flags = ("--dataset_name", "python-stdlib", "--streaming")
    rows = build_dataset(tiny_settings(*flags, config_overrides="vocab_size=256"))
    assert next(iter(rows))["input_ids"].shape == (32,)


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_file_with_a_tokenizer(tmp_path, streaming):
    text = tmp_path / "words.txt"
    text.write_text("w1 w2 w3\nw4 w5\n\nw6 w7 w8 w9\n")
    tokenizer = word_tokenizer(tmp_path / "tokenizer", 64)
    settings = file_settings(text, "--tokenizer_name", tokenizer, "--streaming", streaming)
    assert sorted(row["input_ids"].tolist() for row in build_dataset(settings))[-1] == [5, 6, 7, 8]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_tokens_that_the_model_does_not_know(tmp_path, streaming):
    text = tmp_path / "words.txt"
    text.write_text("w1 w2 w3 w500\n" * 9)
    tokenizer = word_tokenizer(tmp_path / "tokenizer", 600)
    with pytest.raises(SettingsError, match="has token 500, the model knows 128 tokens; use the model's own"):
        build_dataset(file_settings(text, "--tokenizer_name", tokenizer, "--streaming", streaming))
    text.write_text("letters beyond ASCII: äöü")
    with pytest.raises(SettingsError, match="knows 128 tokens; bytes as tokens need a vocab_size of 256"):
        list(build_dataset(file_settings(text, "--streaming", streaming)))


def test_what_is_wrong_further_on_in_a_stream_is_said_when_it_comes(tmp_path):
    text = tmp_path / "text.txt"
    # It is read 10 MB at a time.
    text.write_bytes((b"fine" * 250 + b"\n") * 11_000 + b"caf\xe9 au lait\n")
    settings = file_settings(text, "--streaming", "--block_size", "4096", "--max_steps", "999")
    dataset = build_dataset(settings)
    with pytest.raises(SettingsError, match=r"--train_file .*: not UTF-8 text"):
        list(dataset)


WRITERS = {
    "a.txt": lambda path, texts: path.write_text("\n".join(texts)),
    "a.jsonl": lambda path, texts: pandas.DataFrame({"text": texts}).to_json(path, orient="records", lines=True),
    "a.csv": lambda path, texts: pandas.DataFrame({"text": texts}).to_csv(path, index=False),
    "a.parquet": lambda path, texts: pandas.DataFrame({"text": texts}).to_parquet(path),
}


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("tokenizer", [False, True])
@pytest.mark.parametrize("name", WRITERS)
def test_a_text_shorter_than_one_block_gives_its_count_of_tokens(tmp_path, name, tokenizer, streaming):
    """Whatever it is read from, to train on and to evaluate on, and so that the remedy that is named works."""
    WRITERS[name](path := tmp_path / name, ["w1 w2", "w3"])
    # The line's end between them is a byte of the text, and of the text alone.
    count = 3 if tokenizer else 8 if name == "a.txt" else 7
    flags = ["--tokenizer_name", word_tokenizer(tmp_path / "t", 64)] if tokenizer else []
    flags += ["--streaming", streaming]
    words = (
        f"its {count} tokens are shorter than one block of 9 tokens; give more text, or --block_size {count} or less"
    )
    with pytest.raises(SettingsError, match=words):
        build_dataset(file_settings(path, *flags, "--block_size", "9"))
    evaluated = tiny_settings(
        *flags, "--dataset_name", LINES, "--block_size", "9", "--eval_steps", "2", validation_file=str(path)
    )
    with pytest.raises(SettingsError, match=words):
        build_datasets(evaluated)
    rows = build_dataset(file_settings(path, *flags, "--block_size", str(count)))
    assert next(iter(rows))["input_ids"].shape == (count,)


def test_no_block_is_as_short_as_one_token(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("a")
    with pytest.raises(SettingsError, match=r"its 1 tokens are shorter than one block of 4 tokens; give more text$"):
        build_dataset(file_settings(path))


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_text_that_makes_no_row(tmp_path, streaming):
    text = tmp_path / "words.txt"
    text.write_text("w1\nw2\n\nw3\n")
    flags = ("--tokenizer_name", word_tokenizer(tmp_path / "t", 64), "--streaming", streaming)
    with pytest.raises(SettingsError, match="shorter than one block of 4 tokens"):
        build_dataset(file_settings(text, *flags))
    with pytest.raises(SettingsError, match="no text in it has 2 tokens"):
        build_dataset(file_settings(text, *flags, "--packing", "false"))


def test_without_evaluation_nothing_is_held_out():
    train, evaluation = build_datasets(tiny_settings())
    assert len(train) == 256 and evaluation is None


@pytest.mark.parametrize("kind", ["synthetic", "packed", "padded"])
@pytest.mark.parametrize("percentage, most", [(5, 64), (1, 64), (50, 64), (50, 9)])
def test_the_last_rows_are_held_out(kind, percentage, most):
    rows = build_dataset(tiny_settings(*KINDS[kind]))[:]["input_ids"].tolist()
    flags = ("--eval_steps", "2", "--validation_split_percentage", str(percentage), "--max_eval_samples", str(most))
    train, evaluation = build_datasets(tiny_settings(*KINDS[kind], *flags))
    held_out = max(1, len(rows) * percentage // 100)
    assert train[:]["input_ids"].tolist() == rows[:-held_out]
    assert evaluation[:]["input_ids"].tolist() == rows[-held_out:][:most]


@pytest.mark.parametrize("kind", ["streamed", "streamed and padded"])
def test_the_first_rows_of_a_stream_are_held_out(kind):
    flags = ("--eval_steps", "2", "--max_eval_samples", "20", "--max_steps", "50")
    rows = build_dataset(tiny_settings(*[flag for flag in KINDS[kind] if flag != "--streaming"]))
    train, evaluation = build_datasets(tiny_settings(*KINDS[kind], *flags))
    rows = rows[:]["input_ids"].tolist()
    assert [row["input_ids"].tolist() for row in evaluation] == rows[:20]
    seen = [row["input_ids"].tolist() for row in train]
    for epoch in (0, 1):
        assert sorted(seen[epoch * len(rows[20:]) :][: len(rows[20:])]) == sorted(rows[20:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_validation_file_leaves_all_rows_to_train_on(tmp_path, kind):
    text = tmp_path / "other.jsonl"
    text.write_text('{"text": "' + "a" * 64 + '"}\n{"text": "' + "b" * 16 + '"}\n{"text": "' + "b" * 20 + '"}\n')
    flags = ("--eval_steps", "2", "--validation_file", str(text), "--max_eval_samples", "3")
    train, evaluation = build_datasets(tiny_settings(*KINDS[kind], *flags))
    assert len(train) == len(build_dataset(tiny_settings(*KINDS[kind])))
    assert [bytes(row["input_ids"].tolist()) for row in evaluation] == (
        [b"a" * 32, b"b" * 16 + bytes(16), b"b" * 20 + bytes(12)]
        if "padded" in kind
        else [b"a" * 32, b"a" * 32, b"b" * 32]
    )


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_all_rows_cannot_be_held_out(tmp_path, streaming):
    text = tmp_path / "text.txt"
    text.write_text("four")
    settings = file_settings(text, "--eval_steps", "2", "--streaming", streaming)
    with pytest.raises(SettingsError, match="evaluation takes the only 1 rows there are; give more text, or --valid"):
        build_datasets(settings)
    text.write_text("four" * 9)
    if streaming == "true":
        with pytest.raises(SettingsError, match="takes the only 9 rows there are; lower --max_eval_samples"):
            build_datasets(settings)
    else:
        assert [len(rows) for rows in build_datasets(settings)] == [8, 1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows, global_batch_size", [(13, 16), (8, 4), (3, 8)])
def test_each_row_is_evaluated_once_in_its_order(kind, rows, global_batch_size):
    flags = ("--eval_steps", "2", "--max_eval_samples", str(rows), "--global_batch_size", str(global_batch_size))
    split = () if "streamed" in kind else ("--validation_split_percentage", "20")
    settings = tiny_settings(*KINDS[kind], *flags, *split)
    _, evaluation = build_datasets(settings)
    loader = prepared(build_eval_dataloader(evaluation, settings))
    assert {batch["input_ids"].shape for batch in loader} == {(global_batch_size, 32)}
    ids, labels = rows_of(loader)
    counted = (labels != -100).any(dim=1)
    assert counted.tolist() == [True] * rows + [False] * (-rows % global_batch_size)
    assert ids[counted].tolist() == [row["input_ids"].tolist() for row in evaluation]
    again, _ = rows_of(loader)
    assert torch.equal(again, ids)
