"""Equal training: however a window is split, and whichever technique is on, the same weights come out.

Weights are compared under SGD, which is linear in the gradient. AdamW divides by the gradient's size, so that rounding
of 1e-10 in a gradient that is mathematically zero (the bias of a key, say) moves a weight; its losses are compared.
"""

import dataclasses
import math
from types import SimpleNamespace

from rungwise.data.loader import build_dataloader
from rungwise.data.sampling import EpochSampler
from rungwise.loop import DataEnded, Diverged, train
from rungwise.metrics.throughput import StepMeter

import pytest
import torch
from harness import NoMemory, largest_difference, masked_rows, padded_rows, ragged_rows, tiny_settings, train_tiny
from needs import EVERY_N_LAYERS, marked

CHECKPOINTINGS = ["{}", '{"use_reentrant": true}', '{"every_n_layers": 2}']
ROWS = {"packed": lambda: None, "ragged": ragged_rows, "padded": padded_rows}
# fp32 sums the same numbers in another order; ten times what was seen, a hundredth of what one lost row would do.
SAME_WEIGHTS = 1e-7
SAME_LOSS = 2e-6


@pytest.fixture(scope="module", params=ROWS)
def case(request):
    rows = ROWS[request.param]()
    base = [train_tiny(tiny_settings("--max_steps", "6"), rows, sgd=sgd) for sgd in (True, False)]
    return rows, *base


@pytest.mark.parametrize("accumulation", [2, 4, 16])
def test_accumulation_changes_nothing(case, accumulation):
    rows, sgd, adamw = case
    settings = tiny_settings("--max_steps", "6", "--gradient_accumulation_steps", str(accumulation))
    split = train_tiny(settings, rows, sgd=True)
    assert largest_difference(split.weights, sgd.weights) < SAME_WEIGHTS
    assert [s.tokens for s in split.steps] == [s.tokens for s in sgd.steps]
    assert split.losses == pytest.approx(sgd.losses, abs=SAME_LOSS)
    assert [s.grad_norm for s in split.steps] == pytest.approx([s.grad_norm for s in sgd.steps], rel=1e-5)
    assert train_tiny(settings, rows).losses == pytest.approx(adamw.losses, abs=SAME_LOSS)


@pytest.mark.parametrize("kwargs", marked(CHECKPOINTINGS, {"every_n": EVERY_N_LAYERS}))
def test_checkpointing_is_bitwise_equal(case, kwargs):
    rows, _, adamw = case
    flags = ["--max_steps", "6", "--gradient_checkpointing", "--gradient_checkpointing_kwargs", kwargs]
    checkpointed = train_tiny(tiny_settings(*flags), rows)
    assert largest_difference(checkpointed.weights, adamw.weights) == 0
    blocks = 1 if "every_n" in kwargs else 2
    # Each block, each micro-batch, once.
    assert checkpointed.proof.verify(checkpointed.steps[-1])["recomputed_blocks"] == blocks
    assert adamw.proof.verify(adamw.steps[-1])["recomputed_blocks"] == 0


def test_a_lost_row_would_be_seen(case):
    """The bounds above are far from what a real difference does."""
    rows, sgd, _ = case
    fewer = train_tiny(tiny_settings("--max_steps", "6", "--global_batch_size", "15"), rows, sgd=True)
    assert largest_difference(fewer.weights, sgd.weights) > 100 * SAME_WEIGHTS


@pytest.mark.parametrize("make_rows", [ragged_rows, padded_rows])
def test_the_loss_is_over_all_tokens_of_the_window(make_rows):
    """Against one plain forward over the whole window: the sum of token losses over the tokens that carry one."""
    rows = make_rows()
    trained = train_tiny(
        tiny_settings(
            "--max_steps", "3", "--untimed_steps", "2", "--gradient_accumulation_steps", "8", "--learning_rate", "0"
        ),
        rows,
    )
    window = next(iter(build_dataloader(rows, tiny_settings())))
    with torch.no_grad():
        logits = trained.model(input_ids=window["input_ids"], attention_mask=window["attention_mask"]).logits
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), window["labels"][:, 1:].flatten(), reduction="none", ignore_index=-100
    )
    count = int((window["labels"][:, 1:] != -100).sum())
    assert trained.steps[0].tokens == count
    assert trained.steps[0].loss == pytest.approx(float(losses.sum()) / count, abs=1e-6)


