"""The table of what a rank of FSDP2 holds."""

from pathlib import Path

import fsdp_memory
import pytest
from fsdp_memory import MODELS, OWNERS

SIZES = "vocab_size=1024,hidden_size=256,intermediate_size=512,num_hidden_layers=2,num_attention_heads=4"
FLAGS = ["--model_type", "llama", "--config_overrides", f"{SIZES},num_key_value_heads=4", "--block_size", "1024"]


def rows_of(text):
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return lines[2:]


def test_a_model_of_your_own(capsys):
    before = fsdp_memory.README.read_text(encoding="utf-8")
    asked = ["--device", "cpu", "--num_processes", "2", "4", "--micro_batch_size", "16"]
    assert fsdp_memory.main([*asked, *FLAGS]) == 0
    text = capsys.readouterr().out
    assert (
        "FSDP2, bf16, no block checkpointed, `adamw_torch` on float32 parameters; 1 x 16 x 1,024 tokens a rank" in text
    )
    assert "GiB of the first rank: forecast, on a CPU, with gloo's copies.\n" in text
    two, four = rows_of(text)
    assert (two[:3], four[:3]) == (["llama", "0.00", "2"], ["llama", "0.00", "4"])
    for row in (two, four):
        *owners, peak, _ = map(float, row[3:])
        assert len(owners) == len(OWNERS) and sum(owners) == pytest.approx(peak, abs=0.03)
    assert fsdp_memory.README.read_text(encoding="utf-8") == before


def test_a_call_that_is_wrong(capsys):
    assert fsdp_memory.main(["--num_processes", "2", *FLAGS, "--train_file", "book.txt", "--block_size", "4096"]) == 2
    said = capsys.readouterr().err
    assert "--train_file has no effect" in said and "--block_size 4096 is longer than the model's 2048" in said


def test_the_table_that_is_shipped_is_of_these_models():
    """Shares of parameters that all divide: an exact count, and that of AdamW's two moments."""
    table = Path(fsdp_memory.README).read_text(encoding="utf-8").partition("<!-- fsdp memory -->")[2]
    rows = rows_of(table.partition("<!-- /fsdp memory -->")[0])
    assert "GiB of the first rank: forecast, not measured on CUDA.\n" in table
    assert [(row[0], int(row[2])) for row in rows] == [(one.name, n) for one in MODELS for n in one.processes]
    for _, billions, ranks, parameters, gradients, state, *_ in rows:
        share = 4 * float(billions) * 1e9 / int(ranks) / 2**30
        assert float(parameters) == float(gradients) == pytest.approx(share, abs=0.006 + 0.005 * 4 / int(ranks))
        assert float(state) == pytest.approx(2 * share, abs=0.011 + 0.01 * 4 / int(ranks))
