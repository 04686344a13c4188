"""A cache of rows that is damaged is made anew: the file is not blamed, and no other rows are trained on."""

import datasets
import pytest
from harness import LINES, build_dataset, data_errors, file_settings

HARMS = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "overwritten": lambda path: path.write_bytes(b"\x00" * path.stat().st_size),
    "removed": lambda path: path.unlink(),
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache"


def rows(settings):
    return [row["input_ids"].tolist() for row in build_dataset(settings)]


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_cache_is_made_anew(cache, harm):
    """Of each of its files: the texts as they were read, their tokens, the rows."""
    settings = file_settings(LINES)
    whole, files = rows(settings), sorted(cache.rglob("*.arrow"))
    kept = {path: path.stat().st_size for path in files}
    assert len(files) == 3
    for path in files:
        HARMS[harm](path)
        assert rows(settings) == whole, path
        assert {path: path.stat().st_size for path in sorted(cache.rglob("*.arrow"))} == kept


def test_a_fault_of_the_file_is_not_the_caches(cache, tmp_path):
    """It is read once, and named."""
    path = tmp_path / "lines.txt"
    path.write_bytes(b"caf\xe9 " * 100)
    [problem] = data_errors(file_settings(path))
    assert f"--train_file {path}: not UTF-8 text" in problem and not list(cache.rglob("*.arrow"))
