"""Started by torchrun in two processes: trains on both kinds of rows and saves what rank 0 holds."""

import sys

from rungwise import __version__  # noqa: F401 (sets what PyTorch reads when it is imported)

import torch
from harness import ragged_rows, tiny_settings, train_tiny

saved = {}
for rows in ("packed", "ragged"):
    for accumulation in ("1", "2", "4"):
        for checkpointing in ((), ("--gradient_checkpointing",)):
            flags = ["--max_steps", "6", "--gradient_accumulation_steps", accumulation, *checkpointing]
            trained = train_tiny(tiny_settings(*flags), ragged_rows() if rows == "ragged" else None, sgd=True)
            trained.proof.check(trained.accelerator)
            assert trained.accelerator.num_processes == 2
            key = f"{rows}-{accumulation}{'-checkpointed' if checkpointing else ''}"
            saved[key] = {
                "weights": trained.weights,
                "steps": [(s.loss, s.grad_norm, s.tokens) for s in trained.steps],
            }
if trained.accelerator.is_main_process:
    torch.save(saved, sys.argv[1])
trained.accelerator.end_training()
