"""Compiled rungs beside eager ones: break-even, memory in both directions, and an eager run that is named."""

import json

from rungwise.report.compiled import compiled_lines, compiled_rows
from rungwise.report.report import read_report, terminal_table, write_report
from rungwise.report.rung_result import break_even
from rungwise.report.spread import Spread
from rungwise.run.eager_run import compare, validate

import pytest
from harness import tiny_settings
from hypothesis import given
from hypothesis import strategies as st
from results import COMPILE, result, rung

SLOW, FAST = Spread(100.0, 95.0, 105.0), Spread(50.0, 45.0, 55.0)


def test_break_even_is_the_step_from_which_the_compiled_run_is_ahead():
    assert break_even(42.0, SLOW, FAST) == (840, "after 840 steps")
    assert break_even(42.0, FAST, SLOW) == (None, "never: slower")
    assert break_even(42.0, SLOW, Spread(96.0, 90.0, 99.0))[1].startswith("not known: the spreads overlap")
    assert break_even(42.0, SLOW, None)[1].startswith("not known: too few timed steps")


@given(
    seconds=st.floats(0.01, 1e4),
    eager=st.floats(1, 1e4),
    saved=st.floats(0.01, 0.99),
)
def test_break_even_is_the_first_such_step(seconds, eager, saved):
    compiled = eager * (1 - saved)
    steps, _ = break_even(seconds, Spread(eager, eager, eager), Spread(compiled, compiled, compiled))
    ahead = lambda n: 1000 * seconds + n * compiled <= n * eager * (1 + 1e-9)  # noqa: E731
    assert ahead(steps) and not ahead(steps - 1 - 1e-6 * steps)


def compiled(name="compiled", seconds=42.0, **changes):
    made = result(torch_compile=True, **changes)
    made["compile"]["seconds"] = seconds
    return rung(name, made)


def test_each_compiled_rung_stands_beside_its_eager_one():
    rungs = [
        rung("eager-ckpt", peak=500.0, gradient_checkpointing=True),
        rung("eager"),
        compiled("ckpt-lower", peak=450.0, step_ms=50.0, gradient_checkpointing=True),
        compiled("higher", peak=1100.0, step_ms=150.0, torch_compile_scope="regional"),
        compiled("alone", gradient_accumulation_steps=4),
        rung("broken", status="failed", reason="no", torch_compile=True),
    ]
    rows = compiled_rows(rungs)
    assert [(row["rung"], row["eager"]) for row in rows] == [
        ("ckpt-lower", "eager-ckpt"),
        ("higher", "eager"),
        ("alone", None),
    ]
    assert [row["break_even_steps"] for row in rows] == [840, None, None]
    lines = compiled_lines(rows)
    assert "500.0 → 450.0 (-10.0%), lower" in lines[2] and "after 840 steps" in lines[2]
    assert "1,000.0 → 1,100.0 (+10.0%), higher" in lines[3] and "never: slower" in lines[3]
    assert "no eager rung differs from it in compiling alone" in lines[4]


def test_reasons_are_listed():
    made = result(torch_compile=True)
    made["compile"] |= {"graph_breaks": 1, "graph_break_reasons": ["print at model.py:3 in forward"]}
    assert compiled_lines(compiled_rows([rung("c", made)]))[-1] == "- c, graph break: print at model.py:3 in forward"


def test_the_report_says_it(tmp_path):
    for made in (rung("eager"), compiled(step_ms=50.0)):
        folder = tmp_path / made.name / "round-1"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(made.rounds[0]), encoding="utf-8")
    report = read_report(tmp_path)
    write_report(report, tmp_path)
    page = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "## Compiling" in page and "| after 840 steps |" in page
    assert "compiled: break-even after 840 steps against eager" in terminal_table(report)
    assert json.loads((tmp_path / "report.json").read_text())["compiled"][0]["break_even_steps"] == 840


@pytest.fixture
def eager_run(tmp_path):
    """The folder of a finished eager run with the settings of a tiny one."""
    made = result()
    made["settings"] = tiny_settings("--max_steps", "13").as_dict()

    def write(**changes):
        (tmp_path / "result.json").write_text(json.dumps({**made, **changes}), encoding="utf-8")
        return str(tmp_path)

    return write


def test_a_run_is_held_against_the_eager_run_that_it_names(eager_run):
    folder = eager_run()
    assert validate(tiny_settings("--max_steps", "20", "--torch_compile", "--eager_run", folder)) == []
    made = result(step_ms=50.0, torch_compile=True)
    made["compile"] = {**COMPILE, "seconds": 42.0}
    assert compare(made, folder) == {"against": "base", "steps": 840, "verdict": "after 840 steps"}
    made["environment"]["threads"] = 1
    apart = {"against": "base", "steps": None, "verdict": "not known: threads are 2 there and 1 here"}
    assert compare(made, folder) == apart
    made["environment"] |= {"threads": 2, "date": "another day", "git_commit": "another", "threads_origin": "other"}
    assert compare(made, folder)["steps"] == 840
    made["evidence"]["attn_implementation"] = "sdpa"
    assert compare(made, folder)["verdict"] == "not known: attn_implementation is not recorded there and sdpa here"


def test_an_eager_run_that_cannot_be_compared_with(eager_run, tmp_path):
    def problem(*flags):
        [found] = validate(tiny_settings("--torch_compile", *flags))
        return found

    assert "no result.json there" in problem("--eager_run", str(tmp_path / "nowhere"))
    assert "seed is 0 there and 3 here" in problem("--eager_run", eager_run(), "--seed", "3")
    assert "that run is failed" in problem("--eager_run", eager_run(status="failed"))
    again = tiny_settings("--torch_compile").as_dict()
    assert "that run was compiled" in problem("--eager_run", eager_run(settings=again))
