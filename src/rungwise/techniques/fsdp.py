"""FSDP2 by Accelerate: what it is told, the CPU, where Accelerate does not offer it, and what keeps weights alike."""

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.distributed.tensor import DTensor, Shard

from ..settings.choices import COMPUTE_DTYPES
from ..settings.fields import Settings
from .seen import Seen

if TYPE_CHECKING:
    from transformers import Trainer

# How an accelerator is kept from a process.
HIDDEN_BY = {
    "cuda": "hide it by CUDA_VISIBLE_DEVICES= before the command",
    "xpu": "install PyTorch's build for CPUs alone, or use DDP, as in accelerate_configs/ddp_cpu.yaml",
}


def plugin(settings: Settings) -> FullyShardedDataParallelPlugin | None:
    """What Accelerate is told about sharding, if the config asks for it. Each block is gathered by itself."""
    if not settings.fsdp:
        return None
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=settings.fsdp_reshard_after_forward,
        mixed_precision_policy=_precision(settings),
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=settings.fsdp_transformer_layer_cls_to_wrap,
        state_dict_type=settings.fsdp_state_dict_type,
        cpu_ram_efficient_loading=settings.fsdp_cpu_ram_efficient_loading,
        activation_checkpointing=False,  # Transformers' own is asked for in its place
    )


def shard_on_cpu(accelerator: Accelerator, sharding: FullyShardedDataParallelPlugin) -> None:
    """Has Accelerate take its FSDP2 path over gloo.

    On a CPU it takes an FSDP file for plain DDP without a word. But its FSDP2 is `torch.distributed.fsdp.fully_shard`,
    which knows CPUs; nothing else stands in the way than these entries of its state.
    """
    accelerator.state.fsdp_plugin = sharding
    # The state of the processes is copied into Accelerate's whenever that is asked for again.
    for state in (PartialState(), accelerator.state):
        state.distributed_type = DistributedType.FSDP
    # Left to itself, fully_shard makes its mesh of the accelerator that PyTorch was built for, be there one or not.
    # Accelerate slices that mesh in a way that PyTorch warns about.
    warnings.filterwarnings("ignore", message="Slicing a flattened dim from root mesh", category=UserWarning)
    accelerator.state.parallelism_config = ParallelismConfig(dp_shard_size=accelerator.num_processes)
    accelerator.state.device_mesh = accelerator.parallelism_config.get_device_mesh("cpu")


def validate(settings: Settings, device_type: str) -> list[str]:
    """What FSDP2 cannot be had with: in these settings, or on this machine for a run on a device of this type."""
    if not settings.fsdp:
        return []
    found = []
    if settings.engine == "trainer" and device_type == "cpu":
        found.append(
            "FSDP by transformers.Trainer on a CPU: it trains whole replicas there, by DDP, without a word; use "
            "accelerate_configs/ddp_cpu.yaml, or recipes/ablate.py"
        )
    if settings.use_peft:
        found.append("--use_peft with FSDP has no recipe here; use DDP, as in accelerate_configs/ddp.yaml")
    if settings.torch_compile and settings.torch_compile_scope == "model":
        found.append(
            "--torch_compile of the whole model under FSDP2: its graph breaks at every block, which FSDP2 gathers "
            "from outside; use --torch_compile_scope regional"
        )
    if settings.optim == "adafactor":
        found.append("--optim adafactor under FSDP2: it cannot be given sharded parameters; use adamw_torch or sgd")
    present = torch.accelerator.current_accelerator(check_available=True)
    if device_type == "cpu" and present is not None:
        # fully_shard makes its mesh of the machine's accelerators, whatever device the model is on.
        remedy = HIDDEN_BY.get(present.type, "it cannot be hidden; use DDP, as in accelerate_configs/ddp_cpu.yaml")
        found.append(f"FSDP2 on the CPU: it would take this machine's accelerator ({present.type}) instead; {remedy}")
    return found


def _precision(settings: Settings) -> MixedPrecisionPolicy:
    """FSDP2 gathers parameters in half precision, in place of autocast, and sums gradients in fp32.

    Autocast keeps the residual stream between the blocks in fp32. Here it is in half precision, as a block's norms and
    sums are, and is handed on as it is: cast to fp32 behind each block, it would take twice the memory and hold no
    more, since the next block casts it back. Autocast inside FSDP2 would keep it in fp32, and with it, from forward to
    backward, a cast copy of each gathered parameter, which is what sharding is to save. The loss is fp32, since it is
    computed from logits that `CausalLMLoss` casts.
    """
    if settings.mixed_precision == "no":
        return MixedPrecisionPolicy()
    dtype = getattr(torch, COMPUTE_DTYPES[settings.mixed_precision])
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer and its launcher were asked for, as settings."""
    launched = os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true"
    return {"fsdp": bool(trainer.args.fsdp) or launched, "num_processes": int(os.environ.get("WORLD_SIZE", "1"))}


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether the processes that were asked for took part."""
    asked, processes = seen.settings.num_processes, seen.accelerator.num_processes
    found = {"processes": processes, "distributed_type": seen.accelerator.distributed_type.value}
    return found, [f"{asked} processes were asked for, {processes} took part"] if processes != asked else []


def update_evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """What keeps the processes' weights alike after a step on rows of their own: FSDP2, DDP or none."""
    version = getattr(getattr(seen.accelerator.state, "fsdp_plugin", None), "fsdp_version", 2)
    wanted = f"FSDP{version}" if seen.settings.fsdp else "DDP" if seen.accelerator.num_processes > 1 else "none"
    engine = _engine(seen)
    missing = [f"{wanted} was asked for between processes, {engine} is there"] if engine != wanted else []
    return {"engine": engine}, missing


def _engine(seen: Seen) -> str:
    parameters = list(seen.model.parameters())
    sharded = [isinstance(p, DTensor) and any(isinstance(x, Shard) for x in p.placements) for p in parameters]
    if all(sharded):
        return "FSDP2"
    if any(sharded):
        return f"FSDP2 for {sum(sharded)} of {len(sharded)} parameters"
    if seen.accelerator.num_processes == 1:
        return "none"
    replicas = seen.accelerator.gather(seen.weights.unsqueeze(0))
    return "DDP" if bool((replicas == replicas[0]).all()) else "none"
