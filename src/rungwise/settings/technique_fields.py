"""The settings of the techniques: which are asked for, and how each is to act."""

from dataclasses import dataclass
from typing import Any

from . import naming, needs
from .choices import COMPILE_MODES, OPTIMIZERS
from .input_fields import InputFields
from .metadata import Way, derived, flag
from .needs import with_flag


@dataclass(frozen=True)
class TechniqueFields(InputFields):
    """What is done to save memory or time, beside precision and accumulation, which the config decides."""

    gradient_checkpointing: bool = flag(
        False,
        "techniques",
        "recompute each block in backward, keep its input alone",
        label=naming.when("gradient_checkpointing", "ckpt"),
        saves_memory="add --gradient_checkpointing",
        ways=(
            Way({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"every_n_layers": 4}}),
            Way({"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"every_n_layers": 2}}),
            Way({"gradient_checkpointing": True}),
        ),
    )
    gradient_checkpointing_kwargs: dict[str, Any] | None = flag(
        None,
        "techniques",
        "JSON: use_reentrant, every_n_layers, offload",
        needs=[with_flag("gradient_checkpointing")],
        label=naming.every_n_layers,
    )
    fused_activation: bool = flag(
        False,
        "techniques",
        "activations that are chains of operators, as GPT-2's gelu_new, by one kernel",
        label=naming.when("fused_activation", "fused"),
        saves_memory="add --fused_activation",
        ways=(Way({"fused_activation": True}),),
    )
    linear_cross_entropy: bool = flag(
        False,
        "techniques",
        "the loss from hidden states, chunk by chunk, without whole logits; PyTorch 2.13",
        label=naming.when("linear_cross_entropy", "lce"),
        saves_memory="add --linear_cross_entropy",
        ways=(Way({"linear_cross_entropy": True}),),
    )
    use_liger_kernel: bool = flag(
        False,
        "techniques",
        "on a GPU: Liger's kernels for norms, rotary positions and gated MLPs",
        label=naming.when("use_liger_kernel", "liger"),
    )
    tf32: bool = flag(
        False,
        "techniques",
        "on NVIDIA GPUs: fp32 products in TF32, faster and with 10 bits of mantissa for 23",
        needs=[needs.FULL_PRECISION],
        label=naming.when("tf32", "tf32"),
    )
    torch_compile: bool = flag(
        False, "techniques", "compile the model [the config's dynamo_config]", label=naming.compiling
    )
    torch_compile_mode: str = flag(
        "default",
        "techniques",
        "how much the compiler tries",
        choices=COMPILE_MODES,
        needs=[needs.COMPILE],
        label=naming.mode,
    )
    torch_compile_scope: str = flag(
        "model",
        "techniques",
        "the whole model, or its repeated block once",
        choices=("model", "regional"),
        needs=[needs.COMPILE, needs.OUR_LOOP],
        off="model",
    )
    torch_compile_cache_dir: str | None = flag(
        None,
        "techniques",
        "keep the compiler's cache here: a warm start the next time [a fresh cache each run]",
        needs=[needs.COMPILE, needs.OUR_LOOP],
        identity=False,
    )
    activation_memory_budget: float = flag(
        1.0,
        "techniques",
        "activations that compiled code keeps: 1 as the compiler likes, 0 recomputes all",
        least=0,
        most=1,
        needs=[needs.COMPILE, needs.OUR_LOOP],
        off=1.0,
        label=naming.budget,
    )
    eager_run: str | None = flag(
        None, "techniques", "folder of an eager run: when has compiling paid?", needs=[needs.COMPILE], identity=False
    )
    fsdp: bool = derived(
        False,
        "shard parameters, gradients and optimizer state by FSDP2; the config decides",
        label=naming.when("fsdp", "fsdp2"),
    )
    fsdp_state_dict_type: str = derived(
        "FULL_STATE_DICT", "FSDP2: a checkpoint is written whole by one process, or SHARDED by all; the config decides"
    )
    fsdp_transformer_layer_cls_to_wrap: str | None = derived(
        None, "FSDP2: classes of the blocks that are gathered by themselves [the model's own]; the config decides"
    )
    fsdp_cpu_ram_efficient_loading: bool = derived(False, "FSDP2: one process loads weights for all; none does here")
    fsdp_reshard_after_forward: bool = flag(
        True,
        "techniques",
        "FSDP2: free gathered parameters after forward and gather again in backward [the config's]",
        needs=[needs.in_config("fsdp", "FSDP", "accelerate_configs/fsdp2.yaml"), needs.OUR_LOOP],
    )
    use_peft: bool = flag(
        False,
        "techniques",
        "train LoRA adapters alone, by peft",
        label=naming.when("use_peft", "lora{lora_r}"),
        ways=(Way({"use_peft": True}, changes="adapters alone are trained", tried=False),),
    )
    lora_r: int = flag(16, "techniques", "rank of the adapters", least=1, needs=[needs.LORA])
    lora_alpha: int = flag(32, "techniques", "their scale, divided by the rank", least=1, needs=[needs.LORA])
    lora_target_modules: str | None = flag(
        None,
        "techniques",
        "layers that get adapters, as in q_proj,v_proj [peft's for the family, else all linear]",
        many=True,
        needs=[needs.LORA],
    )
    optim: str = flag(
        "adamw_torch",
        "techniques",
        "optimizer",
        choices=OPTIMIZERS,
        label=naming.unless("optim", "adamw_torch"),
        ways=(Way({"optim": "adamw_torch_8bit"}, changes="AdamW's moments are rounded to 8 bits"),),
    )
