"""A run's activations where a person meets them: result file, terminal, W&B."""

import json

from rungwise.run.activation_lines import activation_lines

from commands import ablate_here
from harness import TINY, wandb_records


def row(module, operator, mib, tensors=1):
    return {"module": module, "operator": operator, "mib": mib, "tensors": tensors}


def test_the_ten_largest_rows_and_no_line_too_long():
    rows = [row("layers.*.block_sparse_moe.experts.act_fn.inner", "x" * 90, 100.0 - n, 12) for n in range(12)]
    found = {"total_mib": 1134.0, "rows": rows, "recompute": None, "unknown": ["y" * 120]}
    found["recompute"] = {"module": "layers.*", "total_mib": 7.5, "rows": [row("zzz", "mul", 5.0)] * 2}
    lines = activation_lines(found, 85)
    assert max(map(len, lines)) == 85
    assert lines[0] == "1,134.0 MiB kept for backward by one micro-batch; the largest 10 of 12 rows"
    assert len(lines) == 1 + 1 + 10 + 1 + 1
    assert lines[2].split()[:4] == ["100.0", "8.8%", "12", "layers.*.block_sparse_moe.exp..."]
    assert lines[-2].startswith("a block that runs again (layers.*) needs 7.5 MiB: zzz 10.0")
    assert lines[-1].startswith("not known: yyy") and lines[-1].endswith("...")
    assert activation_lines({}, 85) == []


def test_a_real_run_tells_its_activations_everywhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WANDB_MODE", "offline")
    call = ["--config", "accelerate_configs/bf16.yaml", *TINY, "--max_steps", "4", "--report_to", "wandb"]
    found = ablate_here(tmp_path, *call, "--gradient_checkpointing")["activations"]
    assert found.keys() == {"total_mib", "rows", "recompute", "unknown"}
    assert found["total_mib"] == sum(row["mib"] for row in found["rows"]) > 0
    logits = next(row for row in found["rows"] if row["operator"] == "log_softmax")
    assert (logits["module"], logits["mib"]) == ("loss", 4 * 16 * 32 * 128 / 2**20)
    printed = capsys.readouterr().out
    summary = printed[printed.index("  activations ") :].splitlines()
    expected = activation_lines(found, 85)
    assert [line[15:] for line in summary[: len(expected)]] == expected
    assert max(map(len, summary[: len(expected)])) <= 100
    # W&B has the sum as a figure, and the rows as a table in a file of its own.
    [folder] = tmp_path.glob("wandb/offline-run-*")
    figures = json.loads(wandb_records(folder, "--summary"))["summary"]
    assert figures["activations/total_mib"] == found["total_mib"]
    [table] = folder.rglob("*.table.json")
    content = json.loads(table.read_text(encoding="utf-8"))
    assert content["columns"] == ["module", "operator", "mib", "tensors"]
    assert content["data"] == [list(row.values()) for row in found["rows"]]
    steps = [json.loads(line) for line in wandb_records(folder).splitlines()]
    assert sum("train/loss" in json.dumps(line["history"]) for line in steps if "history" in line) == 4