@pytest.mark.parametrize("accumulation", [1, 4])
def test_padded_rows_are_as_good_as_each_text_alone(accumulation):
    """Loss and gradients of one step against a plain forward of each text by itself, without any padding."""
    rows = padded_rows()
    flags = ("--max_steps", "3", "--learning_rate", "0", "--gradient_accumulation_steps", str(accumulation))
    gradients = []

    def keep_gradients(accelerator):
        clip = accelerator.clip_grad_norm_

        def clip_and_keep(parameters, limit):
            parameters = list(parameters)
            gradients.append([parameter.grad.clone() for parameter in parameters])
            return clip(parameters, limit)

        accelerator.clip_grad_norm_ = clip_and_keep

    trained = train_tiny(tiny_settings(*flags, "--untimed_steps", "2"), rows, accelerator_hook=keep_gradients)
    window = next(iter(build_dataloader(rows, tiny_settings())))
    lengths = window["attention_mask"].sum(dim=1).tolist()
    assert 2 <= min(lengths) < max(lengths) == 32
    trained.model.zero_grad()
    total, count = 0.0, sum(length - 1 for length in lengths)
    for ids, length in zip(window["input_ids"], lengths, strict=True):
        logits = trained.model(input_ids=ids[None, :length]).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, ids[1:length], reduction="sum") / count
        loss.backward()
        total += float(loss.detach())
    assert trained.steps[0].tokens == count
    assert trained.steps[0].loss == pytest.approx(total, abs=1e-6)
    for kept, parameter in zip(gradients[0], trained.model.parameters(), strict=True):
        assert torch.allclose(kept, parameter.grad, rtol=1e-4, atol=1e-7)


@pytest.fixture(scope="module")
def fp32():
    return train_tiny(tiny_settings("--max_steps", "8"))


