"""Memory that runs out, a loss that is no number, data that vanishes: each is said, with what was measured."""

from pathlib import Path

import pytest
from forked import forking, losses_of_a_whole_run, result_in, rows_in
from harness import LINES, MODEL

# As PyTorch says it on CUDA, and what its allocator on a CPU and Python's raise.
SAID = {
    "cuda": "torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has no more')",
    "cpu": "RuntimeError('[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can\\'t allocate memory')",
    "python": "MemoryError()",
}
TEXT = Path(LINES).read_bytes()[:2048]
# What a function does at its first call after so many steps.
AFTER = """
import functools, pathlib, rungwise, torch, transformers
from rungwise.run.run import Run
keep, called, done = Run.log, {owner}.{name}, [0]
def log(self, step):
    keep(self, step)
    done[0] = step.number
@functools.wraps(called)
def instead(*args, **kwargs):
    if done[0] == {steps}:
        {action}
    return called(*args, **kwargs)
Run.log, {owner}.{name} = log, instead
"""
# A part of a run, and what it calls.
PARTS = {
    "building": ("rungwise.build_model", 0, "before step 1"),
    "the optimizer's building": ("rungwise.build_optimizer", 0, "before step 1"),
    "the first backward": ("torch.Tensor.backward", 0, "in backward of step 1"),
    "forward": ("transformers.models.gpt2.modeling_gpt2.GPT2MLP.forward", 3, "in forward of step 4"),
    "backward": ("torch.Tensor.backward", 3, "in backward of step 4"),
    "the optimizer": ("torch.optim.AdamW.step", 3, "in the optimizer of step 4"),
    "a checkpoint": ("Run.save_checkpoint", 5, "after step 5"),
}


def after(steps, function, action):
    owner, _, name = function.rpartition(".")
    return AFTER.format(owner=owner, name=name, steps=steps, action=action)


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    with forking(tmp_path_factory.mktemp("forked")) as server:
        yield server


@pytest.fixture(scope="module")
def losses(forked, tmp_path_factory):
    return losses_of_a_whole_run(forked, tmp_path_factory.mktemp("whole"))


def is_kept(folder, losses, steps, status):
    """All that was measured by then; and the reason."""
    result, rows = result_in(folder), rows_in(folder)
    assert result["status"] == status
    assert result["loss"].get("trajectory", []) == [row["train/loss"] for row in rows] == losses[:steps]
    assert ((result["memory"]["peak_allocated_mib"] or 0) > 0) == (steps > 0) == bool(result["evidence"])
    return result["reason"]


@pytest.mark.parametrize(
    "part, said", [*((part, "cuda") for part in PARTS), *(("backward", said) for said in SAID if said != "cuda")]
)
def test_memory_that_runs_out(forked, losses, tmp_path, part, said):
    function, steps, when = PARTS[part]
    ended = forked.run("--output_dir", str(tmp_path), before=after(steps, function, f"raise {SAID[said]}"))
    assert ended.code == 1 and "Traceback" not in ended.said, ended.said
    reason = is_kept(tmp_path, losses, steps, "out_of_memory")
    words = {"cuda": "CUDA out of memory. Tried", "cpu": "[enforce fail", "python": "MemoryError"}[said]
    assert reason.startswith(f"out of memory {when} ({words}") and "raise --gradient_accumulation_steps" in reason
    assert f"fp32: out_of_memory - {reason}" in ended.said


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_a_loss_that_is_no_number(forked, losses, tmp_path, value):
    bad = f"args[0].transformer.wte.weight.data.fill_(float('{value}'))"
    bad = after(3, "transformers.GPT2LMHeadModel.forward", bad)
    ended = forked.run("--output_dir", str(tmp_path), before=bad)
    assert ended.code == 1 and "Traceback" not in ended.said
    assert is_kept(tmp_path, losses, 3, "diverged").startswith("the loss of step 4 is nan; lower --learning_rate")
    assert forked.run("--output_dir", str(tmp_path)).code == 0


@pytest.fixture
def book(tmp_path):
    """A text of some 60 rows, which four steps take, and a call that trains on it."""
    path = tmp_path / "book.txt"
    path.write_bytes(TEXT)
    bytes_ = MODEL.replace("vocab_size=128", "vocab_size=256")
    return path, ["--config_overrides", bytes_, "--dataset_name", str(path), "--output_dir"]


# By what is called when the file is removed, after how many steps; the flags; how the run ends, and what it says.
GONE = "[Errno 2] No such file or directory: '{}'; check --dataset_name"
VANISHES = {
    "before it is opened": ("rungwise.configure", 0, [], 2, "Couldn't find any data file at {}; check --dataset_name"),
    "before it is described": ("Run.start", 0, [], 2, GONE),
    "once it is cached": ("Run.save_checkpoint", 3, [], 0, "fp32: ok"),
    "while it is streamed": ("Run.save_checkpoint", 3, ["--streaming"], 1, GONE),
}


@pytest.mark.parametrize("when", VANISHES)
def test_a_file_that_vanishes(forked, tmp_path, book, when):
    path, call = book
    function, steps, flags, code, words = VANISHES[when]
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert forked.run(*call, str(whole), *flags).code == 0
    removed = f"pathlib.Path({str(path)!r}).unlink(missing_ok=True)"
    ended = forked.run(*call, str(run), *flags, before=after(steps, function, removed))
    assert ended.code == code and words.format(path) in ended.said, ended.said
    # What was refused leaves nothing.
    assert run.exists() == (function != "rungwise.configure")
    if run.exists():
        losses, taken = result_in(whole)["loss"]["trajectory"], len(rows_in(run))
        reason = is_kept(run, losses, taken, "failed" if code else "ok")
        assert taken == 12 if not code else taken in range(steps, 8)
        assert steps == 0 or not code or reason.startswith(f"after step {taken}: --dataset_name {path}: {GONE[:9]}")
    path.write_bytes(TEXT)
    assert forked.run(*call, str(run), *flags).code == 0
