"""Started in two processes: a Trainer without our callback and with it, by DDP; and a rung, by both loops.

Saves what rank 0 found.
"""

import os
import sys
from pathlib import Path

from rungwise.trainer import MeasureCallback

import ablate
import torch
import trainer
from accelerate import PartialState
from accelerate.state import AcceleratorState, GradientState
from commands import TINY
from trainers import BUSY, allocated_peak, train
from transformers import TrainerCallback

DDP = "accelerate_configs/ddp_cpu.yaml"
RUNG = ["--config", DDP, *TINY, "--report_to", "none", "--gradient_accumulation_steps", "2"]
RUNG += ["--dataset_name", "synthetic"]
folder = Path(sys.argv[2])
saved = {}


class OfOneRank(TrainerCallback):
    """Steps the optimizer twice, in one process alone: what is missing there must not keep the other waiting."""

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        if PartialState().process_index == 1 and state.global_step == 0:
            optimizer.optimizer.step()


def run(name, *callbacks, **arguments):
    found = train(folder / name, *callbacks, save_strategy="no", **arguments)
    saved[name] = {"losses": found.losses, "weights": found.weights, "result": found.result, "rows": found.rows}


BUSY.pop("save_steps")
# What a thread of gloo gives back the profiler may miss: by chance a peak is too high, and never too low.
saved["peak"] = min(allocated_peak(lambda: run("profiled", None, **{**BUSY, "max_steps": 3})) for _ in range(3))
run("without", None, **BUSY)
run("with", MeasureCallback(), **BUSY)
run("one rank", MeasureCallback(), OfOneRank(), max_steps=5)
for name, recipe in (("ablate", ablate), ("trainer", trainer)):
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert recipe.main([*RUNG, "--output_dir", str(folder / name)]) == 0
os.environ["ACCELERATE_USE_FSDP"] = "true"
run("fsdp", MeasureCallback(), max_steps=5)
if PartialState().is_main_process:
    torch.save(saved, sys.argv[1])
