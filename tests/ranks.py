"""Started in two processes: trains in every way that processes share a window, and saves what rank 0 holds."""

import collections
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

from rungwise import __version__  # noqa: F401 (sets what PyTorch reads when it is imported)
from rungwise.data.loader import build_dataloader, build_eval_dataloader
from rungwise.techniques import build_accelerator

import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, broadcast_object_list, set_seed
from harness import LINES, build_dataset, build_datasets, ragged_rows, tiny_settings, train_tiny
from torch import nn
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.profiler import ProfilerActivity, profile

DDP, FSDP = "accelerate_configs/ddp_cpu.yaml", "accelerate_configs/fsdp2_cpu.yaml"
COLLECTIVES = {
    "c10d::allreduce_": "all_reduce",
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
}
# Runs whose collectives are compared.
COUNTED = {*(f"{engine}{way}" for engine in ("ddp", "fsdp2") for way in ("", "-accum4", "-accum4-each"))}
COUNTED.add("fsdp2-accum4-keep")
saved = {}


def no_default_mesh(*_, **__):
    raise AssertionError("fully_shard took the accelerator that PyTorch was built for, which may not be there")


_fully_shard._init_default_mesh = no_default_mesh


def fresh_engine():
    """The processes stay; what the last run made of them, FSDP perhaps, does not."""
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_CPU
    AcceleratorState._reset_state()


def train(key, *flags, config=DDP, sgd=True, dataset=None, **changes):
    fresh_engine()
    settings = tiny_settings("--max_steps", "6", *flags, config=config, **changes)
    # A profile of all that a run does takes longer than the run.
    with profile(activities=[ProfilerActivity.CPU]) if key in COUNTED else nullcontext() as profiler:
        trained = train_tiny(settings, dataset, sgd=sgd)
    events = profiler.profiler.kineto_results.events() if profiler else []
    counts = collections.Counter(event.name() for event in events if event.name() in COLLECTIVES)
    state = trained.accelerator.get_state_dict(trained.prepared)
    saved[key] = {
        "weights": {name: value.clone() for name, value in state.items()},
        "steps": [(s.loss, s.grad_norm, s.tokens) for s in trained.steps],
        "evidence": trained.proof.verify(trained.steps[-1]),
        "collectives": {COLLECTIVES[name]: count for name, count in counts.items()},
        "tied": trained.model.lm_head.weight is trained.model.transformer.wte.weight,
    }
    return trained


PADDED = ("--dataset_name", LINES, "--packing", "false")
STREAMED = (*PADDED, "--streaming")
ACCUMULATED = ("--gradient_accumulation_steps", "4")
CHECKPOINTED = ("--gradient_checkpointing",)
# The loss in chunks where PyTorch has its operator.
FUSED = ("--fused_activation", *(["--linear_cross_entropy"] if hasattr(nn, "LinearCrossEntropyOptions") else []))
for engine, config in (("ddp", DDP), ("fsdp2", FSDP)):
    train(f"{engine}", config=config)
    train(f"{engine}-accum4", *ACCUMULATED, config=config)
    train(f"{engine}-accum4-each", *ACCUMULATED, "--sync_each_batch", config=config)
    train(f"{engine}-accum4-ckpt", *ACCUMULATED, *CHECKPOINTED, config=config)
    train(f"{engine}-accum4-ckpt-fused", *ACCUMULATED, *CHECKPOINTED, *FUSED, config=config)
    train(f"{engine}-ragged-accum2", "--gradient_accumulation_steps", "2", config=config, dataset=ragged_rows())
    train(f"{engine}-padded", *PADDED, config=config)
    train(f"{engine}-streamed-accum4", *STREAMED, *ACCUMULATED, config=config)
    train(f"{engine}-adamw", *ACCUMULATED, config=config, sgd=False)
