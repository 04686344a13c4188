"""What one rank of FSDP2 holds, for models and numbers of ranks that people use, without a rank and without a GPU.

    python recipes/fsdp_memory.py
    python recipes/fsdp_memory.py --num_processes 8 16 --model_type qwen3 --config_overrides hidden_size=5120
    python recipes/fsdp_memory.py --device cpu --num_processes 2

The first form writes a table into recipes/README.md. Flags of ablate.py act on every row of it; with any of them, no
file is written. Each row is a forecast: training's own code, traced on tensors that have shapes and no memory.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rungwise.environment import describe
from rungwise.errors import SettingsError
from rungwise.forecast import NoForecast, forecast
from rungwise.forecast.cuda import NOT_MEASURED
from rungwise.model.model import empty_model
from rungwise.report.sections import source, write_section
from rungwise.run.configure import check
from rungwise.settings.fields import Settings
from rungwise.terminal import print_anything

import torch
from transformers import PreTrainedConfig

README = Path(__file__).parent / "README.md"
CONFIG = "accelerate_configs/fsdp2.yaml"
# Rows are of one length, whatever is in them; nothing is written of a run.
OWN = ("data", "evaluation", "output")
NAMING = ("--model_name_or_path", "--config_name", "--model_type")
OWNERS = ("parameters", "gradients", "optimizer_state", "activations")
COLUMNS = ("model", "billions", "ranks", "parameters", "gradients", "optimizer state", "activations", "peak of a step")
# Where ranks have GPUs, a model is built on the host.
ON_CPU = (*COLUMNS, "building")


@dataclass(frozen=True)
class Model:
    """A model by name, the flags of `ablate.py` that make its config, and the numbers of ranks that people take."""

    name: str
    flags: tuple[str, ...]
    processes: tuple[int, ...] = (8,)


def _model(name: str, model_type: str, processes: tuple[int, ...], **sizes: int) -> Model:
    overrides = ",".join(f"{key}={value}" for key, value in sizes.items())
    batch = ("--block_size", "4096", "--gradient_checkpointing")
    return Model(name, (*batch, "--model_type", model_type, "--config_overrides", overrides), processes)


MODELS = (
    _model(
        "Llama-2 7B",
        "llama",
        (8,),
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        max_position_embeddings=4096,
    ),
    _model(
        "Llama-3 8B",
        "llama",
        (8, 64),
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    ),
    _model(
        "Qwen3 8B",
        "qwen3",
        (8,),
        vocab_size=151936,
        hidden_size=4096,
        intermediate_size=12288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
    ),
    _model(
        "Llama-3 70B",
        "llama",
        (8, 64, 512),
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=8192,
    ),
)
# The one that flags name.
OWN_MODEL = Model("", ())


def arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This command's own flags, and those of `ablate.py`."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s [flags] [flags of ablate.py]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--num_processes", type=int, nargs="+", metavar="N", help="ranks [each model's own, or 8]")
    words = "rows that a rank runs at a time [%(default)s]"
    parser.add_argument("--micro_batch_size", type=int, default=1, metavar="N", help=words)
    words = "micro-batches of an optimizer step [%(default)s]"
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1, metavar="N", help=words)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda", help="what ranks run on [%(default)s]")
    return parser.parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the table, and writes it if no flag was given; returns the exit code."""
    print_anything()
    argv = sys.argv[1:] if argv is None else argv
    options, flags = arguments(argv)
    models = (OWN_MODEL,) if any(flag.partition("=")[0] in NAMING for flag in flags) else MODELS
    started = time.monotonic()
    try:
        asked = [
            (model, *inputs(options, [*model.flags, *flags], processes))
            for model in models
            for processes in options.num_processes or model.processes
        ]
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    columns = ON_CPU if options.device == "cpu" else COLUMNS
    lines = [terms(asked[0][1], options.device), "", f"| {' | '.join(columns)} |"]
    lines.append(f"| --- |{' ---: |' * (len(columns) - 1)}")
    print("\n".join(lines), flush=True)
    for one in asked:
        lines.append(row(*one, options.device))
        print(lines[-1], flush=True)
    where = source("python recipes/fsdp_memory.py", describe(torch.device("cpu")), time.monotonic() - started)
    print(f"\n{where}")
    if not argv:
        write_section(README, "fsdp memory", "\n".join([*lines, "", where]))
    return 0


def inputs(options: argparse.Namespace, flags: list[str], processes: int) -> tuple[Settings, PreTrainedConfig]:
    """The settings of one of so many ranks, and the model's config.

    Raises:
        SettingsError: what is wrong with the flags.
    """
    batches = options.gradient_accumulation_steps
    rows = options.micro_batch_size * batches * processes
    batch = ["--global_batch_size", str(rows), "--gradient_accumulation_steps", str(batches)]
    argv = ["--config", CONFIG, *batch, *flags]
    settings, errors, opened = check(argv, {"WORLD_SIZE": str(processes)}, own=OWN)
    if errors:
        raise SettingsError(errors)
    return settings, opened.config


def terms(settings: Settings, device: str) -> str:
    """What all rows have in common."""
    blocks = "each block checkpointed" if settings.gradient_checkpointing else "no block checkpointed"
    precision = {"no": "fp32"}.get(settings.mixed_precision, settings.mixed_precision)
    rows, batches = settings.micro_batch_size, settings.gradient_accumulation_steps
    what = "forecast, on a CPU, with gloo's copies" if device == "cpu" else NOT_MEASURED
    return (
        f"FSDP2, {precision}, {blocks}, `{settings.optim}` on {settings.dtype} parameters; {batches} x {rows} x "
        f"{settings.block_size:,} tokens a rank (micro-batches, rows, tokens). GiB of the first rank: {what}."
    )


def row(model: Model, settings: Settings, config: PreTrainedConfig, device: str) -> str:
    """One line of the table."""
    count = empty_model(settings, config).num_parameters() / 1e9
    head = f"| {model.name or config.model_type} | {count:.2f} | {settings.num_processes} "
    try:
        found = forecast(settings, config, device)
    except NoForecast as error:
        return f"{head}| not known: {error} |"
    owners = {**found.owners, "activations": found.step_mib - sum(found.owners[name] for name in OWNERS[:-1])}
    sizes = [*(owners[name] for name in OWNERS), found.step_mib, *([found.building_mib] * (device == "cpu"))]
    return f"{head}| {' | '.join(f'{size / 1024:,.2f}' for size in sizes)} |"


if __name__ == "__main__":
    raise SystemExit(main())
