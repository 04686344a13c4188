"""Two real gloo ranks train as one process does, however the window is split over them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from harness import largest_difference, ragged_rows, tiny_settings, train_tiny

# fp32 sums the same numbers in another order.
SAME_WEIGHTS = 1e-7


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "saved.pt"
    torchrun = str(Path(sys.executable).parent / "torchrun")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [torchrun, "--standalone", "--nproc_per_node", "2", str(ROOT / "tests" / "ranks.py"), str(path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return torch.load(path)


@pytest.mark.parametrize("rows", ["packed", "ragged"])
def test_two_ranks_equal_one_process(two_ranks, rows):
    one = train_tiny(tiny_settings("--max_steps", "6"), ragged_rows() if rows == "ragged" else None, sgd=True)
    cases = [key for key in two_ranks if key.startswith(rows)]
    assert len(cases) == 6
    for key in cases:
        assert largest_difference(two_ranks[key]["weights"], one.weights) < SAME_WEIGHTS, key
        losses, norms, tokens = zip(*two_ranks[key]["steps"], strict=True)
        assert list(losses) == pytest.approx(one.losses, abs=2e-6), key
        assert list(norms) == pytest.approx([s.grad_norm for s in one.steps], rel=1e-5), key
        assert list(tokens) == [s.tokens for s in one.steps], key


def test_compiled_ranks_equal_one_process(two_ranks):
    """Inside DDP, accumulating without communication. Only the order of sums differs."""
    one = train_tiny(tiny_settings("--max_steps", "6"), sgd=True)
    losses = [loss for loss, _, _ in two_ranks["compiled"]["steps"]]
    assert losses == pytest.approx(one.losses, abs=1e-5)
