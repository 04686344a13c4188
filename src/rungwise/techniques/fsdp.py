"""FSDP2 by Accelerate: what it is told, and the CPU, where Accelerate does not offer it."""

import warnings

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.parallelism_config import ParallelismConfig
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy

from ..settings.fields import COMPUTE_DTYPES, Settings

# How an accelerator is kept from a process.
HIDDEN_BY = {
    "cuda": "hide it by CUDA_VISIBLE_DEVICES= before the command",
    "xpu": "install PyTorch's build for CPUs alone, or use DDP, as in accelerate_configs/ddp_cpu.yaml",
}


def plugin(settings: Settings) -> FullyShardedDataParallelPlugin | None:
    """What Accelerate is told about sharding, if the config asks for it. Each repeated block is gathered by itself."""
    if not settings.fsdp:
        return None
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=settings.fsdp_reshard_after_forward,
        mixed_precision_policy=_precision(settings),
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type=settings.fsdp_state_dict_type,
        cpu_ram_efficient_loading=False,
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


def problems(settings: Settings, device_type: str) -> list[str]:
    """What FSDP2 cannot be had with: in these settings, or on this machine for a run on a device of this type."""
    if not settings.fsdp:
        if settings.origins.get("fsdp_reshard_after_forward") == "flag":
            return ["--fsdp_reshard_after_forward has no effect without FSDP, which the config asks for; drop it"]
        return []
    found = []
    if settings.torch_compile and settings.torch_compile_scope == "model":
        found.append(
            "--torch_compile of the whole model under FSDP2: its graph breaks at every block, which FSDP2 gathers "
            "from outside; use --torch_compile_scope regional"
        )
    present = torch.accelerator.current_accelerator(check_available=True)
    if device_type == "cpu" and present is not None:
        # fully_shard makes its mesh of the machine's accelerators, whatever device the model is on.
        mend = HIDDEN_BY.get(present.type, "it cannot be hidden; use DDP, as in accelerate_configs/ddp_cpu.yaml")
        found.append(f"FSDP2 on the CPU: it would take this machine's accelerator ({present.type}) instead; {mend}")
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
