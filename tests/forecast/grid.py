"""Forecasts beside measured peaks, over families, techniques and sizes: `python tests/forecast/grid.py` prints all."""

import dataclasses
import json
import multiprocessing
import statistics
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))

from rungwise.data.loader import build_dataloader, synthetic
from rungwise.forecast import Forecast, forecast
from rungwise.forecast.trace import uncollected
from rungwise.loop import train
from rungwise.metrics.memory import MIB, MemoryMeter
from rungwise.metrics.throughput import StepMeter
from rungwise.model.model import build_model
from rungwise.settings.fields import Settings
from rungwise.techniques import apply_techniques, build_optimizer, build_scheduler, plain_accelerator

import torch
from accelerate.state import AcceleratorState, GradientState
from harness import ragged_rows, tiny_settings
from transformers import AutoConfig, PreTrainedConfig

OWNERS = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
_DECODER = {
    "vocab_size": 2048,
    "hidden_size": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
_EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {
        "vocab_size": 2048,
        "n_positions": 4096,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    },
    "llama": {**_DECODER, "num_hidden_layers": 5},
    "gpt_neox": _DECODER,
    "opt": {**_DECODER, "ffn_dim": 256, "word_embed_proj_dim": 64, "dropout": 0.0},
    "mistral": {**_DECODER, "sliding_window": 32},
    "qwen3": _DECODER,
    "gemma3_text": {**_DECODER, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]},
    "phi3": _DECODER,
    "olmo2": _DECODER,
    "mixtral": {**_DECODER, **_EXPERTS},
    "qwen3_moe": {**_DECODER, **_EXPERTS},
    "mamba2": {
        **{name: _DECODER[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")},
        "num_heads": 8,
        "head_dim": 16,
        "n_groups": 1,
        "state_size": 16,
        "chunk_size": 32,
    },
}
ROWS = {"global_batch_size": 8, "micro_batch_size": 8, "block_size": 128}
BF16, ACCUMULATED = {"mixed_precision": "bf16"}, {"gradient_accumulation_steps": 4, "micro_batch_size": 2}
CHECKPOINTED, CHUNKED = {"gradient_checkpointing": True}, {"linear_cross_entropy": True}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": BF16,
    "fp16": {"mixed_precision": "fp16"},
    "pure bf16": {"dtype": "bfloat16"},
    "accumulation": {**ACCUMULATED},
    "checkpointing": CHECKPOINTED,
    "reentrant": {**CHECKPOINTED, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    "every 2nd layer": {**CHECKPOINTED, "gradient_checkpointing_kwargs": {"every_n_layers": 2}},
    "chunked loss": CHUNKED,
    "bf16, chunked loss": {**BF16, **CHUNKED},
    "bf16, accumulation, checkpointing": {**BF16, **ACCUMULATED, **CHECKPOINTED},
    "bf16, checkpointing, chunked loss": {**BF16, **CHECKPOINTED, **CHUNKED},
    "bf16, accumulation, checkpointing, chunked loss": {**BF16, **ACCUMULATED, **CHECKPOINTED, **CHUNKED},
    "adamw_torch_fused": {"optim": "adamw_torch_fused"},
    "adamw_torch_8bit": {"optim": "adamw_torch_8bit"},
    "adafactor": {"optim": "adafactor"},
    "sgd": {"optim": "sgd"},
    "LoRA": {"use_peft": True},
    "bf16, LoRA": {**BF16, "use_peft": True},
    "eager attention": {"attn_implementation": "eager"},
    "bf16, eager attention": {**BF16, "attn_implementation": "eager"},
}
# Techniques that are tried on one family.
ONCE = (
    "reentrant",
    "adamw_torch_fused",
    "adamw_torch_8bit",
    "adafactor",
    "sgd",
    "bf16, LoRA",
    "eager attention",
    "bf16, eager attention",
)
BOTH = ("fp32", "bf16, accumulation, checkpointing")
# Where little else is held: products and what they take beside their output, the loss, the copies of weights.
LITTLE = (
    "bf16, accumulation, checkpointing",
    *(name for name in TECHNIQUES if name.endswith("checkpointing, chunked loss")),
)
DEEP = {
    "gpt2": {"n_layer": 4, "vocab_size": 1024, "n_positions": 64},
    "llama": {"num_hidden_layers": 4, "vocab_size": 1024},
}
LARGE, LONG = {"vocab_size": 16384}, {"global_batch_size": 1, "micro_batch_size": 1, "block_size": 2048}


@dataclass(frozen=True)
class Case:
    """One run of the grid: its family and its technique, and what is different in its config or its batch."""

    family: str
    technique: str
    config: tuple[tuple[str, Any], ...] = ()
    rows: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return ", ".join(
            [self.family, self.technique, *(f"{name} {value}" for name, value in self.config + self.rows)]
        )

    def inputs(self) -> tuple[Settings, PreTrainedConfig]:
        """Settings and config."""
        config = AutoConfig.for_model(self.family, **{**FAMILIES[self.family], **dict(self.config)}, use_cache=False)
        settings = tiny_settings(**{**ROWS, **TECHNIQUES[self.technique], **dict(self.rows)})
        return dataclasses.replace(settings, max_steps=2), config


def _large(family: str, technique: str) -> Case:
    return Case(family, technique, config=tuple(LARGE.items()), rows=(("block_size", 64),))


def _deep(family: str, technique: str, **rows: Any) -> Case:
    return Case(family, technique, config=tuple(DEEP[family].items()), rows=(("block_size", 64), *rows.items()))


def _long(family: str, technique: str) -> Case:
    return Case(family, technique, rows=tuple(LONG.items()))


CASES = (
    *(Case("llama", technique) for technique in TECHNIQUES),
    *(Case("gpt2", technique) for technique in TECHNIQUES if technique not in ONCE),
    Case("gpt2", "fp32", rows=(("fused_activation", True),)),
    Case("gpt2", "bf16", rows=(("fused_activation", True),)),
    *(Case(family, technique) for family in list(FAMILIES)[2:] for technique in BOTH),
    *(Case(family, technique, rows=(("packing", False),)) for family in ("gpt2", "llama") for technique in BOTH),
    *(_large(family, technique) for family in ("gpt2", "llama") for technique in ("fp32", "bf16", "chunked loss")),
    *(_deep(family, technique) for family in DEEP for technique in LITTLE),
    *(_deep("gpt2", technique, fused_activation=True) for technique in LITTLE[1:]),
    *(_long(family, technique) for family in ("gpt2", "llama") for technique in ("fp32", "bf16", "checkpointing")),
)


@uncollected()
def measure(settings: Settings, config: PreTrainedConfig) -> dict[str, float]:
    """What the meter measures of a run on real tensors, as a run has it, by PyTorch's own kernels."""
    # Ranks keep the process group that they have.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    GradientState._reset_state()
    accelerator = plain_accelerator(settings)
    meter = MemoryMeter(accelerator.device)
    if settings.packing:
        rows = synthetic(config.vocab_size, settings.block_size, seed=0)
    else:
        rows = ragged_rows(length=settings.block_size)
    # A loader that goes on, as a run's does: it fetches ahead.
    loader = build_dataloader(rows, dataclasses.replace(settings, max_steps=settings.max_steps + 1))
    with meter.building():
        model, _ = apply_techniques(build_model(settings, config), settings, accelerator.device)
        optimizer = build_optimizer(model, settings)
        scheduler = build_scheduler(optimizer, settings)
        meter.watch(model, optimizer)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    steps = StepMeter(accelerator.device, meter, untimed_steps=settings.max_steps)
    limits = {"max_steps": settings.max_steps, "max_grad_norm": settings.max_grad_norm}
    for _ in train(accelerator, model, optimizer, scheduler, loader, steps, **limits):
        pass
    return {**meter.result(), "step_mib": max(size for _, size, _ in meter.timeline) / MIB}


def error(found: Forecast, measured: dict[str, float]) -> float:
    """How far the forecast peak is from the measured one, in per cent of that."""
    return 100 * (found.peak_mib / measured["peak_allocated_mib"] - 1)


def table(rows: Iterable[tuple[Case, Forecast, dict[str, float]]]) -> str:
    """Each case in Markdown, the error of its peak and of each owner in MiB; then the errors by technique."""
    lines = ["", "| case | measured MiB | forecast MiB | error | " + " | ".join(OWNERS) + " |"]
    lines.append("| --- | ---: | ---: | ---: |" + " ---: |" * len(OWNERS))
    errors: defaultdict[str, list[float]] = defaultdict(list)
    for case, found, measured in rows:
        far = error(found, measured)
        errors[case.technique].append(abs(far))
        owners = " | ".join(f"{found.owners[name] - measured[f'{name}_mib']:+.4f}" for name in OWNERS)
        peaks = f"{measured['peak_allocated_mib']:.2f} | {found.peak_mib:.2f}"
        lines.append(f"| {case} | {peaks} | {far:+.4f}% | {owners} |")
    lines += ["", "| technique | cases | median error | worst |", "| --- | ---: | ---: | ---: |"]
    for name, found in (*errors.items(), ("all", [one for many in errors.values() for one in many])):
        lines.append(f"| {name} | {len(found)} | {statistics.median(found):.4f}% | {max(found):.4f}% |")
    return "\n".join(lines)


def both(case: Case) -> tuple[Forecast, dict[str, float]]:
    """The forecast of a case, and what was measured.

    Raises:
        RuntimeError: with the traceback of any exception. A pool waits for ever for one that cannot be made again.
    """
    try:
        return forecast(*case.inputs()), measure(*case.inputs())
    except Exception:
        raise RuntimeError(f"{case}:\n{traceback.format_exc()}") from None


def main() -> None:
    """Prints the grid; into a file that is named, it writes each case's peak, owners and what was measured.

    Names of cases behind the file's leave out all others.
    """
    torch.set_num_threads(1)
    taken = [case for case in CASES if str(case) in sys.argv[2:]] if sys.argv[2:] else CASES
    started = time.perf_counter()
    # As a run has it, each case has a process of its own: in one that others ran in, allocations differ by some KiB.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        rows = list(zip(taken, *zip(*pool.imap(both, taken, chunksize=1), strict=True), strict=True))
    print(table(rows))
    print(f"\n{len(taken)} of {len(CASES)} cases in {time.perf_counter() - started:.0f} s")
    if sys.argv[1:]:
        cases = {
            str(case): {"error": error(found, measured), "owners": found.owners, "measured": measured}
            for case, found, measured in rows
        }
        Path(sys.argv[1]).write_text(json.dumps(cases), encoding="utf-8")


if __name__ == "__main__":
    main()
