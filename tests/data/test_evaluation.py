"""The loss of held-out rows: what it is, and that it changes nothing else."""

from rungwise.data.loader import build_eval_dataloader
from rungwise.loop import evaluate

import pytest
import torch
from commands import ablate_here
from harness import TINY, ragged_rows, tiny_settings, train_tiny
from torch.nn.functional import cross_entropy


def train(folder, *flags):
    return ablate_here(folder, "--config", "accelerate_configs/fp32.yaml", *TINY, "--max_steps", "8", *flags)


@pytest.mark.parametrize("batch", [4, 16])
def test_every_token_has_the_same_weight(batch):
    """Rows of unequal length, some without a loss; the last batch is not full."""
    trained = train_tiny(tiny_settings("--max_steps", "4"))
    rows = ragged_rows(37)
    loader = build_eval_dataloader(rows, tiny_settings("--global_batch_size", str(batch)))
    found = evaluate(trained.accelerator, trained.prepared, trained.accelerator.prepare_data_loader(loader))
    assert trained.model.training
    with torch.no_grad():
        mask = rows["attention_mask"][:]
        logits = trained.model.eval()(input_ids=rows["input_ids"][:], attention_mask=mask).logits
    labels = rows["labels"][:][:, 1:]
    assert found == pytest.approx(float(cross_entropy(logits[:, :-1].flatten(0, 1), labels.flatten())), rel=1e-6)


def test_evaluations_stand_in_the_result_and_survive_a_resumption(tmp_path, capsys):
    whole = train(tmp_path / "whole", "--eval_steps", "3", "--checkpointing_steps", "3")
    assert [point["step"] for point in whole["loss"]["eval"]] == [3, 6]
    output = capsys.readouterr()
    assert "held-out loss after step 3: " in output.err and "after step 6" in output.out
    resumed = train(
        tmp_path / "resumed", "--eval_steps", "3", "--resume_from_checkpoint", str(tmp_path / "whole" / "checkpoint-3")
    )
    assert [point["step"] for point in resumed["loss"]["eval"]] == [3, 6]
    for before, after in zip(whole["loss"]["eval"], resumed["loss"]["eval"], strict=True):
        assert after["loss"] == pytest.approx(before["loss"], abs=1e-6)


def test_evaluating_changes_no_step(tmp_path):
    """Dropout draws the same numbers, the same rows are trained on."""
    dropping = ["--config_overrides", f"{TINY[1]},resid_pdrop=0.1,attn_pdrop=0.1", "--eval_steps"]
    often, seldom = train(tmp_path / "often", *dropping, "1"), train(tmp_path / "seldom", *dropping, "8")
    assert often["loss"]["trajectory"] == seldom["loss"]["trajectory"]
    assert len(often["loss"]["eval"]) == 8 and len(seldom["loss"]["eval"]) == 1
