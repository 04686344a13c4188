"""What one run found: a row of metrics for each step, and at its end the content of `result.json`."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..loop import Step
from ..metrics.memory import MIB
from ..metrics.throughput import throughput
from ..redact import redacted
from ..result_file import PREFIXES, SCHEMA, UNFINISHED, held, plain, write_result
from ..settings.fields import Settings

# Per second, of a step and of a run; the last two only where the model's FLOPs are known.
RATES = ("tokens_per_second", "tokens_per_second_per_device", "model_tflops", "utilization")


@dataclass
class Record:
    """Everything that is known of one run. It starts as a failed one, so that a killed process leaves its row too."""

    settings: Settings
    status: str = "failed"
    reason: str | None = UNFINISHED
    environment: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, float | None] = field(default_factory=dict)
    forecast: dict[str, Any] = field(default_factory=dict)
    compile: dict[str, Any] = field(default_factory=dict)
    profile: dict[str, Any] = field(default_factory=dict)
    activations: dict[str, Any] = field(default_factory=dict)
    # Why a figure is not there, by its name, of those whose meters failed.
    not_measured: dict[str, str] = field(default_factory=dict)
    # Where the tracked run is, as `Tracker.about` says.
    tracker: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    # How many of the steps an earlier process took: their losses are the run's, their speed is not this process's.
    restored_steps: int = 0
    evaluations: list[dict[str, float]] = field(default_factory=list)
    # Kept up to date by `add`: summing over all steps at each step would make long runs slow.
    tokens: int = 0
    skipped_steps: int = 0
    empty_windows: int = 0
    row_flops: int | None = None
    matmul_flops_per_second: float = math.inf

    def config(self) -> dict[str, Any]:
        """What a tracker shows of the run before it has a figure."""
        known = {"origins": self.settings.origins, "environment": self.environment, "data": self.data}
        return redacted(self.settings.as_dict() | known)

    def add(self, step: Step) -> dict[str, Any]:
        """Keeps one step. Returns its metrics by name; speed stands only in those that were timed.

        A restored step has no utilization: the rate of a matrix product was measured by this process, maybe elsewhere.
        """
        self.steps.append(step)
        self.tokens += step.tokens
        self.skipped_steps += step.skipped and step.tokens > 0
        self.empty_windows += step.tokens == 0
        row: dict[str, Any] = {
            "train/loss": step.loss,
            "train/grad_norm": step.grad_norm,
            "train/learning_rate": step.learning_rate,
            "train/tokens": self.tokens,
        }
        if self.empty_windows:
            row["train/empty_windows"] = self.empty_windows
        if step.timed:
            row["perf/step_ms"] = 1000 * step.seconds
            rates = self._rates(1, step.tokens, step.seconds)
            if len(self.steps) <= self.restored_steps:
                rates.pop("utilization", None)
            row |= {f"perf/{name}": value for name, value in rates.items()}
        if step.peak_bytes is not None:
            row["memory/peak_allocated_mib"] = step.peak_bytes / MIB
        row |= {f"compile/{name}": value for name, value in self.compile.items() if isinstance(value, int | float)}
        return row | {f"amp/{name}": value for name, value in self._amp().items()}

    def _rates(self, steps: int, tokens: int, seconds: float) -> dict[str, float]:
        """What was done a second in this many steps, which took these seconds together."""
        rate = tokens / seconds
        found = {
            "tokens_per_second": rate,
            "tokens_per_second_per_device": rate / self.settings.num_processes,
        }
        if self.row_flops is not None:
            flops = steps * self.row_flops * self.settings.global_batch_size / seconds
            found["model_tflops"] = flops / 1e12
            found["utilization"] = flops / self.settings.num_processes / self.matmul_flops_per_second
        return found

    def _throughput(self) -> dict[str, Any]:
        """The speed of this process's own steps. A rate that is not known or not claimed is None."""
        own = self.steps[self.restored_steps :]
        timed = [step for step in own if step.timed]
        found = dict.fromkeys(RATES) | throughput([step.seconds for step in timed], [step.tokens for step in timed])
        if found["tokens_per_second"] is not None:
            found |= self._rates(len(timed), found["tokens"], sum(step.seconds for step in timed))
        all_seconds = sum(step.seconds for step in own)
        return found | {"all_steps_seconds": all_seconds, "restored_steps": self.restored_steps}

    def _amp(self) -> dict[str, Any]:
        if not self.steps or self.steps[-1].loss_scale is None:
            return {}
        return {"loss_scale": self.steps[-1].loss_scale, "skipped_steps": self.skipped_steps}

    def _updates(self) -> list[float]:
        """The losses of the steps that changed the weights: all but those that fp16 skipped."""
        return [step.loss for step in self.steps if not step.skipped]

    def _loss(self) -> dict[str, Any]:
        losses = [step.loss for step in self.steps]
        if not losses:
            return {}
        # A window without a token that carries a loss has none.
        known = [step.loss for step in self.steps if step.tokens] or [math.nan]
        found = {"first": known[0], "last": known[-1], "trajectory": losses, "updates": self._updates()}
        found |= {"empty_windows": self.empty_windows} if self.empty_windows else {}
        # Of a run whose earlier steps another process took, and told nothing of.
        found |= {"first_step": self.steps[0].number} if self.steps[0].number > 1 else {}
        return found | ({"eval": self.evaluations} if self.evaluations else {})

    def as_dict(self) -> dict[str, Any]:
        """The run as it stands in `result.json`."""
        return plain(
            {
                "schema": SCHEMA,
                "name": self.settings.run_name,
                "status": self.status,
                "reason": self.reason,
                "settings": self.settings.as_dict(),
                "origins": self.settings.origins,
                "environment": self.environment,
                "data": self.data,
                "evidence": self.evidence,
                "loss": self._loss(),
                "throughput": self._throughput(),
                "memory": self.memory,
                "forecast": self.forecast,
                "compile": self.compile,
                "amp": self._amp(),
                "profile": self.profile,
                "activations": self.activations,
                "not_measured": self.not_measured,
                "tracker": self.tracker,
            }
        )

    def write(self, folder: Path) -> None:
        """Writes `result.json`."""
        with held(folder) if self.settings.num_processes > 1 else nullcontext():
            write_result(folder, self.as_dict())

    def summary(self) -> dict[str, Any]:
        """The figures of the run by their metric names, for a tracker."""
        result = self.as_dict()
        figures = {
            f"{prefix}/{key}": value for group, prefix in PREFIXES.items() for key, value in result[group].items()
        }
        losses = {f"loss/{key}": result["loss"][key] for key in ("first", "last") if result["loss"]}
        if held_out := result["loss"].get("eval"):
            losses["loss/held_out"] = held_out[-1]["loss"]
        kept = {"activations/total_mib": self.activations["total_mib"]} if self.activations else {}
        lost = {f"not_measured/{name}": why for name, why in self.not_measured.items()}
        return redacted({"status": self.status, "reason": self.reason, **losses, **figures, **kept, **lost})
