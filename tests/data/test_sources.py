"""Files of each kind, data sets by name, and one clear message for each that cannot be used."""

import time

from rungwise.data.sources import Source, training_source
from rungwise.data.texts import load_text
from rungwise.errors import SettingsError

import pandas
import pytest
from harness import data_errors, file_settings, tiny_settings, word_tokenizer

TEXTS = ["first text", "ä second"]


def write(path):
    """Two texts and a number beside each, in the file's own format."""
    table = pandas.DataFrame({"n": [1, 2], "body": TEXTS})
    match path.suffix.lower():
        case ".json" | ".jsonl":
            table.to_json(path, orient="records", lines=True)
        case ".csv":
            table.to_csv(path, index=False)
        case ".parquet":
            table.to_parquet(path)
        case _:
            path.write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    return path


def texts_of(source, settings, streaming):
    text = load_text(source, settings, streaming)
    return [row[text.column] for row in text.rows]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv", "a.parquet", "A.CSV", "a.txt", "a.py", "a[1]*.txt"])
def test_a_file_is_read_by_its_suffix(tmp_path, name, streaming):
    path = write(tmp_path / name)
    settings = file_settings(path, "--packing", "false")
    assert data_errors(settings) == []
    assert texts_of(training_source(settings), settings, streaming) == TEXTS
    # The same file as the name of a data set.
    assert texts_of(Source("dataset_name", str(path)), settings, streaming) == TEXTS


@pytest.mark.parametrize("streaming", [False, True])
def test_packed_lines_keep_their_ends(tmp_path, streaming):
    settings = file_settings(write(tmp_path / "a.txt"))
    assert texts_of(training_source(settings), settings, streaming) == [f"{text}\n" for text in TEXTS]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_folder_by_name(tmp_path, streaming):
    write(tmp_path / "a.jsonl")
    settings = tiny_settings("--dataset_name", str(tmp_path), "--streaming", streaming)
    assert data_errors(settings) == []
    assert texts_of(training_source(settings), settings, streaming == "true") == TEXTS


def test_the_column_is_the_one_asked_for_else_text(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1, "title": "aaaa", "text": "bbbb", "list": ["cccc"]}\n')

    def texts(*flags):
        settings = file_settings(path, *flags)
        return texts_of(training_source(settings), settings, streaming=False)

    assert texts() == ["bbbb"]
    assert texts("--text_column", "title") == ["aaaa"]
    assert texts("--text_column", "n") == ["1"]
    for wrong in ("list", "nothing"):
        with pytest.raises(SettingsError, match=f"--text_column {wrong}: .* no such .* use one of n, title, text"):
            texts("--text_column", wrong)


BAD = {
    "missing": ("a.txt", None, "no such file"),
    "empty": ("a.txt", b"", "the file is empty"),
    "short": (
        "a.txt",
        b"abc",
        "its 3 tokens are shorter than one block of 4 tokens; give more text, or --block_size 3 or less",
    ),
    "latin-1": (
        "a.txt",
        b"caf\xe9 au lait",
        "(invalid continuation byte); convert or correct the file",
    ),
    "cut in a letter": ("a.txt", b"long enough, cut in a letter \xc3", "not UTF-8 text (unexpected end of data)"),
    "latin-1 JSON": ("a.jsonl", b'{"text": "caf\xe9 au lait"}\n', "not UTF-8 text"),
    "latin-1 CSV": ("a.csv", b"text\ncaf\xe9 au lait\n", "not UTF-8 text"),
    "broken JSON": ("a.jsonl", b'{"text": "a"}\n{"text": b}\n', "line 2 is not JSON (Expecting value)"),
    "blank JSON": ("a.json", b"\n\n", "there are no rows in it"),
    "broken CSV": ("a.csv", b'text\n"a\n', "line 2: unexpected end of data"),
    "no rows": ("a.csv", b"text,n\n", "there are no rows in it"),
    "broken parquet": ("a.parquet", b"no parquet at all", "Parquet magic bytes not found"),
    "no text": ("a.csv", b"n,m\n1,2\n", "which column holds the text? name one of them in --text_column: n, m"),
}


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("case", BAD)
def test_bad_files(tmp_path, capfd, case, streaming):
    name, content, message = BAD[case]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    [problem] = data_errors(file_settings(path, "--streaming", streaming))
    assert problem.startswith(f"--train_file {path}: ") and message in problem
    assert "\n" not in problem
    assert capfd.readouterr().err == ""


def test_a_split_that_does_not_exist(tmp_path):
    write(tmp_path / "a.jsonl")
    [problem] = data_errors(tiny_settings("--dataset_name", str(tmp_path), "--dataset_split", "dev"))
    assert (
        'Unknown split "dev"' in problem
        and "check --dataset_name, --dataset_config_name and --dataset_split" in problem
    )


def test_problems_of_all_texts_are_listed_together(tmp_path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 au lait")
    flags = ["--eval_steps", "2", "--validation_file", str(tmp_path / "no.txt"), "--tokenizer_name", str(tmp_path)]
    errors = data_errors(file_settings(tmp_path / "latin.txt", *flags))
    assert len(errors) == 3
    for problem, words in zip(errors, ["not UTF-8", "no.txt: no such file", "no tokenizer in"], strict=True):
        assert words in problem


def test_what_cannot_be_reached_fails_fast_and_is_listed(monkeypatch):
    """The tests run offline: there is nothing to wait for, and nothing is tried again after a pause."""
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    flags = ["--dataset_name", "someone/something", "--tokenizer_name", "someone/else"]
    for streaming in ("false", "true"):
        data_problem, tokenizer_problem = data_errors(tiny_settings(*flags, "--streaming", streaming))
        assert data_problem.startswith(
            "--dataset_name someone/something: Couldn't reach 'someone/something' on the Hub"
        )
        assert "that the Hub can be reached" in data_problem
        assert tokenizer_problem.startswith("no tokenizer in someone/else")
    assert sum(pauses) < 1


def test_a_model_without_a_tokenizer(tmp_path):
    """It is a problem where there is text to read; of a model that is not there, the model's own problem is enough."""
    from transformers import GPT2Config

    GPT2Config(vocab_size=128).save_pretrained(tmp_path / "model")
    (tmp_path / "a.txt").write_text("some text")
    settings = file_settings(tmp_path / "a.txt", model_name_or_path=str(tmp_path / "model"), config_overrides=None)
    [problem] = data_errors(settings)
    assert problem.startswith(f"no tokenizer in {tmp_path / 'model'}") and "give --tokenizer_name" in problem
    assert data_errors(tiny_settings(model_name_or_path=str(tmp_path / "model"), config_overrides=None)) == []
    assert data_errors(file_settings(tmp_path / "a.txt", model_name_or_path="/no", config_overrides=None)) == []


def test_a_good_tokenizer_is_no_problem(tmp_path):
    (tmp_path / "a.txt").write_text("w1")
    name = word_tokenizer(tmp_path / "tokenizer", 64)
    assert data_errors(file_settings(tmp_path / "a.txt", "--tokenizer_name", name)) == []
