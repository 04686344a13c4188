"""A Trainer with our callback: the same training, the figures of our own loop, and what did not act."""

import json
import logging
import subprocess
import sys
import time

from rungwise.techniques.seen import InactiveTechnique
from rungwise.trainer import MeasureCallback

import pytest
import torch
from harness import ENVIRONMENT, HANGS, ragged_rows, wandb_records
from trainers import BUSY, SIZES, allocated_peak, lines, read, same, small_model, train
from transformers import TrainerCallback, default_data_collator

ALL = {"bf16": True, "gradient_checkpointing": True, **BUSY}
STEPS, ROWS, ACCUMULATION = 14, 4, 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same training without the callback and with it."""
    return [
        train(tmp_path_factory.mktemp(name), measure, **ALL)
        for name, measure in (("without", None), ("with", MeasureCallback()))
    ]


def test_training_is_the_same_to_the_last_bit(pair):
    without, measured = pair
    assert len(without.losses) == STEPS and without.losses == measured.losses
    assert without.evaluations == measured.evaluations and len(without.evaluations) == 3
    assert without.checkpoints == measured.checkpoints and len(without.checkpoints) > 2
    assert same(without.weights, measured.weights)


def test_nothing_is_left_in_the_trainer(pair):
    without, trainer = (found.trainer for found in pair)
    optimizer = trainer.optimizer.optimizer
    assert hooks(trainer.model) == hooks(without.model) < 3
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert not {"training_step", "get_batch_samples"} & vars(trainer).keys()
    assert not {"backward", "no_sync", "clip_grad_norm_"} & vars(trainer.accelerator).keys()


def hooks(model):
    """How many there are; Transformers itself has some for checkpointing."""
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_the_result_says_what_acted(pair):
    result = pair[1].result
    assert (result["status"], result["reason"]) == ("ok", None)
    evidence, asked = result["evidence"], result["settings"]
    assert evidence["compute_dtype"] == "bfloat16" and evidence["parameter_dtype"] == "float32"
    # Two blocks in two micro-batches.
    assert evidence["recomputed_blocks"] == 4 and evidence["micro_batches"] == ACCUMULATION
    assert evidence["optimizer"] == asked["optim"] == "adamw_torch_fused"
    assert evidence["engine"] == "none" and evidence["processes"] == 1 and evidence["dropout"]
    assert evidence["building_measured"] is False
    assert (asked["engine"], asked["mixed_precision"], asked["gradient_checkpointing"]) == ("trainer", "bf16", True)
    assert (asked["micro_batch_size"], asked["global_batch_size"]) == (ROWS, ROWS * ACCUMULATION)
    assert asked["learning_rate"] == 1e-3 and result["origins"]["learning_rate"] == "TrainingArguments"
    assert result["origins"]["block_size"] == "the script's own"


class Batches(TrainerCallback):
    """Counts, independently, what each window learns from."""

    def __init__(self):
        self.tokens, self.items, self.profiled = [], [], []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model.register_forward_pre_hook(self.look, with_kwargs=True)

    def on_step_begin(self, *args, **kwargs):
        self.tokens.append(0)
        self.items.append(0)
        self.profiled.append(torch.autograd._profiler_enabled())

    def look(self, model, args, kwargs):
        if model.training:
            self.tokens[-1] += sum(int((row[1:] != -100).sum()) for row in kwargs["labels"])
            self.items[-1] += int((kwargs["labels"] != -100).sum())


def test_tokens_losses_and_phases(tmp_path):
    """GPT-2's Trainer counts the first label of each row, too, and divides by it; a token's loss is another thing."""
    batches = Batches()
    found = train(tmp_path, MeasureCallback(), batches, lr_scheduler_type="linear", **BUSY)
    rows, result = found.rows, found.result
    tokens = [row["train/tokens"] for row in rows]
    assert tokens == [sum(batches.tokens[: n + 1]) for n in range(STEPS)]
    losses = [row["train/loss"] for row in rows]
    own = zip(found.losses, batches.items, batches.tokens, strict=True)
    assert losses == pytest.approx([loss * items / count for loss, items, count in own], rel=1e-6)
    assert result["evidence"]["items_per_token"] == pytest.approx(batches.items[-1] / batches.tokens[-1])
    assert result["loss"]["trajectory"] == losses
    # The first whole step is the second one; after it one more under the profiler; then none.
    assert batches.profiled == [False, True, True] + [False] * (STEPS - 3)
    timed = [row for row in rows if "perf/step_ms" in row]
    assert [row["step"] for row in timed] == list(range(4, STEPS + 1))
    seconds = sum(row["perf/step_ms"] for row in timed) / 1000
    assert result["throughput"]["tokens_per_second"] == pytest.approx(sum(batches.tokens[3:]) / seconds)
    assert result["throughput"]["timed_steps"] == STEPS - 3
    # Rows of 32 tokens each, padded: each is computed whole.
    assert result["throughput"]["model_tflops"] > 0
    for name in ("grad_norm", "learning_rate"):
        logged = [entry[name] for entry in found.trainer.state.log_history if name in entry]
        assert [row[f"train/{name}"] for row in rows] == pytest.approx(logged) and len(logged) == STEPS


def test_memory_is_what_the_allocator_held(tmp_path):
    """Against PyTorch's profiler around all of a training, model and all."""
    peak = allocated_peak(lambda: train(tmp_path / "profiled", None, max_steps=3, bf16=True, **BUSY))
    model = small_model()
    memory = train(tmp_path / "measured", MeasureCallback(), bf16=True, **BUSY).result["memory"]
    parameters = 4 * sum(p.numel() for p in model.parameters())
    assert memory["parameters_mib"] * 2**20 == memory["gradients_mib"] * 2**20 == parameters
    assert memory["optimizer_state_mib"] * 2**20 == 2 * parameters + 4 * len(list(model.parameters()))
    assert memory["peak_allocated_mib"] * 2**20 == pytest.approx(peak, rel=0.01)


