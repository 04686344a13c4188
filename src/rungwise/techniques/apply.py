"""Where each technique plugs in: precision, accumulation, sharding, checkpointing, compile, optimizer.

No other place knows.
"""

import importlib.util
import inspect
import logging
import warnings

import torch
import transformers
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin, TorchDynamoPlugin
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from .. import float32, threads
from ..environment import device_name, measured_accelerator, native_precision
from ..settings.fields import Settings
from . import cpu_matmul
from . import fsdp as sharding
from . import grouped_mm_autocast as autocast
from .compile_record import CompileRecord


class UnavailableTechnique(RuntimeError):
    """A technique that was asked for cannot be had with this model, device or release."""


def build_accelerator(settings: Settings) -> Accelerator:
    """The Accelerator of this run, with autocast and, for fp16, a gradient scaler on every device.

    On the CPU Accelerate accepts fp16 and then trains in fp32 without a scaler; PyTorch has both since 2.3, so they
    are switched on here.
    """
    use_cpu = device_type(settings) == "cpu"
    if use_cpu:
        threads.share_cores()
        # Models with kernels of their own, as Mamba 2, advise to install them; none of them runs on a CPU.
        logging.getLogger("transformers.integrations.hub_kernels").addFilter(_not_about_kernels)
        if settings.precision not in ("no", *native_precision(torch.device("cpu"))):
            cpu_matmul.install()
    autocast.install()
    float32.exact_convolutions()
    plugin = sharding.plugin(settings)
    accelerator = Accelerator(
        cpu=use_cpu,
        fsdp_plugin=None if use_cpu else plugin,
        mixed_precision=settings.mixed_precision,
        gradient_accumulation_plugin=GradientAccumulationPlugin(
            num_steps=settings.gradient_accumulation_steps,
            # The loop fetches a window's batches ahead, so the loader ends before the window's last micro-batch.
            sync_with_dataloader=False,
            sync_each_batch=settings.sync_each_batch,
        ),
        # Each process reads a stream itself and keeps its share. Read by one and sent to all, rows would be part of
        # the traffic that is measured, and bad data of one rank a riddle to the others.
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
        # Compiling is `apply_compile`'s; whatever the launcher was told would compile a second time.
        dynamo_plugin=TorchDynamoPlugin(backend="no"),
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if use_cpu and plugin is not None:
        sharding.shard_on_cpu(accelerator, plugin)
    if settings.mixed_precision == "fp16" and accelerator.scaler is None:
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler(accelerator.device.type)
    return accelerator


def problems(settings: Settings) -> list[str]:
    """A technique whose package is not installed."""
    if settings.use_peft and importlib.util.find_spec("peft") is None:
        return ["--use_peft: not installed; pip install 'rungwise[peft]'"]
    return []


def device_type(settings: Settings) -> str:
    """The kind of device that a run with these settings uses here: cpu, cuda or xpu."""
    device = measured_accelerator()
    return "cpu" if settings.use_cpu or device is None else device.type


def _not_about_kernels(record: logging.LogRecord) -> bool:
    return "is falling back to its reference PyTorch implementation" not in record.getMessage()


def apply_checkpointing(model: PreTrainedModel, settings: Settings, device: torch.device) -> None:
    """Has each block keep its input alone and run forward again in the backward pass.

    Raises:
        UnavailableTechnique: the model cannot, the release does not know an option, or there is nothing to offload to.
    """
    if not settings.gradient_checkpointing:
        return
    options = {"use_reentrant": False, **(settings.gradient_checkpointing_kwargs or {})}
    # What is Transformers' own stands beside the keyword arguments of torch.utils.checkpoint, not among them.
    own = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
    # Transformers renamed the method; older 5.x releases only have the first name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    if not model.supports_gradient_checkpointing:
        raise UnavailableTechnique(
            f"{type(model).__name__} does not support gradient checkpointing; leave --gradient_checkpointing out"
        )
    if own.get("offload") and device.type == "cpu":
        raise UnavailableTechnique("offload moves activations from an accelerator to the host; this run is on the CPU")
    unknown = [name for name in own if name not in inspect.signature(enable).parameters]
    if unknown:
        raise UnavailableTechnique(
            f"this Transformers release does not know {', '.join(unknown)} in --gradient_checkpointing_kwargs; "
            "install a newer one, or leave it out"
        )
    enable(options, **own)
    if not checkpointed_blocks(model):
        raise UnavailableTechnique(
            f"{type(model).__name__} has no block that Transformers can checkpoint; leave --gradient_checkpointing out"
        )


def apply_lora(model: PreTrainedModel, settings: Settings) -> nn.Module:
    """Freezes the model and gives its layers LoRA adapters (Hu et al. 2021) to train, by the peft package.

    Raises:
        UnavailableTechnique: peft finds no layer to adapt.
    """
    if not settings.use_peft:
        return model
    from peft import LoraConfig, get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    targets = settings.lora_target_modules.split(",") if settings.lora_target_modules else None
    if targets is None and model.config.model_type not in KNOWN:
        targets = "all-linear"
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules=targets,
        # GPT-2's linear layers are kept transposed.
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    if (settings.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        # Reentrant checkpointing only sees a gradient that its input asks for, and embeddings are frozen.
        model.enable_input_require_grads()
    try:
        with warnings.catch_warnings():
            # peft asks Transformers for something by the name that it had before.
            warnings.simplefilter("ignore", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        raise UnavailableTechnique(
            f"LoRA: {str(error).splitlines()[0]}; name layers in --lora_target_modules"
        ) from error


def checkpointed_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that recompute themselves in the backward pass."""
    return [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer) and m.gradient_checkpointing]


def repeated_blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The model's identical layers, which regional compilation compiles once."""
    return [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]


def apply_compile(model: PreTrainedModel, settings: Settings) -> CompileRecord | None:
    """Compiles the model, or its repeated block once, in place.

    Raises:
        UnavailableTechnique: regional scope for a model that names no repeated block, or whose blocks are checkpointed
            around what would be compiled; bf16 on a GPU that the compiler leaves in eager mode.
    """
    if not settings.torch_compile:
        return None
    device = torch.device(device_type(settings))
    if device.type == "cuda" and settings.precision == "bf16" and "bf16" not in native_precision(device):
        raise UnavailableTechnique(
            f"the compiler leaves bf16 in eager mode on {device_name(device)}, which has no bf16 instructions; "
            "use an fp16 config, or leave --torch_compile out"
        )
    modules = [model] if settings.torch_compile_scope == "model" else repeated_blocks(model)
    if not modules:
        raise UnavailableTechnique(
            f"{type(model).__name__} names no repeated block, so nothing would be compiled; "
            "use --torch_compile_scope model"
        )
    if settings.torch_compile_scope == "regional" and any(map(_checkpoints_around_itself, modules)):
        raise UnavailableTechnique(
            f"this Transformers release ({transformers.__version__}) checkpoints {type(modules[0]).__name__} from "
            "outside what regional compiling compiles, so that no graph would recompute anything; "
            "use --torch_compile_scope model, or Transformers 5.23 or newer"
        )
    record = CompileRecord(settings)
    record.compile(modules)
    return record


def _checkpoints_around_itself(block: nn.Module) -> bool:
    """Whether a checkpointed block's checkpoint wraps its `__call__`, of which `compile()` takes the inside alone."""
    own_call = type(block).__call__ is not nn.Module.__call__
    return own_call and isinstance(block, GradientCheckpointingLayer) and block.gradient_checkpointing


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW that decays matrices and embeddings alone, as is usual for language models."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    fused = True if settings.optim == "adamw_torch_fused" else None
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=fused)
