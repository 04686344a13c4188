"""Files of every kind: the texts that come out are those that were written, or the file is refused in words."""

import bz2
import csv
import gzip
import io
import json
import lzma
import sys
import tempfile
import zipfile
from pathlib import Path

from rungwise.data.files import texts_of
from rungwise.data.forms import READERS, form_of
from rungwise.data.sources import training_source
from rungwise.data.texts import load_text
from rungwise.errors import SettingsError

import datasets
import pandas
import pyarrow as pa
import pytest
from harness import build_dataset, data_errors, file_settings, tiny_settings
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st

# What readers are known to lose, change or stumble over.
NASTY = ["", "NA", "null", "None", "nan", "N/A", "-inf", "007", "1.50", "1e5", "true", "2024-01-01", "[1, 2]"]
NASTY += ['say "hi"', "a\nb", "a\r\nb", "a;b", "a,b", "a\tb|c", " blank ", "ä\u2028ö", "\ufeffx", '{"a": 1}']
# The csv module of Python 3.10 writes no NUL.
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="" if sys.version_info >= (3, 11) else "\0")
TEXTS = st.lists(st.one_of(st.sampled_from(NASTY), st.text(LETTERS, max_size=12)), min_size=1, max_size=8)
PLAIN = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1)


def as_lines(texts):
    return "".join(json.dumps({"n": n, "text": text}) + "\n" for n, text in enumerate(texts)).encode()


def as_list(texts):
    return json.dumps([{"text": text} for text in texts], indent=1, ensure_ascii=False).encode()


def as_strings(texts):
    return json.dumps(texts).encode()


def as_csv(texts, delimiter=","):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=delimiter).writerows([("text", "n"), *((text, n) for n, text in enumerate(texts))])
    return file.getvalue().encode()


def as_pandas(texts):
    return pandas.DataFrame({"text": texts}).to_csv(index=False, quoting=csv.QUOTE_ALL).encode()


def as_parquet(texts):
    file = io.BytesIO()
    pandas.DataFrame({"n": range(len(texts)), "text": pandas.Series(texts, dtype="str")}).to_parquet(file)
    return file.getvalue()


