"""FSDP2 by Accelerate: what it is told, and the CPU, where Accelerate does not offer it."""

import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType
from torch.distributed.fsdp import MixedPrecisionPolicy

from .settings import COMPUTE_DTYPES, Settings


def plugin(settings: Settings) -> FullyShardedDataParallelPlugin | None:
    """What Accelerate is told about sharding, if the config asks for it. Each repeated block is gathered by itself."""
    if not settings.fsdp:
        return None
    return FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=settings.fsdp_reshard_after_forward,
        mixed_precision_policy=_precision(settings),
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="FULL_STATE_DICT",
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


def problems(settings: Settings) -> list[str]:
    """Sharding that this machine cannot do."""
    if settings.fsdp and settings.use_cpu and torch.accelerator.current_accelerator(check_available=True) is not None:
        # fully_shard makes its mesh of the machine's accelerators, whatever device the model is on.
        return [
            "FSDP2 on the CPU of a machine with GPUs needs them hidden; set CUDA_VISIBLE_DEVICES= before the command"
        ]
    return []


def _precision(settings: Settings) -> MixedPrecisionPolicy:
    """FSDP2 casts parameters as it gathers them, in place of autocast.

    Gradients are summed in fp32 and the loss is fp32, which Accelerate's own policy would also have in half precision.
    """
    if settings.mixed_precision == "no":
        return MixedPrecisionPolicy()
    dtype = getattr(torch, COMPUTE_DTYPES[settings.mixed_precision])
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, output_dtype=torch.float32)
