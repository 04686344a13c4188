"""The settings of one run, as a dataclass. Each field with a group is a flag of the same name."""

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..redact import redacted
from . import naming, needs
from .choices import COMPUTE_DTYPES, SCHEDULERS, compute_precision
from .input_fields import MODEL_NAMES
from .metadata import derived, flag
from .technique_fields import TechniqueFields


@dataclass(frozen=True)
class Settings(TechniqueFields):
    """Every resolved setting of one training run. A field with a group is a flag of the same name.

    Those of the inputs and the techniques stand in classes of their own, which come first, in this order.
    """

    max_steps: int = flag(20, "training", "optimizer steps", least=1)
    untimed_steps: int = flag(3, "training", "first optimizer steps, measured for memory and not timed", least=2)
    learning_rate: float = flag(1e-3, "training", "peak learning rate", least=0)
    lr_scheduler_type: str = flag("constant", "training", "learning rate schedule", choices=SCHEDULERS)
    warmup_steps: int = flag(0, "training", "optimizer steps of linear warm-up", least=0, needs=[needs.WARM_UP], off=0)
    weight_decay: float = flag(0.0, "training", "decay of the matrices, not of biases and norms", least=0)
    max_grad_norm: float = flag(1.0, "training", "gradient norm to clip at; 0 clips nothing", least=0)
    seed: int = flag(0, "training", "of weights, row order and synthetic data", least=0, most=2**32 - 1)

    checkpointing_steps: int | None = flag(
        None, "output", "save a checkpoint every so many steps [never]", least=1, needs=[needs.SAVED, needs.OUR_LOOP]
    )
    save_total_limit: int | None = flag(
        None, "output", "checkpoints that are kept, the newest [all]", least=1, needs=[needs.CHECKPOINTS]
    )
    resume_from_checkpoint: str | None = flag(
        None,
        "output",
        "go on from this checkpoint-N folder; latest: from the last one of <output_dir>, if any",
        needs=[needs.OUR_LOOP],
    )
    report_to: str = flag(
        "wandb", "output", "tracker", choices=("wandb", "trackio", "tensorboard", "none"), identity=False
    )
    save_model: bool = flag(
        False,
        "output",
        "save a Transformers folder in <output_dir>/model",
        needs=[needs.OUR_LOOP],
        identity=False,
    )
    forecast: bool = flag(
        True, "output", "forecast the run's memory after its last step, beside what was measured", identity=False
    )
    plots: bool = flag(True, "output", "draw the run's memory into <output_dir> once all is written", identity=False)
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

    engine: str = derived(
        "rungwise", "whose loop trains: rungwise's or a Trainer's", label=naming.unless("engine", "rungwise")
    )
    mixed_precision: str = derived("no", "no, bf16 or fp16; the config decides", choices=tuple(COMPUTE_DTYPES))
    use_cpu: bool = derived(False, "train on the CPU even where there is an accelerator; the config decides")
    num_processes: int = derived(1, "processes, as launched", label=naming.processes)
    micro_batch_size: int = derived(16, "rows a process runs forward and backward at a time", identity=False)
    origins: dict[str, str] = field(default_factory=dict, metadata={"group": None}, compare=False)

    @property
    def precision(self) -> str:
        """What matrix products are computed in: no (fp32), bf16 or fp16."""
        return compute_precision(self.mixed_precision, self.dtype)

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, as they are recorded: with the precision that follows from them, without secrets."""
        values = dataclasses.asdict(self)
        del values["origins"]
        return redacted(values | {"precision": self.precision})


# The origin of what a script decides itself: none of these settings is asked for.
OWN = "the script's own"
FIELDS = {f.name: f for f in dataclasses.fields(Settings) if f.name != "origins"}
HINTS = typing.get_type_hints(Settings)
# Settings that name a run and its place, or follow from others: two rungs that differ in them alone are the same.
NAMING = ("precision", *(name for name, f in FIELDS.items() if not f.metadata["identity"]))


def is_default_model(settings: Mapping[str, Any], origins: Mapping[str, str]) -> bool:
    """Whether a run trained the model that there is where none is named; both as in `result.json`."""
    return origins.get("model_type") != OWN and not any(settings.get(name) for name in MODEL_NAMES)
