"""No terminal, log or code page ends a command by what it cannot show."""

import ast
import importlib
import io
import re
import shutil
import subprocess
import sys

from rungwise.terminal import NEAREST, print_anything

import pytest
from harness import ENVIRONMENT, HANGS, ROOT

SOURCES = [*(ROOT / "src" / "rungwise").glob("*.py"), *(ROOT / "recipes").glob("*.py")]
COMMANDS = [path.stem for path in (ROOT / "recipes").glob("*.py")]


def streams(monkeypatch, encoding):
    """Standard output and error of such an encoding, and the bytes that reach the first."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True))
    return raw


def test_every_character_that_is_printed_has_its_nearest_in_ascii():
    """Also those of a line that is written later: it needs an entry then."""
    texts = {
        node.value
        for path in SOURCES
        if path.name != "terminal.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {character for text in texts for character in text if not character.isascii()} <= set(NEAREST)
    assert all(text.isascii() for text in NEAREST.values())


@pytest.mark.parametrize(
    "encoding, text", [("ascii", "a ~ 1-2 -> ?"), ("cp1252", "a ~ 1–2 -> ?"), ("utf-8", "a ≈ 1–2 → 字")]
)
def test_only_what_cannot_be_shown_is_replaced(monkeypatch, encoding, text):
    raw = streams(monkeypatch, encoding)
    print_anything()
    print("a ≈ 1–2 → 字", end="")
    assert raw.getvalue().decode(encoding) == text
    # A path that is no text in this encoding.
    print("\udcff", file=sys.stderr)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_prints_so(monkeypatch, name):
    streams(monkeypatch, "ascii")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(name).main()
    assert caught.value.code == 0
    print("≈–→", file=sys.stdout)
    print("≈–→", file=sys.stderr)


def test_a_real_report_on_a_terminal_that_knows_ascii_alone(tmp_path):
    """The files are UTF-8 all the same."""
    shutil.copytree(ROOT / "tests" / "stored" / "ladder", tmp_path / "ladder")
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    command = [sys.executable, str(ROOT / "recipes" / "ladder.py"), "--report_only", str(tmp_path / "ladder")]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=HANGS, check=False)
    said = done.stdout.decode("ascii")
    assert b"Traceback" not in done.stderr and done.returncode == 0, done.stderr
    page = (tmp_path / "ladder" / "report.md").read_text(encoding="utf-8")
    # A step's spread, as in 1,042–1,183: the same figures, with the nearest sign.
    [spread, *_] = re.findall(r"\(([\d,]+–[\d,]+)\)", page)
    assert spread.replace("–", "-") in said and spread not in said
