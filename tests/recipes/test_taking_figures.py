"""The figures of the guides: what was measured is written where it belongs."""

import json
import shutil

import figures
import pytest
from figures import Figures, Section
from harness import ROOT


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with two places, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.md"
    path.write_text("<!-- a -->\n<!-- /a -->\n<!-- b -->\nold\n<!-- /b -->\n", encoding="utf-8")
    return path


def test_what_a_command_prints_is_kept_and_written(page, monkeypatch):
    one = Figures("python -c 'print(6 * 7)'", sections=figures.printed(page, "a"))
    monkeypatch.setattr(figures, "FIGURES", {"one": one})
    assert figures.main([]) == 0
    text = page.read_text(encoding="utf-8")
    assert "<!-- a -->\n```text\n42\n```\n\n(`python -c 'print(6 * 7)'` in 0 min " in text and "\nold\n" in text
    # And again, without a run.
    page.write_text(text.replace("42", "43"), encoding="utf-8")
    assert figures.main(["--only", "one", "--write_only"]) == 0
    assert page.read_text(encoding="utf-8") == text


def test_a_command_that_failed_or_a_page_without_a_place_is_no_success(page, monkeypatch, capsys):
    failed = Figures("python -c 'print(1); raise SystemExit(1)'", sections=figures.printed(page, "a"))
    nowhere = Figures("python -c 'print(2)'", sections=figures.printed(page, "c"))
    monkeypatch.setattr(figures, "FIGURES", {"failed": failed, "nowhere": nowhere})
    assert figures.main([]) == 1
    said = capsys.readouterr()
    assert "2 of 2 did not end well: failed, nowhere" in said.out and "add the lines <!-- c -->" in said.err
    # What it has measured is written, with what its checks came to.
    assert "```text\n1\n```" in page.read_text(encoding="utf-8")


def test_a_ladder_that_was_run_by_hand_is_written_with_its_own_machine(page, tmp_path, monkeypatch):
    results, stored = tmp_path / "ladder", tmp_path / "stored"
    shutil.copytree(ROOT / "tests" / "stored" / "ladder", results)
    (results / "ladder.png").write_bytes(b"a picture")
    (stored / "fp32" / "round-1").mkdir(parents=True)
    (stored / "fp32" / "round-1" / "result.json").write_text("{}", encoding="utf-8")
    section = Section(page, "b", lambda _: figures.ladder_section(results, figures.SHORT))
    (tmp_path / "ladders").mkdir()
    monkeypatch.setattr(figures, "RECIPES", tmp_path)
    made = Figures("make ladder", (), (section,), results, (("ladder.png", "default.png"),), stored)
    assert figures.write("made", made) == 0
    assert (tmp_path / "ladders" / "default.png").read_bytes() == b"a picture"
    environment = json.loads((results / "fp32" / "round-1" / "result.json").read_text(encoding="utf-8"))["environment"]
    text = page.read_text(encoding="utf-8")
    assert "| fp32 | ok | 838.2 |" in text and f"(`make ladder` on {environment['cores']} cores of " in text
    assert json.loads((stored / "fp32" / "round-1" / "result.json").read_text(encoding="utf-8"))["name"] == "fp32"
