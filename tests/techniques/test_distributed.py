"""Two real gloo ranks train as one process does, by DDP and by FSDP2, however the window is split over them."""

import re

from rungwise.data.loader import build_dataloader

import pytest
import torch
from forked_ranks import on_ranks
from harness import (
    LINES,
    build_dataset,
    largest_difference,
    padded_rows,
    ragged_rows,
    tiny_settings,
    train_tiny,
)
from needs import LOSS_IN_CHUNKS, needs
from selection import taken
from torch import nn

# fp32 sums the same numbers in another order.
SAME_WEIGHTS = 1e-7
STEPS = 6
UNITS = needs("embeddings and head are units of FSDP2 of their own", accelerate="1.14")
EQUAL = ["", "-accum4", "-accum4-each", "-accum4-ckpt", "-accum4-ckpt-fused", "-ragged-accum2"]
EQUAL += ["-padded", "-streamed-accum4"]
# Padded, too.
STREAMED = ("--dataset_name", LINES, "--packing", "false", "--streaming")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    on_ranks("ranks.py", 2, str(folder / "saved.pt"), str(folder / "cache"))
    return torch.load(folder / "saved.pt")


@pytest.fixture(scope="module")
def verdicts(request, tmp_path_factory):
    """What each of two ranks says of runs in which what keeps them together is broken."""
    file = tmp_path_factory.mktemp("broken") / "saved.pt"
    on_ranks("broken_ranks.py", 2, str(file), *(params["case"] for params in taken(request, BREAKING)))
    return torch.load(file)


@pytest.fixture(scope="module")
def one_process():
    """Losses, norms, tokens and weights of one process, for each kind of rows."""
    settings = tiny_settings("--max_steps", str(STEPS))
    streamed = tiny_settings("--max_steps", str(STEPS), *STREAMED)
    return {
        "packed": train_tiny(settings, sgd=True),
        "ragged": train_tiny(settings, ragged_rows(), sgd=True),
        "padded": train_tiny(settings, padded_rows(), sgd=True),
        "streamed": train_tiny(streamed, sgd=True),
    }


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
@pytest.mark.parametrize("case", EQUAL)
def test_two_ranks_equal_one_process(two_ranks, one_process, engine, case):
    """The same weights, losses, global gradient norm and tokens."""
    two, one = two_ranks[engine + case], one_process[next((kind for kind in one_process if kind in case), "packed")]
    # A sharded model is saved without the second name of a tied parameter, or with; the first is in both.
    weights = {name: value for name, value in one.weights.items() if name in two["weights"]}
    assert len(weights) >= len(one.weights) - 1
    assert largest_difference(two["weights"], weights) < SAME_WEIGHTS
    losses, norms, tokens = zip(*two["steps"], strict=True)
    assert list(losses) == pytest.approx(one.losses, abs=2e-6)
    assert list(norms) == pytest.approx([s.grad_norm for s in one.steps], rel=1e-5)
    assert list(tokens) == [s.tokens for s in one.steps]


def test_adamw_on_shards_equals_ddp_and_one_process(two_ranks):
    """AdamW's moments are sharded, too; it divides by the gradient, so that losses, not weights, are compared."""
    one = train_tiny(tiny_settings("--max_steps", str(STEPS))).losses
    for engine in ("ddp", "fsdp2"):
        assert [loss for loss, _, _ in two_ranks[f"{engine}-adamw"]["steps"]] == pytest.approx(one, abs=1e-5)


def test_what_was_asked_for_was_there(two_ranks):
    for key, run in two_ranks.items():
        if not key.startswith(("ddp", "fsdp2")):
            continue
        assert run["evidence"]["engine"] == ("FSDP2" if key.startswith("fsdp2") else "DDP"), key
        assert run["evidence"]["processes"] == 2, key
        assert run["tied"], key
        assert (run["evidence"]["recomputed_blocks"] > 0) == ("-ckpt" in key), key
        assert bool(run["evidence"]["fused_activations"]) == ("fused" in key), key
        chunked = "fused" in key and hasattr(nn, "LinearCrossEntropyOptions")
        assert run["evidence"]["linear_cross_entropy"] == chunked, key


