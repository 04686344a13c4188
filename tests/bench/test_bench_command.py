"""`recipes/bench.py`: which rungs it compares, what it writes, and what it says."""

import json
from pathlib import Path

from rungwise.bench import rungs
from rungwise.bench.race import Lap
from rungwise.report.sections import write_section

import bench
import pytest
from harness import tiny_settings
from laps import AMX, ENVIRONMENT, NO_AMX
from needs import LOSS_IN_CHUNKS

TINY = ["--config_overrides", "vocab_size=256,n_positions=32,n_embd=32,n_layer=2,n_head=2", "--block_size", "32"]


@pytest.fixture
def raced(monkeypatch):
    """Every race that was asked for; all engines are as fast as one another, and ours takes less memory."""
    asked = []

    def race(entries, folder, rounds, steps):
        asked.append((folder.parent.name, dict(entries), rounds, steps))
        peaks = {"ours": 90.0 if rounds else 5.0}
        return [Lap(name, [0.5] * rounds, peaks.get(name, 100.0), 3.0, 2) for name in entries]

    monkeypatch.setattr(bench, "race", race)
    monkeypatch.setattr(bench, "measure_machine", lambda: (ENVIRONMENT, NO_AMX))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    return asked


@LOSS_IN_CHUNKS
def test_every_rung_has_three_engines_and_the_fastest_the_defaults_beside_them(raced, tmp_path, capsys):
    assert bench.main(["--heats", "1", "--rounds", "5", "--output_dir", str(tmp_path), *TINY]) == 1
    assert [name for name, *_ in raced] == [*rungs.DEFAULT, "fp32-compile", "adamw-8bit"]
    assert all(list(entries) == ["ours", "bare", "trainer"] for _, entries, *_ in raced[:5])
    assert raced[5][1]["trainer_default"] == raced[0][1]["ours"]
    assert [(list(entries), rounds) for _, entries, rounds, _ in raced[6:]] == [(["ours"], 0)]
    steps = [entries["ours"][entries["ours"].index("--max_steps") + 1] for _, entries, *_ in raced]
    assert steps == ["13"] * 6 + ["4"]
    content = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    # 2 steps of 16 rows of 31 tokens that carry a loss.
    assert content["rungs"][0]["tokens"] == 2 * 16 * 31
    failed = [check["claim"] for check in content["checks"] if check["verdict"] != "PASS"]
    assert failed == ["tokens/s in times those of Trainer by its defaults"]
    said = capsys.readouterr().out
    assert "| fp32 | 1,984 | 1.000 (1.000–1.000) | 1.000 (1.000–1.000) | 90.0 | 100.0 | 100.0 |" in said
    assert "FAIL fp32-compile: tokens/s in times those of Trainer by its defaults: 1.000 (1.000–1.000)" in said
    assert bench.os.environ["CUDA_VISIBLE_DEVICES"] == "1"


@LOSS_IN_CHUNKS
def test_the_tables_can_be_written_again_and_put_into_the_readme(raced, tmp_path, monkeypatch):
    bench.main(["--heats", "1", "--rounds", "5", "--output_dir", str(tmp_path)])
    first = (tmp_path / "bench.md").read_text(encoding="utf-8")
    (tmp_path / "bench.md").unlink()
    readme = tmp_path / "README.md"
    readme.write_text("<!-- bench -->\n<!-- /bench -->\n", encoding="utf-8")
    monkeypatch.setattr(bench, "README", readme)
    assert bench.main(["--report_only", str(tmp_path), "--readme"]) == 1
    assert (tmp_path / "bench.md").read_text(encoding="utf-8") == first
    assert "| fp32 | 16,320 |" in readme.read_text(encoding="utf-8")
    assert len(raced) == 7


@pytest.mark.parametrize(("gflops", "name"), [(NO_AMX, "fp32-compile"), (AMX, "bf16-compile")])
def test_the_fastest_rung_is_of_the_precision_whose_products_are_faster(gflops, name):
    compared, least = rungs.read([], 12, gflops["bf16"] > gflops["fp32"])
    assert compared[-1].name == name
    assert "--torch_compile" in compared[-1].arguments and "adamw_torch_fused" in compared[-1].arguments
    assert "adamw_torch_8bit" in least.arguments


@pytest.mark.parametrize(
    ("flags", "bare"),
    [
        (["--torch_compile", "--optim", "adamw_torch_fused"], True),
        (["--gradient_checkpointing", "--gradient_accumulation_steps", "2"], True),
        (["--fused_activation"], False),
        (["--optim", "adafactor"], False),
        (["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"every_n_layers": 2}'], False),
    ],
)
def test_the_bare_loop_is_asked_for_what_it_has_alone(flags, bare):
    assert ("bare" in rungs.engines(tiny_settings(*flags))) == bare


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--rounds", "2"],
            "--heats 2 --rounds 2 --steps 2: give 2 rounds or more, and 10 steps or more in all of them",
        ),
        (["--max_steps", "5"], "--max_steps: the rungs are compared by engines that do not all serve it"),
        (["--packing", "false"], "--packing: the rungs are compared by engines that do not all serve it"),
        (["--use_peft"], "--use_peft: the rungs are compared by engines that do not all serve it"),
        (["--block_sise", "5"], "unknown argument --block_sise 5 (did you mean --block_size?)"),
        (["--block_size", "512"], "is longer than the model's 256 positions"),
        (["--report_only", "nowhere"], "nowhere holds no bench.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(raced, tmp_path, capsys, flags, words):
    assert bench.main(["--output_dir", str(tmp_path), *flags]) == 2
    assert words in capsys.readouterr().err and not raced


def test_the_readme_has_a_place_for_the_table(tmp_path):
    text = bench.README.read_text(encoding="utf-8")
    copy = tmp_path / "README.md"
    copy.write_text(text, encoding="utf-8")
    write_section(copy, "bench", "a table")
    assert "<!-- bench -->\na table\n<!-- /bench -->" in copy.read_text(encoding="utf-8")
    assert "make bench" in text and "\nbench: " in Path("Makefile").read_text(encoding="utf-8")
