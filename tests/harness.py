"""A training run small enough for a test, through the same pieces as recipes/ablate.py."""

import dataclasses
import gc
import os
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from rungwise.data import loader
from rungwise.data.loader import build_dataloader
from rungwise.data.opened import Inputs, Opening, open_data
from rungwise.data.sampling import EpochSampler, Row, StreamingRows
from rungwise.errors import SettingsError
from rungwise.loop import Step, train
from rungwise.metrics.memory import local
from rungwise.metrics.throughput import StepMeter
from rungwise.model.model import build_model
from rungwise.settings.fields import Settings
from rungwise.settings.parse import parse
from rungwise.techniques import apply_techniques, build_accelerator, build_optimizer, build_scheduler
from rungwise.techniques.evidence import Evidence
from rungwise.techniques.seen import InactiveTechnique

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import set_seed
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from transformers import PreTrainedTokenizerFast

# What was imported is not looked through again and again: it takes longer than the tiny runs of a test.
gc.freeze()

ROOT = Path(__file__).parent.parent
# Of another Python process that imports what the tests import.
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])}
# Seconds. Ends what hangs; no busy machine needs so long.
HANGS = 1800
# A small file of text, ASCII: some 140 lines, half of them shorter than a row.
LINES = str(ROOT / "constraints.txt")
MODEL = "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2"
TINY = ["--config_overrides", MODEL, "--block_size", "32", "--dataset_name", "synthetic", "--report_to", "none"]
TINY += ["--plots", "false"]


def tiny_settings(*flags: str, config: str = "accelerate_configs/fp32.yaml", **changes: Any) -> Settings:
    """Settings of a 2-layer GPT-2 on synthetic rows. `changes` go around the flags."""
    settings, errors = parse(["--config", config, *TINY, *flags])
    assert errors == []
    # Bounds of equal training are the CPU's, also where there is an accelerator.
    return dataclasses.replace(settings, **{"use_cpu": True, **changes})


def file_settings(path: str | Path, *flags: str, **changes: Any) -> Settings:
    """Settings of a tiny run on a file, 4 tokens a row."""
    flags = ("--block_size", "4", "--dataset_name", str(path), *flags)
    return tiny_settings(*flags, dataset_name=None, train_file=str(path), **changes)


def open_inputs(settings: Settings) -> Inputs:
    """All that a run reads, opened for it alone; raises SettingsError if some data cannot be, as the commands do."""
    opening = Opening()
    data, errors = open_data(settings, opening)
    if errors:
        raise SettingsError(errors)
    return Inputs(opening.config(settings), data)


def build_datasets(settings: Settings) -> tuple[Dataset | StreamingRows, Sequence[Row] | None]:
    """The rows of a run, of which nothing was opened before."""
    return loader.build_datasets(settings, open_inputs(settings))


def build_dataset(settings: Settings) -> Dataset | StreamingRows:
    """The rows to train on."""
    return build_datasets(settings)[0]


def data_errors(settings: Settings) -> list[str]:
    """What is wrong with the texts and the tokenizer."""
    return open_data(settings, Opening())[1]


