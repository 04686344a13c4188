"""The settings of one run, as a dataclass. Each field with a group is a flag of the same name."""

import dataclasses
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEDULERS = (
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "inverse_sqrt",
)
# Of the parameters: fp32 master weights, or all of training in bf16.
DTYPES = ("float32", "bfloat16")
# As Transformers names them.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor", "sgd")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
CHECKPOINTING_KWARGS = {"use_reentrant": bool, "every_n_layers": int, "offload": bool}


def _flag(
    default: Any, group: str, text: str, choices: Sequence[str] | None = None, least: float | None = None
) -> Any:
    return field(default=default, metadata={"group": group, "help": text, "choices": choices, "least": least})


def _derived(default: Any, text: str) -> Any:
    return field(default=default, metadata={"group": None, "help": text})


# The dtype, as PyTorch names it, that products are computed in under each precision.
COMPUTE_DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}


def compute_precision(mixed_precision: str, dtype: str) -> str:
    """What matrix products are computed in: autocast's precision, or without it the parameters' own."""
    return "bf16" if dtype == "bfloat16" else mixed_precision


@dataclass(frozen=True)
class Settings:
    """Every resolved setting of one training run. A field with a group is a flag of the same name."""

    config: str = _flag("", "config", "Accelerate YAML file (required)")

    model_name_or_path: str | None = _flag(None, "model", "pretrained weights: Hub id or folder")
    config_name: str | None = _flag(None, "model", "random weights from this config: Hub id or folder")
    model_type: str | None = _flag(None, "model", "random weights from the default config of this family, as in llama")
    config_overrides: str | None = _flag(None, "model", "changes to the config, as in n_layer=2,n_embd=64")
    attn_implementation: str | None = _flag(None, "model", "eager, sdpa, flash_attention_2, ...")
    dtype: str = _flag(
        "float32", "model", "dtype of the parameters; bfloat16 is pure bf16, optimizer included", choices=DTYPES
    )

    dataset_name: str | None = _flag(
        None, "data", "python-stdlib, synthetic, or a Hub or local dataset [python-stdlib]"
    )
    dataset_config_name: str | None = _flag(None, "data", "configuration of the dataset")
    dataset_split: str | None = _flag(None, "data", "split of the dataset [train]")
    text_column: str | None = _flag(None, "data", "column that holds the text [text, else the first text column]")
    train_file: str | None = _flag(None, "data", "a file to train on: text, JSON lines, CSV or parquet, by its suffix")
    tokenizer_name: str | None = _flag(None, "data", "tokenizer: Hub id or folder [the model's, else bytes as tokens]")
    block_size: int = _flag(256, "batch", "tokens a row", least=2)
    packing: bool = _flag(
        True, "data", "join texts and cut them into full rows; false: each text is a row, cut off or padded"
    )
    streaming: bool = _flag(False, "data", "read rows as they are needed: for data that does not fit")

    eval_steps: int | None = _flag(
        None, "evaluation", "optimizer steps from one evaluation to the next [no evaluation]", least=1
    )
    validation_file: str | None = _flag(None, "evaluation", "a file to evaluate on, as --train_file")
    validation_split_percentage: int = _flag(
        5, "evaluation", "without a validation file: % of the rows that are held out from the end", least=1
    )
    max_eval_samples: int = _flag(64, "evaluation", "rows an evaluation has at most", least=1)

    global_batch_size: int = _flag(
        16, "batch", "rows an optimizer step, over all processes and micro-batches", least=1
    )
    gradient_accumulation_steps: int = _flag(
        1, "batch", "micro-batches an optimizer step [the config's, else 1]", least=1
    )

    sync_each_batch: bool = _flag(
        False,
        "batch",
        "several processes: exchange gradients at each micro-batch, not once a step: memory for traffic",
    )

    gradient_checkpointing: bool = _flag(False, "techniques", "recompute each block in backward, keep its input alone")
    gradient_checkpointing_kwargs: dict[str, Any] | None = _flag(
        None, "techniques", "JSON with use_reentrant, every_n_layers, offload"
    )
    torch_compile: bool = _flag(False, "techniques", "compile the model [the config's dynamo_config]")
    torch_compile_mode: str = _flag("default", "techniques", "how much the compiler tries", choices=COMPILE_MODES)
    torch_compile_scope: str = _flag(
        "model", "techniques", "the whole model, or its repeated block once", choices=("model", "regional")
    )
    torch_compile_cache_dir: str | None = _flag(
        None, "techniques", "keep the compiler's cache here: a warm start the next time [a fresh cache each run]"
    )
    activation_memory_budget: float = _flag(
        1.0, "techniques", "activations that compiled code keeps: 1 as the compiler likes, 0 recomputes all", least=0
    )
    eager_run: str | None = _flag(
        None, "techniques", "folder of a finished eager run: says after how many steps compiling has paid"
    )
    fsdp_reshard_after_forward: bool = _flag(
        True, "techniques", "FSDP2: free gathered parameters after forward and gather again in backward [the config's]"
    )
    use_peft: bool = _flag(False, "techniques", "train LoRA adapters alone, by the peft package")
    lora_r: int = _flag(16, "techniques", "rank of the adapters", least=1)
    lora_alpha: int = _flag(32, "techniques", "their scale, divided by the rank", least=1)
    lora_target_modules: str | None = _flag(
        None, "techniques", "layers that get adapters, as in q_proj,v_proj [peft's for the family, else all linear]"
    )
    optim: str = _flag("adamw_torch", "techniques", "optimizer", choices=OPTIMIZERS)

    max_steps: int = _flag(20, "training", "optimizer steps", least=1)
    untimed_steps: int = _flag(3, "training", "first optimizer steps, measured for memory and not timed", least=2)
    learning_rate: float = _flag(1e-3, "training", "peak learning rate", least=0)
    lr_scheduler_type: str = _flag("constant", "training", "learning rate schedule", choices=SCHEDULERS)
    warmup_steps: int = _flag(0, "training", "optimizer steps of linear warm-up", least=0)
    weight_decay: float = _flag(0.0, "training", "decay of the matrices, not of biases and norms", least=0)
    max_grad_norm: float = _flag(1.0, "training", "gradient norm to clip at; 0 clips nothing", least=0)
    seed: int = _flag(0, "training", "of weights, row order and synthetic data", least=0)

    checkpointing_steps: int | None = _flag(None, "output", "save a checkpoint every so many steps [never]", least=1)
    save_total_limit: int | None = _flag(None, "output", "checkpoints that are kept, the newest [all]", least=1)
    resume_from_checkpoint: str | None = _flag(
        None, "output", "go on from this checkpoint-N folder; latest: from the last one of <output_dir>, if any"
    )
    report_to: str = _flag("wandb", "output", "tracker", choices=("wandb", "trackio", "tensorboard", "none"))
    save_model: bool = _flag(False, "output", "save a Transformers folder in <output_dir>/model")
    project: str = _flag("rungwise", "output", "project of the tracker")
    run_name: str | None = _flag(None, "output", "name of the run [made from the settings]")
    group: str | None = _flag(None, "output", "group of runs in the tracker")
    output_dir: str | None = _flag(None, "output", "folder of the run [runs/<run_name>]")

    mixed_precision: str = _derived("no", "no, bf16 or fp16; the config decides")
    fsdp: bool = _derived(False, "shard parameters, gradients and optimizer state by FSDP2; the config decides")
    fsdp_state_dict_type: str = _derived(
        "FULL_STATE_DICT", "FSDP2: a checkpoint is written whole by one process, or SHARDED by all; the config decides"
    )
    use_cpu: bool = _derived(False, "train on the CPU even where there is an accelerator; the config decides")
    num_processes: int = _derived(1, "processes, as launched")
    micro_batch_size: int = _derived(16, "rows a process runs forward and backward at a time")
    origins: dict[str, str] = field(default_factory=dict, metadata={"group": None}, compare=False)

    @property
    def precision(self) -> str:
        """What matrix products are computed in: no (fp32), bf16 or fp16."""
        return compute_precision(self.mixed_precision, self.dtype)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, with the precision that follows from them, without where they came from."""
        values = dataclasses.asdict(self)
        del values["origins"]
        return values | {"precision": self.precision}


# The origin of what a script decides itself: none of these settings is asked for.
OWN = "the script's own"
FIELDS = {f.name: f for f in dataclasses.fields(Settings) if f.name != "origins"}
HINTS = typing.get_type_hints(Settings)
