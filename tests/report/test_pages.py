"""Tables of the guides hold the figures of the results that they are of."""

import dataclasses
import shlex
import shutil

from rungwise.report.pages import (
    TURNED_ON,
    activations_section,
    changed,
    checks_line,
    ladder_section,
    owners_section,
    terminal_section,
)
from rungwise.report.report import read_report
from rungwise.settings.parse import parse

import pytest
from harness import ROOT
from results import result, rung

STORED = ROOT / "tests" / "stored" / "ladder"


@pytest.fixture
def folder(tmp_path):
    shutil.copytree(STORED, tmp_path / "ladder")
    return tmp_path / "ladder"


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def test_a_ladders_table_has_the_figures_of_its_results(folder):
    lines = ladder_section(folder, ("rung", TURNED_ON, "peak", "loss")).splitlines()
    # fp16 says more of itself than that all is well, and so there is a status.
    assert cells(lines[0]) == ["rung", "status", "turned on", "peak MiB", "last loss"]
    rungs = read_report(folder).rungs
    rows = [cells(line) for line in lines[2 : 2 + len(rungs)]]
    assert [row[0] for row in rows] == [one.name for one in rungs]
    assert [row[3] for row in rows] == [f"{one.rounds[0]['memory']['peak_allocated_mib']:,.1f}" for one in rungs]
    assert [row[4] for row in rows] == [f"{one.rounds[0]['loss']['last']:.4f}" for one in rungs]
    assert [row[2] for row in rows] == [
        "fp32",
        "bf16",
        "fp16",
        "`--gradient_accumulation_steps 4`, bf16",
        "`--gradient_checkpointing`",
        "`--torch_compile`",
    ]
    verdicts = [check.verdict for check in read_report(folder).checks]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in ("PASS", "FAIL", "SKIP")]
    assert lines[-1] == f"Checks: {', '.join(counts)}." and counts[1] == "0 FAIL"


def test_what_failed_is_said(folder):
    report = read_report(folder)
    first = dataclasses.replace(report.checks[0], verdict="FAIL")
    report.checks[0] = first
    assert f" SKIP. {first.claim} ({' → '.join(first.rungs)}): {first.measured}" in checks_line(report)


def test_what_a_rung_has_that_the_one_before_has_not():
    before = rung("a")
    assert changed(None, before) == "fp32"
    both = rung("b", gradient_checkpointing=True, optim="sgd")
    assert changed(before, both) == "`--gradient_checkpointing`, `--optim sgd`"
    assert changed(both, before) == "no `--gradient_checkpointing`, `--optim adamw_torch`"
    # What stands in the Accelerate file is no flag.
    both = changed(before, rung("d", fsdp=True, num_processes=2)).split(", ")
    assert sorted(both) == ["`fsdp: true`", "`num_processes: 2`"]
    assert changed(before, rung("c", run_name="c", output_dir="c")) == ""


def test_owners_and_activations_add_up(folder):
    found = read_report(folder).rungs[0].rounds[0]
    rows = [cells(line) for line in owners_section(found).splitlines()[2:]]
    assert sum(float(row[1].replace(",", "")) for row in rows[:-1]) == pytest.approx(838.2, abs=0.3)
    assert rows[-1][1] == "**838.2**"
    made = result()
    made["activations"] = {
        "total_mib": 10.0,
        "rows": [{"module": f"m{n}", "operator": "mul", "mib": 4.0 - n, "tensors": n + 1} for n in range(4)],
    }
    lines = activations_section(made, 2).splitlines()
    assert lines[2:] == [
        "| `m0` | mul | 1 | 4.0 | 40.0% |",
        "| `m1` | mul | 2 | 3.0 | 30.0% |",
        "| 2 rows more | | 7 | 3.0 | |",
        "| **all** | | | **10.0** | |",
    ]


def test_what_was_printed_stands_as_it_was():
    text = "before\nbf16: ok  \n  loss 1\n  files x\n  tracker y\n"
    assert terminal_section(text, "bf16", "files") == "```text\nbf16: ok\n  loss 1\n  files x\n```"
    assert terminal_section("a\nb\n") == "```text\na\nb\n```"
    with pytest.raises(ValueError, match="no lines from 'bf17' to ''"):
        terminal_section(text, "bf17")


@pytest.mark.parametrize(
    "name, value",
    {
        "gradient_checkpointing_kwargs": {"use_reentrant": True, "every_n_layers": 2},
        "config_overrides": "n_embd=32,n_layer=2",
        "activation_memory_budget": 0.5,
        "learning_rate": 1e-3,
        "optim": "sgd",
        "train_file": "a file's name.txt",
    }.items(),
)
def test_a_flag_in_a_table_is_one_that_a_command_takes(name, value):
    text = changed(rung("a"), rung("b", **{name: value}))
    words = shlex.split(text.strip("`"))
    assert words[0] == f"--{name}" and len(words) == 2
    settings, _ = parse(["--config", "accelerate_configs/fp32.yaml", *words])
    assert getattr(settings, name) == value


def test_without_mixed_precision_weights_may_be_of_half():
    words = changed(rung("a", mixed_precision="fp16"), rung("b", mixed_precision="no", dtype="bfloat16"))
    assert "fp32" not in words and "`--dtype bfloat16`" in words
    assert "fp32" in changed(rung("a", mixed_precision="fp16"), rung("b", mixed_precision="no", dtype="float32"))
