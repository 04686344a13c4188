"""Peaks of real ranks over gloo, of small models in turn: started by `test_sharded.py`."""

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from rungwise.settings.fields import Settings

from accelerate import PartialState
from accelerate.utils import DistributedType, gather_object
from grid import BF16, CHECKPOINTED, measure
from harness import tiny_settings
from transformers import AutoConfig, PreTrainedConfig

# Sizes that no number of ranks divides. So few layers are traced all at once.
LLAMA = {
    "vocab_size": 1026,
    "hidden_size": 68,
    "intermediate_size": 250,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 18,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
}
GPT2 = {"vocab_size": 1026, "n_positions": 64, "n_embd": 68, "n_layer": 3, "n_head": 4}
GPT2 |= {**dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0), "bos_token_id": None, "eos_token_id": None}
MODELS: dict[str, dict[str, Any]] = {"llama": LLAMA, "gpt2": GPT2}
FSDP2, ACCUMULATED = {"fsdp": True}, {"gradient_accumulation_steps": 4}
# By name: model type, settings.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "FSDP2": ("llama", FSDP2),
    "FSDP2, checkpointing": ("llama", {**FSDP2, **CHECKPOINTED}),
    "FSDP2, bf16": ("gpt2", {**FSDP2, **BF16}),
    "FSDP2, bf16, accumulation, checkpointing": ("llama", {**FSDP2, **BF16, **ACCUMULATED, **CHECKPOINTED}),
    "FSDP2, exchanged each time": ("llama", {**FSDP2, **ACCUMULATED, "sync_each_batch": True}),
    "FSDP2, kept gathered": ("llama", {**FSDP2, "fsdp_reshard_after_forward": False}),
    # What is exchanged is the highest.
    "FSDP2, few tokens": ("gpt2", {**FSDP2, "block_size": 4, "optim": "sgd"}),
    "DDP, bf16, checkpointing": ("gpt2", {**BF16, **CHECKPOINTED}),
    "DDP, accumulation": ("llama", ACCUMULATED),
}
# Those that four ranks take as well.
TWICE = ("FSDP2", "FSDP2, bf16, accumulation, checkpointing", "FSDP2, few tokens", "DDP, accumulation")


def inputs(case: str, processes: int) -> tuple[Settings, PreTrainedConfig]:
    """Settings and config of a case, with two rows of a micro-batch in each process."""
    family, changes = CASES[case]
    rows = 2 * processes * changes.get("gradient_accumulation_steps", 1)
    sizes = {"micro_batch_size": 2, "global_batch_size": rows, "block_size": 64, "num_processes": processes}
    settings = dataclasses.replace(tiny_settings(), **{**sizes, **changes}, max_steps=2)
    return settings, AutoConfig.for_model(family, **MODELS[family], use_cache=False)


def main() -> None:
    """Writes the figures of the rank with the highest peak, of each case that is named."""
    processes, found = int(os.environ["WORLD_SIZE"]), {}
    for case in sys.argv[2:]:
        # The processes stay; what the last case made of them does not.
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_CPU
        ranks = gather_object([measure(*inputs(case, processes))])
        found[case] = max(ranks, key=lambda figures: figures["step_mib"])
    if PartialState().is_main_process:
        Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