def word_tokenizer(folder: Path, vocab_size: int, **special: str) -> str:
    """Writes a tokenizer whose words are w0, w1, ..., w0 for any other, and returns its folder."""
    tokenizer = Tokenizer(models.WordLevel({f"w{n}": n for n in range(vocab_size)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return str(folder)


def ragged_rows(count: int = 64, length: int = 32, vocab_size: int = 128) -> Dataset:
    """Rows of unequal length, padded: labels -100 and no attention on the padding. Some carry no loss at all."""
    generator = torch.Generator().manual_seed(7)
    rows = []
    for index in range(count):
        used = 1 if index % 9 == 0 else int(torch.randint(2, length + 1, (1,), generator=generator))
        ids = torch.randint(vocab_size, (length,), generator=generator)
        mask = torch.arange(length) < used
        rows.append({"input_ids": ids * mask, "attention_mask": mask.long(), "labels": torch.where(mask, ids, -100)})
    columns = {key: torch.stack([row[key] for row in rows]).numpy() for key in rows[0]}
    return Dataset.from_dict(columns).with_format("torch")


def masked_rows(settings: Settings, windows: Collection[int], half: int | None = None) -> Dataset:
    """Rows in an order of which some steps' windows carry no loss, and of one the second half alone."""
    rows = settings.max_steps * settings.global_batch_size
    ids = torch.randint(128, (rows, settings.block_size), generator=torch.Generator().manual_seed(7))
    labels = ids.clone()
    order = torch.tensor(list(EpochSampler(rows, rows, settings.seed)))
    for number in (*windows, *([half] if half else [])):
        window = order[(number - 1) * settings.global_batch_size : number * settings.global_batch_size]
        labels[window[: len(window) // 2] if number == half else window] = -100
    columns = {"input_ids": ids.numpy(), "labels": labels.numpy()}
    return Dataset.from_dict(columns).with_format("torch")


def padded_rows() -> Dataset:
    """The lines of a real file, padded by ourselves."""
    return build_dataset(tiny_settings("--dataset_name", LINES, "--packing", "false"))


class NoMemory:
    """Stands in for a memory meter where memory is not the question."""

    done = True

    def peak_bytes(self) -> int:
        return 0

    def window(self) -> nullcontext[None]:
        return nullcontext()


@dataclass
class Trained:
    """What a tiny run left behind."""

    steps: list[Step]
    model: nn.Module
    weights: dict[str, torch.Tensor]
    accelerator: Accelerator
    proof: Evidence
    evidence: dict[str, Any]
    compiled: Any
    optimizer: torch.optim.Optimizer
    prepared: nn.Module

    @property
    def losses(self) -> list[float]:
        return [step.loss for step in self.steps]


def train_tiny(
    settings: Settings,
    dataset: Dataset | None = None,
    sgd: bool = False,
    accelerator_hook: Any = None,
    model_hook: Any = None,
    claims: dict[str, Any] | None = None,
    resume: Trained | None = None,
) -> Trained:
    """Trains as recipes/ablate.py does, with AdamW or plain SGD with momentum.

    Where the evidence fails, the run goes on; `trained.proof.verify` raises it again. `claims` are settings that the
    evidence alone is told; `resume` is a run to go on from.
    """
    # Ranks keep the process group that they have.
    AcceleratorState._reset_state(reset_partial_state=not torch.distributed.is_initialized())
    GradientState._reset_state()
    accelerator = build_accelerator(settings)
    if accelerator_hook:
        accelerator_hook(accelerator)
    set_seed(settings.seed)
    dataloader = build_dataloader(dataset or build_dataset(settings), settings)
    model = build_model(settings)
    model, compiled = apply_techniques(model, settings, accelerator.device)
    if model_hook:
        model_hook(model)
    optimizer = build_optimizer(model, settings)
    if sgd:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = build_scheduler(optimizer, settings)
    if resume:
        model.load_state_dict(resume.weights)
        optimizer.load_state_dict(resume.optimizer.state_dict())
    evidence = Evidence(model, optimizer, accelerator, dataclasses.replace(settings, **(claims or {})), compiled)
    prepared, prepared_optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    meter = StepMeter(accelerator.device, NoMemory(), settings.untimed_steps)
    if compiled:
        meter.compilations = lambda: compiled.compilations
    steps = []
    for step in train(
        accelerator,
        prepared,
        prepared_optimizer,
        scheduler,
        dataloader,
        meter,
        max_steps=settings.max_steps,
        max_grad_norm=settings.max_grad_norm,
        first_step=1 + (resume.steps[-1].number if resume else 0),
    ):
        steps.append(step)
        with suppress(InactiveTechnique):
            evidence.verify(step)
    weights = {name: local(value.detach()).cpu().clone() for name, value in model.state_dict().items()}
    return Trained(steps, model, weights, accelerator, evidence, evidence.found, compiled, optimizer, prepared)


def packages(modules: Iterable[str]) -> set[str]:
    """The installed packages that such modules are of, beside this one: what an answer at once has to wait for."""
    files = (file for found in distributions() for file in found.files or ())
    installed = {file.parts[0].removesuffix(".py") for file in files}
    return {module.partition(".")[0] for module in modules} & (installed - {"rungwise"})


def wandb_records(folder: Path, *options: str) -> str:
    """What W&B's own reader prints of a run's folder: a line of JSON a record, or one object with --summary."""
    reader = [str(Path(sys.executable).parent / "wandb"), "leet", "inspect", "--json", *options, str(folder)]
    return subprocess.run(reader, capture_output=True, text=True, check=True, timeout=HANGS).stdout


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The largest absolute difference of any weight."""
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
