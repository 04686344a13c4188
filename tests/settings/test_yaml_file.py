"""YAML is data, and every file comes to an end."""

import os

from rungwise.settings import yaml_file
from rungwise.settings.yaml_file import read_yaml

import pytest

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n"
LAUGHS += "".join(f"{n}: &{n} [{', '.join([f'*{m}'] * 9)}]\n" for m, n in zip("abcdefghij", "bcdefghijk", strict=True))
# What stands in a file, and what is said of it.
NONE = {
    "a day that there is not": ("when: 2001-13-45", "not YAML"),
    "a day": ("when: 2001-01-01", "holds '2001-01-01', which YAML reads as date; write it in quotes"),
    "a day as a key": ("2001-01-01: a", "which YAML reads as date"),
    "bytes": ("a: !!binary aGk=", "which YAML reads as bytes"),
    "a set": ("a: !!set {b, c}", "which YAML reads as set"),
    "a number of 5,000 digits": (f"a: {'9' * 5000}", "not YAML"),
    "a number of letters": ("a: !!int x", "not YAML"),
    "brackets without end": ("[" * 20_000, "not YAML"),
    "itself": ("a: &a [*a]", "over 10,000 values, aliases written out"),
    "a billion laughs": (LAUGHS, "over 10,000 values, aliases written out"),
    "a command": ("a: !!python/object/apply:os.system [touch made]", "not YAML near line 1"),
    "an object": ("!!python/object/new:subprocess.Popen [[touch, made]]", "not YAML near line 1"),
}


@pytest.mark.parametrize("case", NONE)
def test_what_is_no_data_is_said(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, words = NONE[case]
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"(?s).*{words}"):
        read_yaml("a.yaml")
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_anchors_and_aliases_of_a_person_are_read(tmp_path):
    (tmp_path / "a.yaml").write_text("base: &base {a: 1, b: [2, null]}\nmore: {<<: *base, c: 3.5}\n", encoding="utf-8")
    assert read_yaml(str(tmp_path / "a.yaml"))["more"] == {"a": 1, "b": [2, None], "c": 3.5}
    values = yaml_file.MOST_VALUES - 3
    (tmp_path / "a.yaml").write_text(f"a: [{', '.join('1' * values)}]", encoding="utf-8")
    assert len(read_yaml(str(tmp_path / "a.yaml"))["a"]) == values
    (tmp_path / "a.yaml").write_text(f"a: [{', '.join('1' * (values + 1))}]", encoding="utf-8")
    with pytest.raises(ValueError, match="over 10,000"):
        read_yaml(str(tmp_path / "a.yaml"))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        read_yaml(str(tmp_path / "pipe"))