@pytest.mark.parametrize("precision, unit", [("bf16", 2**-8), ("fp16", 2**-11)])
def test_half_precision_follows_fp32(fp32, precision, unit):
    """Half the first-order bound: each matrix product of the forward rounds its result by at most `unit` of its size.

    The loss moves by at most twice the largest change of a logit. Four products a block and the head give
    2 x (4 x 2 + 1) x unit x max|logit|, if all of them round the same way; half of that is what is held to. Errors of
    later steps add up, one bound a step. The losses must differ, too: equal ones would be fp32 under another name.
    """
    half = train_tiny(tiny_settings("--max_steps", "8", config=f"accelerate_configs/{precision}.yaml"))
    rows = torch.randint(128, (16, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        largest_logit = float(fp32.model(input_ids=rows).logits.abs().max())
    bound = (4 * 2 + 1) * unit * largest_logit
    differences = [abs(a - b) for a, b in zip(half.losses, fp32.losses, strict=True)]
    assert all(difference <= bound * (n + 1) for n, difference in enumerate(differences))
    assert max(differences) > 0
    evidence = half.proof.verify(half.steps[-1])
    assert evidence["compute_dtype"] == {"bf16": "bfloat16", "fp16": "float16"}[precision]
    assert evidence["gradient_scaler"] == (precision == "fp16")
    assert all(p.dtype == torch.float32 for p in half.model.parameters())
    state = [v for s in half.optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    assert state and all(v.dtype == torch.float32 for v in state)


@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_skipped_fp16_steps_are_counted_and_hold_the_schedule(optim):
    def overflow(accelerator):
        accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)

    flags = ["--max_steps", "40", "--lr_scheduler_type", "linear", "--optim", optim]
    settings = tiny_settings(*flags, config="accelerate_configs/fp16.yaml")
    trained = train_tiny(settings, accelerator_hook=overflow)
    skipped = [s for s in trained.steps if s.skipped]
    assert 0 < len(skipped) < 40
    # Each skipped step halves the scale, changes no weight and leaves the schedule where it was.
    assert trained.steps[0].skipped and trained.steps[1].loss_scale == trained.steps[0].loss_scale / 2
    done = [s for s in trained.steps if not s.skipped]
    first = done[0].number
    assert all(s.learning_rate == pytest.approx(1e-3) for s in trained.steps[:first])
    assert done[-1].learning_rate == pytest.approx(1e-3 * (1 - (len(done) - 1) / 40))


def test_a_loss_that_is_no_number_ends_the_run():
    settings = tiny_settings("--max_steps", "9", "--learning_rate", "1e20", "--max_grad_norm", "0")
    with pytest.raises(Diverged, match=r"loss of step \d is (nan|inf); lower --learning_rate"):
        train_tiny(settings)


@pytest.mark.parametrize("config", ["fp32.yaml", "fp16.yaml", "bf16_accum4.yaml"])
def test_a_window_that_carries_no_loss_is_skipped(config):
    """It changes no weight, holds the schedule, and is neither timed nor fp16's overflow."""
    schedule = ["--lr_scheduler_type", "linear", "--untimed_steps", "2"]
    settings = tiny_settings("--max_steps", "6", *schedule, config=f"accelerate_configs/{config}")
    trained = train_tiny(settings, masked_rows(settings, windows=(1, 4)))
    assert [s.tokens > 0 for s in trained.steps] == [not s.skipped for s in trained.steps]
    assert [s.number for s in trained.steps if s.skipped] == [1, 4]
    assert not any(s.timed for s in trained.steps if s.skipped) and trained.steps[4].timed
    assert all(math.isnan(s.loss) and s.grad_norm == 0 for s in trained.steps if s.skipped)
    assert [s.learning_rate for s in trained.steps] == pytest.approx([1e-3 * (1 - n / 6) for n in (0, 0, 1, 2, 2, 3)])
    assert trained.evidence["changed_parameters"] > 0


def test_windows_that_carry_no_loss_leave_the_training_of_the_others(monkeypatch):
    """To the last digit: the steps that are left are those of a run over the other rows alone."""
    settings = tiny_settings("--max_steps", "6")
    rows = masked_rows(settings, windows=(1, 4))
    losses = train_tiny(settings, rows).losses
    learnt = [row for row in EpochSampler(96, 96, settings.seed) if (rows[row]["labels"] != -100).any()]
    monkeypatch.setattr("rungwise.data.loader.EpochSampler", lambda count, total, seed: range(total))
    others = train_tiny(dataclasses.replace(settings, max_steps=4), rows.select(learnt)).losses
    assert [loss for loss in losses if not math.isnan(loss)] == others


ENDS = {
    "at once": (0, 1, r"the data ended before step 1 of 6: a step takes 1 micro-batches a process, 0 were left"),
    "between steps": (2, 1, r"the data ended after step 2 of 6: .* 0 were left"),
    "within a window": (
        6,
        4,
        r"the data ended after step 1 of 6: a step takes 4 micro-batches a process, 2 were left",
    ),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_loader_that_ends_early_is_named(case, monkeypatch):
    batches, accumulation, words = ENDS[case]
    monkeypatch.setattr(
        "harness.build_dataloader", lambda rows, settings: list(build_dataloader(rows, settings))[:batches]
    )
    settings = tiny_settings("--max_steps", "6", "--gradient_accumulation_steps", str(accumulation))
    with pytest.raises(DataEnded, match=words + "; give a loader that begins again"):
        train_tiny(settings)


def test_clipping_bounds_the_update_not_the_reported_norm():
    clipped = train_tiny(
        tiny_settings("--max_steps", "3", "--untimed_steps", "2", "--max_grad_norm", "0.01"), sgd=True
    )
    free = train_tiny(tiny_settings("--max_steps", "3", "--untimed_steps", "2", "--max_grad_norm", "0"), sgd=True)
    assert clipped.steps[0].grad_norm == pytest.approx(free.steps[0].grad_norm, rel=1e-6)
    start = train_tiny(tiny_settings("--max_steps", "3", "--untimed_steps", "2", "--learning_rate", "0")).weights
    moved = math.sqrt(sum(float(((clipped.weights[n] - start[n]) ** 2).sum()) for n in start if n != "lm_head.weight"))
    # Three SGD steps with momentum 0.9 of a gradient no longer than 0.01, at learning rate 0.05.
    assert moved <= 0.05 * 0.01 * (1 + 1.9 + 2.71) * 1.001


def test_the_loop_drives_only_what_it_is_given(fp32):
    """The same loop over a hand-made model: it needs `.loss` and `num_items_in_batch`, no more."""

    class Bigram(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(8, 8)

        def forward(self, input_ids, labels, num_items_in_batch):
            loss = torch.nn.functional.cross_entropy(
                self.table(input_ids)[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
            )
            return SimpleNamespace(loss=loss / num_items_in_batch)

    model = Bigram()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    ids = torch.arange(8).repeat(4, 1)
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    meter = StepMeter(accelerator.device, NoMemory(), 1)
    batches = [{"input_ids": ids, "labels": ids}] * 5
    steps = list(train(accelerator, model, optimizer, scheduler, batches, meter, max_steps=5, max_grad_norm=1.0))
    assert [s.number for s in steps] == [1, 2, 3, 4, 5]
    assert steps[-1].loss < steps[0].loss
    assert [s.timed for s in steps] == [False, True, True, True, True]
    assert all(s.tokens == 4 * 7 for s in steps)