class Sleeps(TrainerCallback):
    """Takes its time between steps."""

    def on_log(self, *args, **kwargs):
        time.sleep(0.3)

    on_evaluate = on_save = on_log


def test_a_step_is_its_wait_for_data_and_nothing_that_comes_between_two(tmp_path):
    slow = {"data_collator": lambda rows: time.sleep(0.05) or default_data_collator(rows)}
    found = train(
        tmp_path, MeasureCallback(), Sleeps(), eval_strategy="steps", eval_steps=3, max_steps=8, options=slow
    )
    times = [row["perf/step_ms"] for row in found.rows if "perf/step_ms" in row]
    assert min(times) >= 50 and min(times) < 300
    assert found.result["profile"]["data_ms"] >= 50


def no_checkpoints(model):
    """What a patch of a model may do to it without a word."""
    for block in model.transformer.h:
        block._gradient_checkpointing_func = lambda function, *args, **kwargs: function(*args, **kwargs)


class Breaks(TrainerCallback):
    """Breaks something once all is ready."""

    def __init__(self, broken):
        self.broken = broken

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.broken(model)


INACTIVE = {
    "fp16 on a CPU": ({"fp16": True}, lambda model: None, "mixed_precision fp16 was asked for, the model computed in"),
    "checkpointing": (
        {"gradient_checkpointing": True},
        no_checkpoints,
        "gradient checkpointing was asked for: True; blocks that were recomputed: 0",
    ),
}


@pytest.mark.parametrize("name", INACTIVE)
def test_what_does_not_act_is_said_and_ends_a_strict_training_alone(tmp_path, caplog, name):
    arguments, broken, reason = INACTIVE[name]
    arguments |= {"max_steps": 4}
    with caplog.at_level(logging.WARNING, "rungwise"):
        found = train(tmp_path / "run", MeasureCallback(), Breaks(broken), **arguments)
    assert len(found.losses) == 4 and found.trainer.state.global_step == 4
    assert found.result["status"] == "failed" and reason in found.result["reason"]
    assert [record.message.count(reason) for record in caplog.records if record.name.startswith("rungwise")] == [1]
    with pytest.raises(InactiveTechnique, match=reason):
        train(tmp_path / "strict", MeasureCallback(strict=True), Breaks(broken), **arguments)
    strict = read(tmp_path / "strict" / "result.json")
    assert strict["status"] == "failed" and reason in strict["reason"] and len(strict["loss"]["trajectory"]) == 1


def test_an_optimizer_of_the_scripts_own_is_named_and_not_judged(tmp_path):
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = train(tmp_path, MeasureCallback(), model=model, max_steps=4, options={"optimizers": (optimizer, None)})
    assert found.result["status"] == "ok" and found.result["evidence"]["optimizer"] == "sgd"
    assert found.result["origins"]["optim"] == "the script's own"


def test_going_on_leaves_checkpoints_and_earlier_steps_alone(tmp_path, pair):
    """As without the callback; the figures of the steps before stay in the file."""
    folder = tmp_path / "run"
    train(folder, MeasureCallback(), **{**ALL, "max_steps": 8})
    first = lines(folder / "metrics.jsonl")
    found = train(folder, MeasureCallback(), resume=str(folder / "checkpoint-4"), **ALL)
    assert found.losses == pair[0].losses and same(found.weights, pair[0].weights)
    assert found.checkpoints == pair[0].checkpoints
    assert [row["step"] for row in found.rows] == list(range(1, STEPS + 1)) and found.rows[:4] == first[:4]
    assert found.result["status"] == "ok" and found.result["loss"]["first_step"] == 5
    assert found.result["loss"]["trajectory"] == [row["train/loss"] for row in found.rows[4:]]