train("fsdp2-accum4-keep", *ACCUMULATED, "--fsdp_reshard_after_forward", "false", config=FSDP)
for precision in ("bf16", "fp16"):
    trained = train(f"fsdp2-{precision}", config=FSDP, mixed_precision=precision)
    between, row = [], torch.zeros((1, 32), dtype=torch.long)
    # Registered behind FSDP2's own hook: what the next block is handed.
    trained.model.transformer.h[0].register_forward_hook(lambda *b, seen=between: seen.append(b[-1].dtype))
    loss = trained.prepared(input_ids=row, labels=row).loss
    saved[f"fsdp2-{precision}"] |= {"between_blocks": between, "loss_dtype": loss.dtype}
train("ddp-bf16", config=DDP, mixed_precision="bf16")
train("fsdp2-bf16-fused", *FUSED, config=FSDP, mixed_precision="bf16")


def checkpoint(key, **changes):
    """Trains, saves, spoils everything, loads: the files, and the largest difference to what was saved."""
    trained = train(key, config=FSDP, sgd=False, **changes)
    folder = [tempfile.mkdtemp()]
    broadcast_object_list(folder)
    trained.accelerator.save_state(folder[0])

    def tensors():
        states = trained.optimizer.state.values()
        return [*trained.model.parameters(), *(v for state in states for v in state.values() if v.ndim)]

    before = [tensor.detach().clone() for tensor in tensors()]
    for tensor in tensors():
        tensor.data.fill_(7)
    trained.accelerator.load_state(folder[0])
    after = tensors()
    assert len(after) == len(before) == 3 * len(list(trained.model.parameters()))
    largest = max(float((a - b).detach().abs().max().full_tensor()) for a, b in zip(after, before, strict=True))
    files = sorted(str(path.relative_to(folder[0])) for path in Path(folder[0]).rglob("*") if path.is_file())
    saved[key] |= {"files": files, "lost": largest}


checkpoint("fsdp2-whole")
checkpoint("fsdp2-sharded", fsdp_state_dict_type="SHARDED_STATE_DICT")
for engine, config in (("ddp", DDP), ("fsdp2", FSDP)):
    compiling = ("--torch_compile", "--torch_compile_scope", "regional", "--torch_compile_cache_dir", sys.argv[2])
    trained = train(f"{engine}-compiled", "--gradient_accumulation_steps", "2", *compiling, config=config)
    assert trained.compiled.recompiles == 0
    trained.compiled.close()

# One epoch of 256 rows, 16 a step over both ranks.
fresh_engine()
settings = tiny_settings("--max_steps", "16", config=DDP)
accelerator = build_accelerator(settings)
set_seed(0)
dataset = build_dataset(settings)
batches = accelerator.prepare(build_dataloader(dataset, settings))
own = torch.cat([batch["input_ids"] for batch in batches])
saved["epoch"] = {"seen": accelerator.gather(own), "rows": dataset["input_ids"][:], "own": len(own)}

# A stream, over the end of an epoch: the rows of each optimizer step, (steps, rows, T).
for accumulation in (1, 4):
    flags = ("--gradient_accumulation_steps", str(accumulation))
    settings = tiny_settings(*STREAMED, *flags, config=DDP)
    batches = accelerator.prepare(build_dataloader(build_dataset(settings), settings))
    own = torch.stack([batch["input_ids"] for batch in batches])
    steps = accelerator.gather(own[None]).reshape(2, settings.max_steps, -1, settings.block_size)
    saved[f"stream-{accumulation}"] = steps.transpose(0, 1).flatten(1, 2)

# An evaluation whose rows do not divide by the processes.
for name, flags in (("eval", PADDED), ("eval-streamed", STREAMED)):
    settings = tiny_settings(*flags, "--eval_steps", "2", "--max_eval_samples", "5", config=DDP)
    rows = build_datasets(settings)[1]
    batches = list(accelerator.prepare(build_eval_dataloader(rows, settings)))
    seen = {key: accelerator.gather(torch.cat([batch[key] for batch in batches])) for key in batches[0]}
    saved[name] = {**seen, "rows": [row["input_ids"].tolist() for row in rows]}

if accelerator.is_main_process:
    torch.save(saved, sys.argv[1])
del trained
accelerator.end_training()
