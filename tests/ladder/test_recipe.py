"""`recipes/ladder.py` itself: what it says, what it writes and its exit code, with results written down by a test."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from rungwise.ladder import ladder
from rungwise.report import plots, report
from rungwise.result_file import write_result

import ladder as recipe
import pytest
from harness import HANGS, ROOT, packages
from results import result

STORED = ROOT / "tests" / "stored" / "ladder"
TEXT = """
flags: {config: accelerate_configs/fp32.yaml, report_to: none}
rungs: {a: {}, b: {gradient_checkpointing: true}, c: {gradient_accumulation_steps: 2}}
"""
NAMES = ("a", "b", "c")


@pytest.fixture
def climb(tmp_path, monkeypatch):
    """Runs the recipe on three rungs that end as written down: by a status, or by a signal that comes meanwhile."""
    (tmp_path / "some.yaml").write_text(TEXT, encoding="utf-8")
    monkeypatch.setattr(plots, "draw", lambda *_: [])
    # Heard also where the tests themselves are run by `nohup`.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def run(**ends):
        ran = []

        def run_rung(rung, folder):
            ran.append(rung.name)
            end = ends.get(rung.name, "ok")
            if isinstance(end, signal.Signals):
                os.kill(os.getpid(), end)
            made = result(status=end, reason=None if end == "ok" else f"{rung.name} is {end}")
            folder.mkdir(parents=True)
            write_result(folder, made)
            return made

        monkeypatch.setattr(ladder, "run_rung", run_rung)
        command = ["ladder.py", "--ladder", str(tmp_path / "some.yaml"), "--output_dir", str(tmp_path / "l")]
        monkeypatch.setattr(sys, "argv", command)
        try:
            return recipe.main(), ran
        except KeyboardInterrupt:
            pytest.fail("a signal came through, which would end the tests, too")

    yield run
    signal.signal(signal.SIGHUP, before)


def rows(folder):
    content = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {row["rung"]: row["status"] for row in content["rows"]}


def test_a_ladder_says_how_each_rung_ended_and_what_came_of_it(climb, tmp_path, capsys):
    assert climb(c="skipped") == (0, list(NAMES))
    words = capsys.readouterr().out
    assert words.count("  ok, peak 1,000.0 MiB, 100 ms a step (95–105), loss 2.0000; took ") == 2
    assert "  skipped" in words and ": c is skipped" in words
    assert "outside training (imports, starting, reporting): " in words and "Nothing was compared" not in words
    assert rows(tmp_path / "l") == {"a": "ok", "b": "ok", "c": "skipped"}
    # Nothing is left to run: the same report again.
    (tmp_path / "l" / "report.md").unlink()
    assert climb() == (0, [])
    assert "outside training" not in capsys.readouterr().out and (tmp_path / "l" / "report.md").exists()


ENDS = {
    "none was compared": ({"b": "skipped", "c": "skipped"}, 1),
    "none ran": (dict.fromkeys(NAMES, "skipped"), 1),
    "two were": ({"a": "skipped"}, 0),
    "one failed": ({"c": "failed"}, 1),
}


@pytest.mark.parametrize("case", ENDS)
def test_the_exit_code_is_0_only_if_rungs_were_compared(climb, capsys, case):
    ends, code = ENDS[case]
    assert climb(**ends)[0] == code
    assert ("Nothing was compared" in capsys.readouterr().out) == (code == 1 and "failed" not in ends.values())


@pytest.mark.parametrize(
    "number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["INT", "TERM", "HUP"]
)
def test_a_stopped_ladder_reports_what_it_has_and_continues(climb, tmp_path, capsys, number, code):
    assert climb(a=number) == (code, ["a"])
    assert "stopped before the first rung had a result" in capsys.readouterr().out
    assert climb(b=number) == (code, ["a", "b"])
    words = capsys.readouterr().out
    assert "stopped; the same command continues" in words and rows(tmp_path / "l") == {"a": "ok"}
    assert climb() == (0, ["b", "c"])
    assert "stopped;" not in capsys.readouterr().out and rows(tmp_path / "l") == dict.fromkeys(NAMES, "ok")


def test_a_signal_between_two_rungs_tears_no_report(climb, tmp_path, monkeypatch, capsys):
    """It waits until the report is written and its rung shown, and no rung is started then; nor does another tear."""

    def page(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return markdown(*args)

    markdown = report.markdown
    monkeypatch.setattr(report, "markdown", page)
    assert climb() == (130, ["a"])
    assert rows(tmp_path / "l") == {"a": "ok"}
    assert "  ok, peak" in capsys.readouterr().out


HEAVY = ("torch", "transformers", "accelerate", "datasets", "wandb")
REPORT_ONLY = """
import json, runpy, sys

before = set(sys.modules)

class Output:
    table = None

    def write(self, text):
        if "checks: " in text:
            Output.table = sorted(sys.modules.keys() - before)

    def flush(self):
        pass

sys.stdout = Output()
sys.argv = ["ladder.py", "--report_only", sys.argv[1]]
try:
    runpy.run_path("recipes/ladder.py", run_name="__main__")
except SystemExit as end:
    print(json.dumps({"code": end.code, "loaded": sorted(sys.modules), "table": Output.table}), file=sys.__stdout__)
"""


def test_a_report_alone_answers_at_once_and_loads_no_framework(tmp_path):
    """Its table stands there before anything is loaded but what reads files and sees processes; pictures follow."""
    folder = Path(shutil.copytree(STORED, tmp_path / "ladder"))
    command = [sys.executable, "-c", REPORT_ONLY, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HANGS)
    found = json.loads(ran.stdout)
    assert found["code"] == 0 and [name for name in HEAVY if name in found["loaded"]] == []
    assert packages(found["table"]) == {"filelock", "psutil", "yaml"}
    assert "matplotlib" in found["loaded"] and (folder / "ladder.png").exists() and (folder / "report.md").exists()
