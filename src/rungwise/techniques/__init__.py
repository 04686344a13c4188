"""The techniques, a file each, and the order in which they take hold of a run.

A technique's file holds `validate` (why it cannot be had, before anything is built), what applies it, and `evidence`
and `update_evidence` (what was seen of it in a step, and what is missing). No other chapter knows how one works.
"""

import logging
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration, TorchDynamoPlugin
from torch import nn
from transformers import PreTrainedModel

from .. import threads
from ..device import device_type
from ..settings.fields import Settings
from . import (
    fsdp,
    fused_activation,
    gradient_accumulation,
    gradient_checkpointing,
    liger_kernel,
    linear_cross_entropy,
    lora,
    mixed_precision,
    optimizer,
    product_kernels,
    torch_compile,
)
from .compile_record import CompileRecord
from .optimizer import build_optimizer, build_scheduler

if TYPE_CHECKING:
    from transformers import Trainer

__all__ = ["apply_techniques", "build_accelerator", "build_optimizer", "build_scheduler", "validate"]

VALIDATED = (mixed_precision, lora, liger_kernel, linear_cross_entropy, torch_compile, optimizer, fsdp)
# Whose evidence shows in the first step, in each step until all is shown, and in the first one that changes a weight.
FIRST_STEP = (
    mixed_precision,
    liger_kernel,
    fused_activation,
    linear_cross_entropy,
    gradient_checkpointing,
    torch_compile,
    gradient_accumulation,
    optimizer,
    fsdp,
)
EACH_STEP = (gradient_accumulation, optimizer)
CHANGED_WEIGHTS = (fsdp, mixed_precision, lora)
# Which multiply more than the model does.
ADDING_FLOPS = (gradient_checkpointing, linear_cross_entropy)
# What a Trainer does itself if its TrainingArguments say so. The others are done to the model that it is given.
BY_TRAINER = (
    mixed_precision,
    gradient_accumulation,
    gradient_checkpointing,
    torch_compile,
    optimizer,
    liger_kernel,
)
BEFORE_TRAINER = (lora, fused_activation, linear_cross_entropy)


def validate(settings: Settings) -> list[str]:
    """What of the techniques that were asked for cannot be had here, found before anything is built."""
    device = device_type(settings)
    return [error for technique in VALIDATED for error in technique.validate(settings, device)]


def build_accelerator(settings: Settings) -> Accelerator:
    """The Accelerator of this run, which is told of precision, accumulation and sharding before there is a model."""
    accelerator = plain_accelerator(settings)
    product_kernels.choose(accelerator, settings)
    return accelerator


def plain_accelerator(settings: Settings) -> Accelerator:
    """`build_accelerator`'s without a choice of kernels, which takes a second and holds for the whole process."""
    device = device_type(settings)
    if device == "cpu":
        threads.share_cores()
        # Models with kernels of their own, as Mamba 2, advise to install them; none of them runs on a CPU.
        logging.getLogger("transformers.integrations.hub_kernels").addFilter(_not_about_kernels)
    mixed_precision.install(settings)
    sharding = fsdp.plugin(settings)
    accelerator = Accelerator(
        cpu=device == "cpu",
        fsdp_plugin=None if device == "cpu" else sharding,
        mixed_precision=settings.mixed_precision,
        gradient_accumulation_plugin=gradient_accumulation.plugin(settings),
        # Each process reads a stream itself and keeps its share. Read by one and sent to all, rows would be part of
        # the traffic that is measured, and bad data of one rank a riddle to the others.
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
        # Compiling is `apply_techniques`'s; whatever the launcher was told would compile a second time.
        dynamo_plugin=TorchDynamoPlugin(backend="no"),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if device == "cpu" and sharding is not None:
        fsdp.shard_on_cpu(accelerator, sharding)
    mixed_precision.scale_gradients(accelerator, settings)
    return accelerator


def apply_techniques(
    model: PreTrainedModel, settings: Settings, device: torch.device
) -> tuple[nn.Module, CompileRecord | None]:
    """What the techniques make of a model, in an order that is not free.

    1. LoRA changes the layers and freezes the others, which all that follows has to know.
    2. Modules, activations and the loss are replaced before anything runs the layers again, or compiles them.
    3. Checkpointing by PyTorch's older way must ask frozen embeddings for a gradient.
    4. Compiling takes the forward pass as it is by now. DDP and FSDP2, which `prepare` adds, stay outside of it.

    Raises:
        UnavailableTechnique: one that was asked for cannot be had with this model, device or release.
    """
    model = lora.apply(model, settings)
    liger_kernel.apply(model, settings)
    fused_activation.apply(model, settings)
    linear_cross_entropy.apply(model, settings)
    gradient_checkpointing.apply(model, settings, device)
    return model, torch_compile.apply(model, settings, device)


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer, its launcher, or the script by its own hand asks of the techniques, as settings.

    Args:
        trainer: about to train.
        model: that it trains, not wrapped.
    """
    asked = {}
    for technique in (*BY_TRAINER, *BEFORE_TRAINER, fsdp):
        asked |= technique.asked_of(trainer, model)
    return asked


def arguments(settings: Settings) -> dict[str, Any]:
    """The TrainingArguments that have a Trainer do what these settings ask for, `apply_before_trainer` aside."""
    found = {}
    for technique in BY_TRAINER:
        found |= technique.arguments(settings)
    return found


def apply_before_trainer(model: PreTrainedModel, settings: Settings) -> nn.Module:
    """`apply_techniques` without what a Trainer does itself."""
    model = lora.apply(model, settings)
    fused_activation.apply(model, settings)
    linear_cross_entropy.apply(model, settings)
    return model


def _not_about_kernels(record: logging.LogRecord) -> bool:
    return "is falling back to its reference PyTorch implementation" not in record.getMessage()
