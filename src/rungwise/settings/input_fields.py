"""The settings of what a run is given: its config, its model, its data, and how rows come in batches."""

from dataclasses import dataclass

from . import naming, needs
from .choices import DTYPES
from .metadata import flag

# What names a model, or changes its config. Where none of them is set, it is the small GPT-2 of `model.config`.
MODEL_NAMES = ("model_name_or_path", "config_name", "model_type", "config_overrides")


@dataclass(frozen=True)
class InputFields:
    """What is trained, and on what."""

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
        None,
        "evaluation",
        "optimizer steps from one evaluation to the next [none]",
        least=1,
        needs=[needs.EVALUATED, needs.OUR_LOOP],
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
