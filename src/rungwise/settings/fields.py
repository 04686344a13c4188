"""The settings of one run, as a dataclass. Each field with a group is a flag of the same name."""

import dataclasses
import typing
from dataclasses import dataclass, field
from typing import Any

from . import naming, needs
from .choices import COMPILE_MODES, COMPUTE_DTYPES, DTYPES, OPTIMIZERS, SCHEDULERS, compute_precision
from .metadata import derived, flag
from .needs import with_flag


@dataclass(frozen=True)
class Settings:
    """Every resolved setting of one training run. A field with a group is a flag of the same name."""

    config: str = flag("", "config", "Accelerate YAML file (required)", identity=False)

    model_name_or_path: str | None = flag(
        None, "model", "pretrained weights: Hub id or folder", label=naming.model("model_name_or_path")
    )
    config_name: str | None = flag(
        None, "model", "random weights from this config: Hub id or folder", label=naming.model("config_name")
    )
    model_type: str | None = flag(
        None,
        "model",
        "random weights from the default config of this family, as in llama",
        label=naming.model("model_type"),
    )
    config_overrides: str | None = flag(
        None, "model", "changes to the config, as in n_layer=2,n_embd=64", many=True, needs=[needs.RANDOM_WEIGHTS]
    )
    ignore_mismatched_weights: bool = flag(
        False, "model", "train though weights are missing, unexpected or misshapen", needs=[needs.WEIGHTS]
    )
    trust_remote_code: bool = flag(False, "model", "run the Python code that comes with a model or its tokenizer")
    attn_implementation: str | None = flag(None, "model", "eager, sdpa, flash_attention_2, ...")
    dtype: str = flag(
        "float32",
        "model",
        "dtype of the parameters; bfloat16 is pure bf16, optimizer included",
        choices=DTYPES,
        label=naming.precision,
    )

    dataset_name: str | None = flag(
        None, "data", "python-stdlib, synthetic, or a Hub or local dataset [python-stdlib]"
    )
    dataset_config_name: str | None = flag(None, "data", "configuration of the dataset", needs=[needs.DATA_SET])
    dataset_split: str | None = flag(None, "data", "split of the dataset [train]", needs=[needs.DATA_SET])
    text_column: str | None = flag(
        None, "data", "column that holds the text [text, else the only one of text]", needs=[needs.COLUMNS]
    )
    train_file: str | None = flag(None, "data", "a file to train on: text, JSON, CSV, parquet, by its suffix")
    tokenizer_name: str | None = flag(
        None, "data", "tokenizer: Hub id or folder [the model's, else bytes as tokens]", needs=[needs.TEXT]
    )
    block_size: int = flag(256, "batch", "tokens a row", least=2)
    packing: bool = flag(
        True,
        "data",
        "join texts, cut into full rows; false: each text is a row, cut off or padded",
        needs=[needs.TEXT],
    )
    append_eos: bool = flag(True, "data", "put the tokenizer's end of text behind each document", needs=[needs.TEXT])
    streaming: bool = flag(
        False, "data", "read rows as they are needed: for data that does not fit", needs=[needs.READING]
    )

    eval_steps: int | None = flag(
        None, "evaluation", "optimizer steps from one evaluation to the next [none]", least=1, needs=[needs.EVALUATED]
    )
    validation_file: str | None = flag(
        None, "evaluation", "a file to evaluate on, as --train_file", needs=[needs.EVALUATION]
    )
    validation_split_percentage: int = flag(
        5,
        "evaluation",
        "without a validation file: % of the rows that are held out from the end",
        least=1,
        most=99,
        needs=[needs.EVALUATION, needs.HELD_OUT, needs.LENGTH],
    )
    max_eval_samples: int = flag(64, "evaluation", "rows an evaluation has at most", least=1, needs=[needs.EVALUATION])

    global_batch_size: int = flag(16, "batch", "rows an optimizer step, over all processes and micro-batches", least=1)
    gradient_accumulation_steps: int = flag(
        1,
        "batch",
        "micro-batches an optimizer step [the config's, else 1]",
        least=1,
        label=naming.accumulation,
        saves_memory="raise --gradient_accumulation_steps",
    )

    sync_each_batch: bool = flag(
        False,
        "batch",
        "several processes: exchange gradients at each micro-batch, not once a step: memory for traffic",
        needs=[needs.EXCHANGES],
    )

    gradient_checkpointing: bool = flag(
        False,
        "techniques",
        "recompute each block in backward, keep its input alone",
        label=naming.when("gradient_checkpointing", "ckpt"),
        saves_memory="add --gradient_checkpointing",
    )
    gradient_checkpointing_kwargs: dict[str, Any] | None = flag(
        None, "techniques", "JSON: use_reentrant, every_n_layers, offload", needs=[with_flag("gradient_checkpointing")]
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
        needs=[needs.COMPILE],
    )
    torch_compile_cache_dir: str | None = flag(
        None,
        "techniques",
        "keep the compiler's cache here: a warm start the next time [a fresh cache each run]",
        needs=[needs.COMPILE],
        identity=False,
    )
    activation_memory_budget: float = flag(
        1.0,
        "techniques",
        "activations that compiled code keeps: 1 as the compiler likes, 0 recomputes all",
        least=0,
        most=1,
        needs=[needs.COMPILE],
        off=1.0,
        label=naming.budget,
    )
    eager_run: str | None = flag(
        None, "techniques", "folder of an eager run: when has compiling paid?", needs=[needs.COMPILE], identity=False
    )
    fsdp_reshard_after_forward: bool = flag(
        True,
        "techniques",
        "FSDP2: free gathered parameters after forward and gather again in backward [the config's]",
        needs=[needs.in_config("fsdp", "FSDP", "accelerate_configs/fsdp2.yaml")],
    )
    use_peft: bool = flag(
        False, "techniques", "train LoRA adapters alone, by peft", label=naming.when("use_peft", "lora{lora_r}")
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
    optim: str = flag("adamw_torch", "techniques", "optimizer", choices=OPTIMIZERS)

    max_steps: int = flag(20, "training", "optimizer steps", least=1)
    untimed_steps: int = flag(3, "training", "first optimizer steps, measured for memory and not timed", least=2)
    learning_rate: float = flag(1e-3, "training", "peak learning rate", least=0)
    lr_scheduler_type: str = flag("constant", "training", "learning rate schedule", choices=SCHEDULERS)
    warmup_steps: int = flag(0, "training", "optimizer steps of linear warm-up", least=0, needs=[needs.WARM_UP], off=0)
    weight_decay: float = flag(0.0, "training", "decay of the matrices, not of biases and norms", least=0)
    max_grad_norm: float = flag(1.0, "training", "gradient norm to clip at; 0 clips nothing", least=0)
    seed: int = flag(0, "training", "of weights, row order and synthetic data", least=0, most=2**32 - 1)

    checkpointing_steps: int | None = flag(
        None, "output", "save a checkpoint every so many steps [never]", least=1, needs=[needs.SAVED]
    )
    save_total_limit: int | None = flag(
        None, "output", "checkpoints that are kept, the newest [all]", least=1, needs=[needs.CHECKPOINTS]
    )
    resume_from_checkpoint: str | None = flag(
        None, "output", "go on from this checkpoint-N folder; latest: from the last one of <output_dir>, if any"
    )
    report_to: str = flag(
        "wandb", "output", "tracker", choices=("wandb", "trackio", "tensorboard", "none"), identity=False
    )
    save_model: bool = flag(False, "output", "save a Transformers folder in <output_dir>/model", identity=False)
    project: str = flag(
        "rungwise",
        "output",
        "project of the tracker [WANDB_PROJECT, else rungwise]",
        needs=[needs.PROJECTS],
        identity=False,
        variables={"wandb": "WANDB_PROJECT"},
    )
    run_name: str | None = flag(None, "output", "name of the run [made from the settings]", identity=False)
    group: str | None = flag(
        None,
        "output",
        "group of runs in the tracker",
        needs=[needs.PROJECTS],
        identity=False,
        variables={"wandb": "WANDB_RUN_GROUP"},
    )
    output_dir: str | None = flag(None, "output", "folder of the run [runs/<run_name>]", identity=False)

    mixed_precision: str = derived("no", "no, bf16 or fp16; the config decides", choices=tuple(COMPUTE_DTYPES))
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
    use_cpu: bool = derived(False, "train on the CPU even where there is an accelerator; the config decides")
    num_processes: int = derived(1, "processes, as launched", label=naming.processes)
    micro_batch_size: int = derived(16, "rows a process runs forward and backward at a time", identity=False)
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
# Settings that name a run and its place, or follow from others: two rungs that differ in them alone are the same.
NAMING = ("precision", *(name for name, f in FIELDS.items() if not f.metadata["identity"]))
