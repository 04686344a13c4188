"""A run's data is known by its content: the same under another date, another under the same name."""

import os
from pathlib import Path

from rungwise.data import fingerprint, loader, texts
from rungwise.data.fingerprint import describe, fingerprints

import pytest
from harness import LINES, file_settings, open_inputs, tiny_settings

TEXT = "some lines\nof text\nthat fill a row or two\n"


def of_file(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    return file_settings(path), path


def of_folder(tmp_path):
    path = tmp_path / "folder" / "a.txt"
    path.parent.mkdir()
    path.write_text(TEXT)
    return tiny_settings("--dataset_name", str(path.parent)), path


def of_validation(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    return tiny_settings("--eval_steps", "2", "--validation_file", str(path)), path


@pytest.mark.parametrize("kind", [of_file, of_folder, of_validation])
def test_a_change_of_one_letter_is_another_fingerprint(tmp_path, kind):
    settings, path = kind(tmp_path)
    before = fingerprints(settings)
    path.write_text(TEXT.replace("row", "raw"))
    os.utime(path, (1, 1))  # a file system's clock may not have ticked since
    after = fingerprints(settings)
    [changed] = fingerprint.changes(before, after)
    [name] = [name for name in before if before[name] != after[name]]
    assert changed == f"{name} has changed (it was {before[name]} and is now {after[name]})"
    assert str(path) in name or str(path.parent) in name


def test_a_file_of_another_date_is_the_same(tmp_path):
    settings, path = of_file(tmp_path)
    before = fingerprints(settings)
    os.utime(path, (1, 1))
    assert fingerprints(settings) == before
    assert fingerprint.changes(before, fingerprints(settings)) == []


def test_a_file_is_read_once_in_a_process(tmp_path, monkeypatch):
    """Rungs of a ladder share their data, and there may be much of it."""
    settings, path = of_file(tmp_path)
    before = fingerprints(settings)
    monkeypatch.setattr(fingerprint.hashlib, "blake2b", lambda **_: pytest.fail("read again"))
    assert fingerprint._hash(str(path), path.stat().st_size, path.stat().st_mtime_ns)
    monkeypatch.undo()
    assert fingerprints(settings) == before


def test_the_standard_library_is_known_by_its_files(tmp_path, monkeypatch):
    settings = tiny_settings("--dataset_name", "python-stdlib")
    [before] = fingerprints(settings).values()
    files = texts.stdlib_files()
    (tmp_path / "zzz.py").write_text("pass\n")
    monkeypatch.setattr(texts, "stdlib_files", lambda: [*files, str(tmp_path / "zzz.py")])
    [after] = fingerprints(settings).values()
    sizes = [int(text.split()[0]) for text in (before, after)]
    assert sizes[1] == sizes[0] + 5 and before.split()[-1] != after.split()[-1]


@pytest.mark.parametrize("flags", [("--seed", "1"), ("--block_size", "16"), ("--config_overrides", "vocab_size=64")])
def test_synthetic_rows_are_known_by_what_makes_them(flags):
    assert fingerprints(tiny_settings(*flags)) != fingerprints(tiny_settings())


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_folder_is_known_by_its_files_however_it_is_read(tmp_path, streaming):
    _, path = of_folder(tmp_path)
    settings = tiny_settings("--dataset_name", str(path.parent), "--streaming", streaming)
    name = f"--dataset_name {path.parent}"
    assert fingerprints(settings) == {name: fingerprints(file_settings(path))[f"--train_file {path}"]}


def test_what_is_recorded_of_the_data(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text(TEXT)

    def described(*flags):
        settings = tiny_settings("--dataset_name", LINES, *flags)
        inputs = open_inputs(settings)
        rows = loader.build_datasets(settings, inputs)
        return describe(settings, inputs.data), rows

    found, (rows, _) = described()
    size = Path(LINES).stat().st_size
    train = {"source": f"--dataset_name {LINES}", "reader": "text", "column": None, "columns": []}
    train |= {"texts": 1, "empty": 0, "missing": 0, "tokens": size, "end_of_text": None}
    train["fingerprint"] = fingerprints(tiny_settings("--dataset_name", LINES))[train["source"]]
    last = {"tokens of a last incomplete block": size % 32}
    assert found == {"train": {**train, "rows": size // 32, "dropped": last}} and len(rows) == size // 32
    found, (rows, held_out) = described("--eval_steps", "2", "--validation_split_percentage", "20")
    assert found["train"] == {**train, "rows": len(rows), "dropped": last}
    assert found["evaluation"].items() >= {"source": train["source"], "rows": len(held_out)}.items()
    found, (rows, held_out) = described("--eval_steps", "2", "--validation_file", str(path), "--streaming")
    assert found["train"]["rows"] is None and found["evaluation"]["rows"] == len(held_out)
    assert found["evaluation"]["source"] == f"--validation_file {path}"
    assert found["evaluation"]["fingerprint"].startswith(f"{len(TEXT)} bytes, blake2b ")


def test_nothing_is_claimed_of_rows_from_elsewhere():
    assert describe(tiny_settings(), None) == {}