def as_arrow(texts, new=pa.ipc.new_stream):
    file, table = io.BytesIO(), pa.table({"text": pa.array(texts, pa.string())})
    with new(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


WRITERS = {
    "a.jsonl": as_lines,
    "a.ndjson": as_lines,
    "a.json": as_list,
    "b.json": as_strings,
    "a.csv": as_csv,
    "b.csv": lambda texts: as_csv(texts, ";"),
    "c.csv": as_pandas,
    "a.tsv": lambda texts: as_csv(texts, "\t"),
    "a.parquet": as_parquet,
    "a.arrow": as_arrow,
    "b.arrow": lambda texts: as_arrow(texts, pa.ipc.new_file),
}
COMPRESSORS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
COMPRESSORS[".lzma"] = lambda content: lzma.compress(content, lzma.FORMAT_ALONE)
BOM = "\ufeff".encode()


def read(path, column="text", joined=False):
    return [text for texts, _ in texts_of(str(path), form_of(str(path)), column, joined) for text in texts]


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("name", WRITERS)
@profile(max_examples=60)
@given(TEXTS, st.sampled_from(sorted(COMPRESSORS)), st.booleans())
def test_texts_come_out_as_they_were_written(folder, name, texts, suffix, bom):
    binary = name.endswith(("parquet", "arrow"))
    path = folder / (name if binary else name + suffix)
    content = WRITERS[name](texts)
    path.write_bytes(content if binary else COMPRESSORS[suffix](BOM * bom + content))
    try:
        found = read(path)
    except ValueError:
        # What is refused says so before a run; nothing else may be.
        assert "\0" in "".join(texts) or ("csv" in name and any("\r" in text for text in texts))
        return
    assert found == texts


@profile(max_examples=60)
@given(PLAIN, st.booleans(), st.booleans())
def test_plain_text_comes_out_as_it_was_written(folder, text, bom, crlf):
    path = folder / "a.txt"
    path.write_bytes(BOM * bom + text.replace("\n", "\r\n" if crlf else "\n").encode())
    text = text.removeprefix("\ufeff") if not bom else text
    assert "".join(read(path, joined=True)) == text
    assert "\n".join(read(path)) == text.removesuffix("\n")
    assert form_of(str(path)).crlf == (crlf and "\n" in text)


def test_only_the_last_line_of_a_file_ends_its_document(tmp_path, monkeypatch):
    monkeypatch.setattr("rungwise.data.files.CHUNK", 4)
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n\nfour")

    def lines(joined):
        batches = texts_of(str(path), form_of(str(path)), "text", joined)
        return [pair for batch in batches for pair in zip(*batch, strict=True)]

    assert lines(True) == [("one\n", False), ("two\n", False), ("three\n", False), ("\n", False), ("four", True)]
    assert lines(False) == [(text, True) for text in ("one", "two", "three", "", "four")]


@pytest.mark.parametrize("suffix", sorted({suffix.lower() for suffix in READERS}))
@pytest.mark.parametrize("packed", [False, True])
def test_no_suffix_of_a_reader_is_read_as_another_thing(tmp_path, suffix, packed):
    """The rule of datasets' own table: its reader, or a refusal that names the suffix."""
    path = tmp_path / f"a{suffix}{'.gz' * packed}"
    content = as_lines(["some text"])
    content = b"some text" if suffix in (".md", ".toml", ".raw") else content
    path.write_bytes(gzip.compress(content) if packed else content)
    module = READERS[suffix]
    if module in ("text", "json", "csv"):
        assert form_of(str(path)).reader == module
        return
    if module in ("parquet", "arrow") and not packed:
        assert form_of(str(path)).reader == module
        return
    if module in ("parquet", "arrow"):
        with pytest.raises(ValueError, match=f"a {module} file inside gzip is not read; unpack it"):
            form_of(str(path))
        return
    with pytest.raises(ValueError, match=f"a {suffix} file is one for the reader {module} of datasets"):
        form_of(str(path))


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rows.jsonl", content)
    return file.getvalue()


TURNS = b'{"text": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}'
REFUSED = {
    "zip": ("a.jsonl.zip", zipped(as_lines(["a text"])), "compressed by zip, which nothing here opens; unpack it"),
    "zstd": ("a.jsonl.zst", b"\x28\xb5\x2f\xfd" + bytes(9), "compressed by zstd"),
    "parquet inside gzip": (
        "a.parquet.gz",
        gzip.compress(as_parquet(["a text"])),
        "inside gzip is not read; unpack it",
    ),
    "binary": ("a.bin", bytes(range(256)), "it is a binary file"),
    "pickle": ("a.pkl", b"\x80\x04\x95\x0b\0\0\0\0", "it is a binary file"),
    "JSON lines by no name": ("rows", as_lines(["a text"]), "its lines are JSON; call it .jsonl"),
    "JSON lines in gzip by no name": ("rows.gz", gzip.compress(as_lines(["a text"])), "its lines are JSON"),
    "two columns": (
        "a.jsonl",
        b'{"id": "x1", "content": "some text"}\n',
        "name one of them in --text_column: id, content",
    ),
    "two columns of CSV": ("a.csv", b"id,content\nx1,some text\n", "name one of them in --text_column: id, content"),
    "no header": ("a.csv", b"1,a first text\n2,another text\n", "its first row (1, a first text) may be no header"),
    "no header, one column": ("a.csv", b"A first text.\nAnother text.\n", "its first row (A first text.) may be no"),
    "no header, words": ("a.csv", b"hello\nworld\n", "its first row (hello) may be no header"),
    "a comma in a text": ("a.csv", b"text\nfirst, second\n", "line 2 has 2 cells, the header 1; put texts with"),
    "a cell too few": ("a.csv", b"text,n\nfirst,1\nsecond\n", "line 3 has 1 cells, the header 2"),
    "two delimiters": ("a.csv", b"text;n,m\na;b,c\n", "its cells may be parted by comma or semicolon"),
    "a name twice": ("a.csv", b"text,text\na,b\n", "names a column twice"),
    "turns": (
        "a.jsonl",
        TURNS.replace(b"text", b"messages"),
        "no column holds text (messages is a list of turns)",
    ),
    "text that is turns": ("a.jsonl", TURNS, "text is a list of turns"),
    "turns later on": (
        "a.jsonl",
        as_lines(["a"] * 200) + TURNS,
        "text is a list of turns, no",
    ),
    "an object": ("a.jsonl", b'{"body": {"en": "some text"}}\n', "body is an object"),
    "one JSON object": ("a.json", b'{\n "text": "some text"\n}\n', "line 1 is not JSON"),
    "numbers": ("a.json", b"[1, 2, 3]", "row 1 is no JSON object"),
    "several columns of numbers": ("a.csv", b"n,m\n1,2\n", "name one of them in --text_column: n, m"),
    "UTF-16": ("a.txt", "some text".encode("utf-16"), "it is a binary file"),
    "cut gzip": ("a.jsonl.gz", gzip.compress(as_lines(["a text"]))[:-9], "ended before"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_clear_is_asked_and_what_cannot_be_read_is_said(tmp_path, capfd, case):
    name, content, words = REFUSED[case]
    path = tmp_path / name
    path.write_bytes(content)
    for streaming in ("false", "true"):
        try:
            [problem] = data_errors(file_settings(path, "--streaming", streaming)) or [""]
            if not problem:
                # Further on in a stream it is said when it comes.
                list(read(path))
        except ValueError as error:
            problem = f"--train_file {path}: {error}"
        assert problem.startswith(f"--train_file {path}: ") and words in problem
        assert "\n" not in problem
    assert capfd.readouterr().err == ""


def texts_by_settings(path, *flags):
    settings = file_settings(path, *flags)
    text = load_text(training_source(settings), settings, streaming=False)
    return [row[text.column] for row in text.rows], text.chosen


@pytest.mark.parametrize(
    "name, content, flags, texts, column",
    [
        ("a.csv", b"id,content\n1,some text\n2,NA\n", (), ["some text", "NA"], "content"),
        ("a.csv", b"hello\n007\n008\n", (), ["007", "008"], "hello"),
        ("a.csv", b"body\n\nnull\n", ("--text_column", "body"), ["", "null"], "body"),
        ("a.csv", b"text;full\na,b;c\n", (), ["a,b"], "text"),
        ("a.csv", b"A title|n\na b|1\n", ("--text_column", "A title"), ["a b"], "A title"),
        ("a.jsonl", b'{"n": 1.50}\n{"n": 1e5}\n{"n": null}\n', (), ["1.50", "1e5", None], "n"),
        ("a.jsonl", b'{"text": "a"}\n\n{"other": 1}\n', (), ["a", None], "text"),
        ("a.jsonl", b'{"text": "2024-01-01"}\n{"text": 7}\n', (), ["2024-01-01", "7"], "text"),
    ],
)
def test_the_column_and_its_texts(tmp_path, name, content, flags, texts, column):
    path = tmp_path / name
    path.write_bytes(content)
    found, chosen = texts_by_settings(path, *flags)
    assert (found, chosen["column"]) == (texts, column)


def test_numbers_of_a_parquet_file_are_text(tmp_path):
    path = tmp_path / "a.parquet"
    pandas.DataFrame({"n": [1, 20]}).to_parquet(path)
    assert texts_by_settings(path)[0] == ["1", "20"]


def test_a_folder_of_csv_files_keeps_every_cell(tmp_path):
    """Read by the reader of one file, also by the name of a data set."""
    for number, cells in enumerate([["NA", "one"], ["null", "007"]]):
        (tmp_path / f"part-{number}.csv").write_text("text\n" + "".join(f"{cell}\n" for cell in cells))
    settings = tiny_settings("--dataset_name", str(tmp_path))
    text = load_text(training_source(settings), settings, streaming=False)
    assert text.rows[:]["text"] == ["NA", "one", "null", "007"]


def test_a_folder_with_another_table_in_it_is_refused(tmp_path):
    """Its first row would be taken for names, and all of it be missing."""
    (tmp_path / "a.csv").write_text("body,n\na text,1\n")
    (tmp_path / "b.csv").write_text("a second,2\na third,3\n")
    [problem] = data_errors(tiny_settings("--dataset_name", str(tmp_path)))
    assert problem == f"--dataset_name {tmp_path}: b.csv has no column body; give each file the same first row"


def test_a_text_longer_than_the_csv_module_expects(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(f"text\n{'a' * 300_000}\n")
    assert read(path) == ["a" * 300_000]


@pytest.mark.parametrize("streaming", ["false", "true"])
@pytest.mark.parametrize("split", [None, "dev"])
def test_a_data_set_that_was_saved(tmp_path, streaming, split):
    rows = datasets.Dataset.from_dict({"n": [1, 2], "body": ["first text", "second"]})
    saved = tmp_path / "saved"
    (datasets.DatasetDict({split: rows}) if split else rows).save_to_disk(str(saved))
    before = sorted(saved.rglob("*"))
    flags = ("--dataset_split", split) if split else ()
    settings = tiny_settings("--dataset_name", str(saved), "--streaming", streaming, "--block_size", "4", *flags)
    rows = build_dataset(settings)
    first = sorted(bytes(row["input_ids"].tolist()) for row in rows)
    assert set(first) == {b"firs", b"t te", b"xtse", b"cond"}
    # Nothing is written beside the user's own files.
    assert sorted(saved.rglob("*")) == before
    if split:
        [problem] = data_errors(tiny_settings("--dataset_name", str(saved), "--dataset_split", "test"))
        assert problem == f"--dataset_name {saved}: it has no split test; give --dataset_split, one of dev"


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    path, file = tmp_path / "a.txt", tmp_path / "file"
    path.write_text("some text")
    file.write_text("")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", file / "cache")
    for streaming in ("false", "true"):
        [problem] = data_errors(file_settings(path, "--streaming", streaming))
        assert (
            problem
            == f"the cache of datasets, {file / 'cache'}, cannot be written (Not a directory); set HF_DATASETS_CACHE"
        )


def test_rows_may_be_kept_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.IN_MEMORY_MAX_SIZE", 10**9)
    path = tmp_path / "a.txt"
    path.write_text("four" * 3)
    rows = build_dataset(file_settings(path))
    assert rows.cache_files == [] and bytes(rows[2]["input_ids"].tolist()) == b"four"


def test_plain_text_has_no_columns(tmp_path):
    # By its content: what its name tells is refused with the flags.
    path = tmp_path / "a.py"
    path.write_text("some text")
    [problem] = data_errors(file_settings(path, "--text_column", "body"))
    assert problem == f"--text_column body: --train_file {path} is plain text, without columns; drop it"
    with pytest.raises(SettingsError):
        texts_by_settings(path, "--text_column", "body")
