"""The keys of an Accelerate file as data: what values they take, and what becomes of them here.

They are those of Accelerate's `ClusterConfig`, whose import would import PyTorch, too; a test holds the two together.
A key that only a newer Accelerate has is looked up there, once it is met.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

ACCUMULATION = "gradient_accumulation_steps"
DISTRIBUTED_TYPES = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "FSDP")
WORDS = {list: "a list", dict: "a mapping", int: "a whole number", bool: "true or false", str: "text"}
_NOT_HERE = "has no recipe here and would have no effect; remove it"


@dataclass(frozen=True)
class Key:
    """A key's type; whether it is read here or is the launcher's business; if neither, what values change nothing.

    An empty text, list or mapping, and what is unset, always changes nothing.
    """

    kind: type
    read: bool = False
    launcher: bool = False
    off: tuple[Any, ...] = ()
    remedy: str = _NOT_HERE


KEYS = {
    "compute_environment": Key(str, read=True),
    "distributed_type": Key(str, read=True),
    "mixed_precision": Key(str, read=True),
    "use_cpu": Key(bool, read=True),
    "num_processes": Key(int, read=True),
    "deepspeed_config": Key(dict, read=True),
    "fsdp_config": Key(dict, read=True),
    "dynamo_config": Key(dict, read=True),
    # Ours, beside Accelerate's, which knows it inside of `deepspeed_config` alone.
    ACCUMULATION: Key(int, read=True),
    # How processes are started and find one another.
    "debug": Key(bool, launcher=True),
    "machine_rank": Key(int, launcher=True),
    "num_machines": Key(int, launcher=True),
    "gpu_ids": Key(str, launcher=True),
    "main_process_ip": Key(str, launcher=True),
    "main_process_port": Key(int, launcher=True),
    "rdzv_backend": Key(str, launcher=True),
    "same_network": Key(bool, launcher=True),
    "main_training_function": Key(str, launcher=True),
    "enable_cpu_affinity": Key(bool, launcher=True),
    "mpirun_config": Key(dict, launcher=True),
    # What would change training. An option that is accepted and then ignored would be a false label.
    "fp8_config": Key(dict),
    "parallelism_config": Key(dict),
    "megatron_lm_config": Key(dict),
    # Accelerate says that it is true or false, and writes text.
    "downcast_bf16": Key(object, off=(False, "no")),
    "tpu_name": Key(str),
    "tpu_zone": Key(str),
    "tpu_use_cluster": Key(bool, off=(False,)),
    "tpu_use_sudo": Key(bool, off=(False,)),
    "tpu_vm": Key(list),
    "tpu_env": Key(list),
    "command_file": Key(str),
    "commands": Key(list),
    # Older files have these.
    "fp16": Key(bool, off=(False,), remedy="has no recipe here; write mixed_precision: fp16 in its place"),
    "dynamo_backend": Key(str, off=("NO",), remedy="has no recipe here; write dynamo_config in its place"),
}

# What FSDP2 takes from `fsdp_config`. Other values than these would change what a run is, or do nothing. One of
# several is handed on as the setting `fsdp_<key>`.
FSDP_VALUES: dict[str, tuple[Any, ...]] = {
    "version": (2,),
    "reshard_after_forward": (True, False),
    "auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",),
    "state_dict_type": ("FULL_STATE_DICT", "SHARDED_STATE_DICT"),
    "cpu_ram_efficient_loading": (False, True),
    "offload_params": (False,),
    "activation_checkpointing": (False, True),
    "activation_checkpointing_offload": (False,),
    # FSDP1 had these, FSDP2 does so always, or never.
    "use_orig_params": (True,),
    "sync_module_states": (True,),
    "forward_prefetch": (False,),
    "backward_prefetch": ("NO_PREFETCH",),
}
FSDP_CLASSES = "transformer_layer_cls_to_wrap"
FSDP_REMEDIES = {
    "version": "FSDP1 has no recipe here",
    "activation_checkpointing_offload": "use --gradient_checkpointing_kwargs",
    "backward_prefetch": "FSDP2 decides it; remove it",
    "sync_module_states": "FSDP2 decides it; remove it",
}
# Asked for by a file, and another here: the value, and why.
REPLACED = {"fsdp_cpu_ram_efficient_loading": (False, "here every process loads the weights by itself")}

PRECISIONS = ("no", "bf16", "fp16")
DYNAMO_KEYS = ("backend", "mode", "use_regional_compilation", "use_fullgraph", "use_dynamic")


def installed_key(name: str) -> Key | None:
    """The key as the installed Accelerate has it, if it does: nothing is known of it but its default."""
    from accelerate.commands.config.config_args import ClusterConfig

    fields = {field.name: field for field in dataclasses.fields(ClusterConfig)}
    return Key(object, off=(fields[name].default, False)) if name in fields else None
