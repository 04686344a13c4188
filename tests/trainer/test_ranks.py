"""A Trainer in two processes, with our callback and without; and a rung of it."""

from rungwise.result_file import read_result

import pytest
import torch
from forked_ranks import on_ranks
from trainers import SIZES, same

STEPS, ACCUMULATION, PROCESSES, ROWS = 14, 2, 2, 4


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainers")
    on_ranks("trainer_ranks.py", 2, str(folder / "saved.pt"), str(folder))
    return torch.load(folder / "saved.pt") | {name: read_result(folder / name) for name in ("ablate", "trainer")}


def test_training_is_the_same_in_two_processes(saved):
    without, measured = saved["without"], saved["with"]
    assert len(without["losses"]) == STEPS and without["losses"] == measured["losses"]
    assert same(without["weights"], measured["weights"])


def test_figures_are_over_both_processes(saved):
    found = saved["with"]
    result, rows = found["result"], found["rows"]
    assert (result["status"], result["reason"]) == ("ok", None)
    assert result["evidence"]["engine"] == "DDP" and result["evidence"]["processes"] == PROCESSES
    assert result["evidence"]["micro_batches"] == ACCUMULATION
    asked = result["settings"]
    assert (asked["num_processes"], asked["global_batch_size"]) == (PROCESSES, ROWS * ACCUMULATION * PROCESSES)
    # A Trainer's loss is over the labels of all processes, the first of each row among them.
    items = result["evidence"]["items_per_token"]
    assert rows[-1]["train/loss"] == pytest.approx(found["losses"][-1] * items, rel=1e-6)
    speed = result["throughput"]
    assert speed["tokens_per_second_per_device"] == pytest.approx(speed["tokens_per_second"] / PROCESSES)
    memory = result["memory"]
    assert memory["peak_allocated_mib"] <= memory["peak_allocated_sum_mib"] <= 2 * memory["peak_allocated_mib"]
    # DDP's buckets, a copy of the gradients, among it: they are there before the first step is.
    assert memory["peak_allocated_mib"] * 2**20 == pytest.approx(saved["peak"], rel=0.01)
    assert memory["parameters_mib"] == pytest.approx(4 * count() / 2**20)


def count():
    """The parameters of the tests' GPT-2, whose embeddings are tied: 12 C^2 + 13 C a layer."""
    width = SIZES["n_embd"]
    return width * (SIZES["vocab_size"] + SIZES["n_positions"] + 2) + SIZES["n_layer"] * (12 * width**2 + 13 * width)


def test_what_is_missing_in_one_process_is_missing_in_the_run(saved):
    result = saved["one rank"]["result"]
    assert result["status"] == "failed" and "the optimizer stepped 2 times in one step" in result["reason"]
    assert len(saved["one rank"]["losses"]) == 5


def test_sharding_that_was_asked_for_and_is_not_there(saved):
    """On a CPU Accelerate takes FSDP for DDP without a word."""
    result = saved["fsdp"]["result"]
    assert result["status"] == "failed" and "FSDP2 was asked for between processes, DDP is there" in result["reason"]


def test_a_rung_in_two_processes_is_ours_in_another_loop(saved):
    ours, theirs = saved["ablate"], saved["trainer"]
    assert theirs["status"] == "ok" and theirs["evidence"] == ours["evidence"]
    assert theirs["evidence"]["processes"] == PROCESSES and theirs["evidence"]["engine"] == "DDP"
    assert theirs["loss"]["trajectory"] == pytest.approx(ours["loss"]["trajectory"], rel=1e-6)
    assert theirs["throughput"]["tokens"] == ours["throughput"]["tokens"]