@pytest.mark.parametrize("precision, dtype", [("bf16", "bfloat16"), ("fp16", "float16")])
def test_half_precision_on_shards(two_ranks, one_process, precision, dtype):
    run = two_ranks[f"fsdp2-{precision}"]
    assert run["evidence"]["compute_dtype"] == dtype
    assert run["evidence"]["gradient_scaler"] == (precision == "fp16")
    # Two units of rounding of the dtype, relative, as for one process.
    rounding = {"bf16": 2.0**-8, "fp16": 2.0**-11}[precision]
    assert run["steps"][0][0] == pytest.approx(one_process["packed"].losses[0], rel=2 * rounding)


@LOSS_IN_CHUNKS
def test_the_chunked_loss_takes_the_gathered_head_in_its_own_precision(two_ranks):
    run, plain = two_ranks["fsdp2-bf16-fused"], two_ranks["fsdp2-bf16"]
    assert run["evidence"]["loss_products"] == "bfloat16"
    losses = [[loss for loss, _, _ in found["steps"]] for found in (run, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=2.0**-10)


@pytest.mark.parametrize("precision, dtype", [("bf16", "bfloat16"), ("fp16", "float16")])
def test_the_residual_stream_is_cast_nowhere_between_blocks(two_ranks, precision, dtype):
    """Autocast keeps it in fp32; FSDP2 has it in half precision, handed on as it is, and the evidence says so."""
    run = two_ranks[f"fsdp2-{precision}"]
    assert run["between_blocks"] == [getattr(torch, dtype)]
    assert run["evidence"]["residual_dtype"] == dtype
    assert run["loss_dtype"] == torch.float32
    for key in ("ddp-bf16", "ddp", "fsdp2"):
        assert two_ranks[key]["evidence"]["residual_dtype"] == "float32", key
    assert two_ranks["ddp-bf16"]["evidence"]["compute_dtype"] == "bfloat16"


@pytest.mark.parametrize("key", ["fsdp2-whole", "fsdp2-sharded"])
def test_a_checkpoint_is_whole_or_sharded_as_the_file_says(two_ranks, key):
    run = two_ranks[key]
    assert run["lost"] == 0
    shards = {name for name in run["files"] if name.endswith(".distcp")}
    parts = {f"{part}_0/__{rank}_0.distcp" for part in ("pytorch_model_fsdp", "optimizer") for rank in (0, 1)}
    assert shards == (parts if key == "fsdp2-sharded" else set())
    assert ("pytorch_model_fsdp.bin" in run["files"]) == (key == "fsdp2-whole")
    # What is asked of the model as a whole is whole in either case.
    assert run["weights"].keys() == two_ranks["fsdp2-adamw"]["weights"].keys()


@UNITS
def test_accumulation_does_not_communicate_gradients_before_the_last_micro_batch(two_ranks):
    def count(key, name):
        return two_ranks[key]["collectives"].get(name, 0)

    # DDP: all gradients fit one bucket. The sums of tokens and losses are all-reduced as well, in both.
    assert count("ddp-accum4", "all_reduce") == count("ddp", "all_reduce")
    assert count("ddp-accum4-each", "all_reduce") == count("ddp", "all_reduce") + 3 * STEPS
    # FSDP2: one reduce-scatter for each of two blocks, for the embeddings with the final norm, and for the positions.
    assert count("fsdp2", "reduce_scatter") == 4 * STEPS
    assert count("fsdp2-accum4", "reduce_scatter") == 4 * STEPS
    assert count("fsdp2-accum4-each", "reduce_scatter") == 4 * 4 * STEPS
    assert count("fsdp2", "all_reduce") == count("fsdp2-accum4", "all_reduce")


@UNITS
def test_keeping_parameters_after_forward_saves_gathers(two_ranks):
    """Per micro-batch: with resharding the two blocks are gathered for forward and again for backward."""
    gathers = {key: two_ranks[key]["collectives"]["all_gather"] for key in ("fsdp2-accum4", "fsdp2-accum4-keep")}
    assert gathers == {"fsdp2-accum4": 6 * 4 * STEPS, "fsdp2-accum4-keep": 4 * 4 * STEPS}


@pytest.mark.parametrize("engine", ["ddp", "fsdp2"])
def test_compiled_ranks_equal_one_process(two_ranks, one_process, engine):
    """Each block, inside DDP and under FSDP2; accumulated. Only the order of sums differs."""
    losses = [loss for loss, _, _ in two_ranks[f"{engine}-compiled"]["steps"]]
    assert losses == pytest.approx(one_process["packed"].losses, abs=1e-5)
    assert two_ranks[f"{engine}-compiled"]["evidence"]["compiled_parameters"] == 1.0


def test_each_row_of_an_epoch_is_seen_once(two_ranks):
    epoch = two_ranks["epoch"]
    assert epoch["own"] == 128
    assert sorted(epoch["seen"].tolist()) == sorted(epoch["rows"].tolist())


def test_a_streams_rows_of_a_step_are_the_same_on_one_process(two_ranks):
    """Over the end of an epoch, whatever the number of micro-batches."""
    settings = tiny_settings(*STREAMED)
    batches = [batch["input_ids"].tolist() for batch in build_dataloader(build_dataset(settings), settings)]
    assert len(batches) == 20 and 2 * len(padded_rows()) < 20 * 16
    for accumulation in (1, 4):
        steps = two_ranks[f"stream-{accumulation}"].tolist()
        assert [sorted(rows) for rows in steps] == [sorted(rows) for rows in batches]


@pytest.mark.parametrize("kind", ["eval", "eval-streamed"])
def test_each_row_is_evaluated_once_over_both_ranks(two_ranks, kind):
    seen = two_ranks[kind]
    counted = (seen["labels"] != -100).any(dim=1)
    assert len(counted) == 16 and counted.sum() == 5
    assert seen["input_ids"][counted].tolist() == seen["rows"]


BREAKING = "test_what_keeps_processes_together_is_shown_and_missed_where_it_is_broken"
CONFIGURATIONS = ("plain", "warm-up", "fp16", "accumulation", "checkpointing", "lora", "resume")
SHARDED = CONFIGURATIONS[:4]
UNSHARED = "DDP was asked for between processes, none is there"
SAME_ROWS = "every process was given the same rows; give the loader to accelerator.prepare"
EACH_TIME = "gradients were to stay in their process in 3 micro-batches, they did in 0"
BROKEN = {
    "ddp": {
        "whole": "shown: DDP",
        "no_all_reduce": UNSHARED,
        "a_model_that_is_not_wrapped": UNSHARED,
        "the_same_rows": SAME_ROWS,
        "synchronised_each_time": EACH_TIME,
    },
    "fsdp2": {
        "whole": "shown: FSDP2",
        # Each keeps its own sum of gradients, and no shard gets one.
        "no_all_reduce": "no step changed a weight|gradients were to stay in their process",
        "the_same_rows": SAME_ROWS,
    },
}


@pytest.mark.breadth(6)
@pytest.mark.parametrize("case", [*(f"ddp {name}" for name in CONFIGURATIONS), *(f"fsdp2 {name}" for name in SHARDED)])
def test_what_keeps_processes_together_is_shown_and_missed_where_it_is_broken(verdicts, case):
    engine = case.split()[0]
    said = {key[1]: [rank[key] for rank in verdicts] for key in verdicts[0] if key[0] == case}
    left_out = {"synchronised_each_time"} if case != "ddp accumulation" else set()
    left_out |= {"no_all_reduce"} if case == "fsdp2 fp16" else set()
    assert set(said) == set(BROKEN[engine]) - left_out
    wrong = {way: words for way, words in said.items() if not all(re.search(BROKEN[engine][way], w) for w in words)}
    assert wrong == {}


def test_ranks_agree_on_a_window_that_carries_no_loss(verdicts):
    """Half a window without a loss is a step; one of which both halves are is none, in both processes."""
    for steps in (rank["masked"] for rank in verdicts):
        assert [tokens for tokens, _, _ in steps] == [124, 0, 62, 124, 0, 124]
        assert [skipped for _, skipped, _ in steps] == [False, True, False, False, True, False]
        assert all((loss > 0) != skipped for _, skipped, loss in steps)
