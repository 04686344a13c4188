"""`recipes/fit.py` itself: what it prints and writes, its exit code, and forecasts held against a run."""

import json
import subprocess
import sys

from rungwise.fit import trial
from rungwise.fit.console import fastest_lines
from rungwise.result_file import write_result

import fit as recipe
import matplotlib.image
import pytest
from commands import clone, run
from harness import ENVIRONMENT, HANGS, ROOT, TINY, packages
from results import result

BATCH = ["--global_batch_size", "8", "--reserve", "0MiB"]


@pytest.fixture
def fit(tmp_path, monkeypatch, capsys):
    """Asks in this process; returns the exit code, what was printed, and the answer's file."""

    def ask(*flags):
        monkeypatch.setattr(sys, "argv", ["fit.py", *TINY, *BATCH, *flags, "--output_dir", str(tmp_path / "fit")])
        code = recipe.main()
        content = json.loads((tmp_path / "fit" / "fit.json").read_text(encoding="utf-8"))
        return code, capsys.readouterr().out, content

    return ask


def test_a_person_gets_a_command_that_runs_and_takes_what_was_forecast(tmp_path):
    home = clone(tmp_path)
    command = ["recipes/fit.py", *TINY, *BATCH, "--memory", "1.2MiB", "--verify"]
    done = run(home, sys.executable, *command)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    content = json.loads((home / "runs/fit/fit.json").read_text(encoding="utf-8"))
    [row] = [row for row in content["candidates"] if row["name"] == content["chosen"]]
    assert f"  {row['command']}\n" in done.stdout and row["fits"] and row["micro_batches"] > 1
    assert row["micro_batches"] * row["micro_batch_size"] == 8
    owners = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
    assert sum(row[f"{owner}_mib"] for owner in owners) == pytest.approx(row["peak_mib"])
    peak, *_ = content["verified"]
    assert peak["name"] == "peak" and peak["forecast"] == row["peak_mib"] and abs(peak["error_percent"]) < 0.2
    assert "peak  " in done.stdout and "fits first" in done.stdout
    measured = json.loads((home / f"runs/fit/verify/{row['name']}/round-1/result.json").read_text(encoding="utf-8"))
    assert measured["status"] == "ok" and measured["settings"]["gradient_accumulation_steps"] == row["micro_batches"]
    assert measured["memory"]["peak_allocated_mib"] == peak["measured"]
    height, width, _ = matplotlib.image.imread(home / "runs/fit/fit.png").shape
    assert width > 1000 and height > 300


def test_where_nothing_fits_the_exit_code_says_so(fit):
    code, words, content = fit("--memory", "0.3MiB")
    assert code == 1 and content["chosen"] is None
    least = min(row["peak_mib"] for row in content["candidates"])
    assert f"takes least, {least - 0.3:,.1f} MiB more than there is" in words
    lora = next(one for one in content["advice"] if one["change"].startswith("--use_peft"))
    assert f"--use_peft (adapters alone are trained): {lora['peak_mib']:,.1f} MiB" in words
    assert 0 < lora["peak_mib"] < least and lora["parameters_mib"] > 0


def test_a_gpu_that_is_not_here(fit):
    code, words, content = fit("--gpu", "T4")
    assert code == 0 and content["chosen"] == "fp16-fused"
    assert content["memory"]["free"] == pytest.approx(14.56 * 1024) and content["memory"]["device"] == "cuda"
    assert [row["name"] for row in content["candidates"]] == ["fp32", "fp16-fused"]
    assert "forecast, not measured on CUDA" in words


PROGRAM = """
import json, runpy, sys
before = set(sys.modules)
sys.argv = sys.argv[1:]
try:
    runpy.run_path("recipes/fit.py", run_name="__main__")
except SystemExit as end:
    print(json.dumps([end.code, sorted(sys.modules.keys() - before)]))
"""


@pytest.mark.parametrize("flag, code", [("--help", 0), ("--memori", 2)])
def test_help_and_mistakes_are_answered_at_once(flag, code):
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, "recipes/fit.py", flag],
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGS,
    )
    found, loaded = json.loads(process.stdout.splitlines()[-1])
    assert found == code and packages(loaded) <= {"yaml"}
    assert ("--gpu NAME" in process.stdout) if code == 0 else ("unknown argument --memori" in process.stderr)


class Row:
    """A candidate by its name alone."""

    def __init__(self, name):
        self.candidate, self.name = self, name

    def rung(self):
        return self

    def command(self):
        return ["run", self.name]


def test_a_fastest_is_named_only_if_it_is_told_apart(tmp_path):
    for name, times in {"a": (100.0, 104.0), "b": (150.0, 155.0), "c": (300.0, 310.0)}.items():
        for number, step_ms in enumerate(times, 1):
            folder = tmp_path / name / f"round-{number}"
            folder.mkdir(parents=True)
            write_result(folder, result(step_ms=step_ms, spread=10.0))
    rows = [Row(name) for name in "abc"]
    found = trial.fastest(tmp_path)
    assert fastest_lines(found, rows) == ["the fastest: a, 102 ms a step (90–114)", "  run a"]
    write_result(tmp_path / "b" / "round-2", result(step_ms=120.0, spread=10.0))
    words = [
        "the shortest median: a, 102 ms a step (90–114)",
        "  not told apart from b: the spreads overlap",
        "  run a",
    ]
    assert fastest_lines(trial.fastest(tmp_path), rows) == words
    figures = trial.figures(tmp_path, trial.fastest(tmp_path))
    assert figures["name"] == "a" and figures["undecided"] == {"b": "the spreads overlap"}
    assert figures["runs"]["c"]["step_ms"] == 305.0 and figures["runs"]["c"]["step_ms_high"] == 320.0
    write_result(tmp_path / "a" / "round-1", result(status="failed", reason="of a test"))
    assert trial.fastest(tmp_path).rung.name == "b"
    assert fastest_lines(trial.fastest(tmp_path / "nowhere"), rows) == ["none of them has a speed"]
