"""Started by torchrun in two processes: trains on both kinds of rows, and compiled, and saves what rank 0 holds."""

import sys

from rungwise import __version__  # noqa: F401 (sets what PyTorch reads when it is imported)

import torch
from harness import ragged_rows, tiny_settings, train_tiny

saved = {}


def train(key, *flags, rows=None):
    trained = train_tiny(tiny_settings("--max_steps", "6", *flags), rows, sgd=True)
    trained.proof.check(trained.accelerator)
    assert trained.accelerator.num_processes == 2
    steps = [(s.loss, s.grad_norm, s.tokens) for s in trained.steps]
    saved[key] = {"weights": trained.weights, "steps": steps}
    return trained


for rows in ("packed", "ragged"):
    for accumulation in ("1", "2", "4"):
        for checkpointing in ((), ("--gradient_checkpointing",)):
            key = f"{rows}-{accumulation}{'-checkpointed' if checkpointing else ''}"
            flags = ("--gradient_accumulation_steps", accumulation, *checkpointing)
            train(key, *flags, rows=ragged_rows() if rows == "ragged" else None)
trained = train("compiled", "--gradient_accumulation_steps", "2", "--torch_compile")
assert trained.compiled.recompiles == 0
if trained.accelerator.is_main_process:
    torch.save(saved, sys.argv[1])
trained.accelerator.end_training()