def test_an_error_of_the_training_is_in_the_result_once_the_process_ends(tmp_path, monkeypatch):
    def fail(model):
        model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(MemoryError("too much")))

    measure = MeasureCallback()
    with pytest.raises(MemoryError) as error:
        train(tmp_path, measure, Breaks(fail))
    assert read(tmp_path / "result.json")["reason"].startswith("ended before it was finished")
    monkeypatch.setattr(sys, "last_value", error.value, raising=False)
    measure._training._left()
    result = read(tmp_path / "result.json")
    assert result["status"] == "out_of_memory" and "step 1" in result["reason"]
    assert not torch.autograd._profiler_enabled()


def test_the_trainers_own_tracker_has_our_figures(tmp_path, monkeypatch):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    found = train(tmp_path / "run", MeasureCallback(), report_to="tensorboard", logging_steps=2)
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    scalars = {name: {e.step: e.value for e in board.Scalars(name)} for name in board.Tags()["scalars"]}
    shown = {row["step"]: row for row in found.rows if row["step"] % 2 == 0}
    for name in ("perf/step_ms", "perf/tokens_per_second", "memory/peak_allocated_mib"):
        assert scalars[name] == pytest.approx({step: row[name] for step, row in shown.items() if name in row})
    assert scalars["train/loss"].keys() == shown.keys() and "train/perf/step_ms" not in scalars


def test_weights_and_biases_has_our_figures_and_the_runs_last(tmp_path):
    """In a process of its own, as W&B keeps what it was told in an earlier test."""
    arguments = f"pathlib.Path({str(tmp_path / 'run')!r}), MeasureCallback(), report_to='wandb', run_name='mine'"
    script = f"import pathlib; from trainers import MeasureCallback, train; train({arguments})"
    offline = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", script], env=ENVIRONMENT | offline, check=True, timeout=HANGS)
    shown, result = lines(tmp_path / "run" / "metrics.jsonl"), read(tmp_path / "run" / "result.json")
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    rows = [json.loads(line) for line in wandb_records(folder).splitlines()]
    rows = [row["history"]["item"] for row in rows if "history" in row]
    ours = {row["train/global_step"]: row for row in rows if "memory/peak_allocated_mib" in row}
    assert {step: row.get("perf/step_ms") for step, row in ours.items()} == pytest.approx(
        {row["step"]: row.get("perf/step_ms") for row in shown if "memory/peak_allocated_mib" in row}
    )
    assert len(ours) == sum("memory/peak_allocated_mib" in row for row in rows)
    summary = json.loads(wandb_records(folder, "--summary"))["summary"]
    for name in ("step_ms_median", "tokens_per_second"):
        assert summary[f"perf/{name}"] == pytest.approx(result["throughput"][name])
    assert summary["memory/peak_allocated_mib"] == pytest.approx(result["memory"]["peak_allocated_mib"])
    assert summary["status"] == "ok"


@pytest.mark.breadth(2, of="compiled code")
@torch._inductor.config.patch(force_disable_caches=True)
def test_compiled_by_a_trainer(tmp_path):
    arguments = {"torch_compile": True, "gradient_accumulation_steps": 2, "max_steps": 5}
    dataset = ragged_rows().remove_columns("attention_mask")
    without, measured = (
        train(tmp_path / str(n), measure, dataset=dataset, model=small_model(resid_pdrop=0.0, n_layer=1), **arguments)
        for n, measure in enumerate((None, MeasureCallback()))
    )
    assert without.losses == measured.losses and same(without.weights, measured.weights)
    result = measured.result
    assert (result["status"], result["reason"]) == ("ok", None)
    assert result["evidence"]["compiled_graphs"] == result["compile"]["graphs"] >= 1
    assert result["evidence"]["compiled_parameters"] > 0.9 and result["compile"]["seconds"] > 0
    assert result["compile"]["cache"].endswith("the script's own")
    assert result["activations"]["total_mib"] > 0
    assert {row["module"] for row in result["activations"]["rows"]} & {"h.*.mlp.c_fc", "h.*.attn", "h.*.ln_1"}


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    sizes = {**SIZES, "n_embd": 256, "n_head": 4, "vocab_size": 4096}
    found = [
        train(tmp_path / str(n), measure, model=small_model(**sizes), use_cpu=False, **ALL)
        for n, measure in enumerate((None, MeasureCallback()))
    ]
    assert found[0].losses == found[1].losses and same(found[0].weights, found[1].weights)
    result = found[1].result
    assert result["status"] == "ok" and result["environment"]["device"] == "cuda"
    assert result["memory"]["peak_reserved_mib"] >= result["memory"]["peak_allocated_mib"] > 0
