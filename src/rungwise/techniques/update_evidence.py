"""What a step shows by how it changes the weights: gradients, optimizer, adapters, replicas that stay equal."""

from typing import Any

import torch
from accelerate import Accelerator
from torch.distributed.tensor import DTensor, Shard
from transformers import PreTrainedModel

from ..loop import Step
from ..settings.fields import Settings
from .observe import UpdateNotes

# How far the norm of the gradients that the optimizer gets may be from the one reported: rounding of half precision.
TOLERANCE = 0.02


class UpdateProof:
    """Takes notes until a step has changed a weight, and compares them with what was asked for.

    Attributes:
        decided: whether a step has changed a weight, so that there was something to compare.
    """

    def __init__(
        self, model: PreTrainedModel, optimizer: torch.optim.Optimizer, accelerator: Accelerator, settings: Settings
    ):
        self.decided = False
        self._settings, self._model, self._optimizer = settings, model, optimizer
        self._accelerator = accelerator
        self._notes = UpdateNotes(model, optimizer)
        self._changed = 0.0

    def close(self) -> None:
        """Takes no more notes."""
        self._notes.close()

    def restart(self) -> None:
        """Forgets what loading a checkpoint did."""
        self._notes.forget()

    def next(self) -> None:
        """Goes on to the next step."""
        self._notes.begin()

    def missing(self, step: Step) -> list[str]:
        """What was asked for and is not seen in what this step did to the weights."""
        steps = self._notes.steps
        # A step that fp16 skips may be skipped before the optimizer or, a fused one, inside of it.
        if steps != 1 and not (step.skipped and steps == 0):
            return [
                f"the optimizer stepped {steps} times in one step over "
                f"{self._settings.gradient_accumulation_steps} micro-batches"
            ]
        missing = self._why_another_optimizer()
        if missing or step.skipped:
            return missing
        weights = self._notes.weights()
        changed = self._accelerator.reduce(self._notes.changed(weights).long(), "sum") > 0
        if not changed.any():
            return []
        self.decided = True
        sizes = torch.tensor([p.numel() for p in self._model.parameters()], device=changed.device)
        self._changed = int(sizes[changed].sum()) / int(sizes.sum())
        self._sharing = self._engine(weights)
        wanted = "FSDP2" if self._settings.fsdp else "DDP" if self._accelerator.num_processes > 1 else "none"
        if self._sharing != wanted:
            missing.append(f"{wanted} was asked for between processes, {self._sharing} is there")
        return [*missing, *self._why_other_gradients(step), *self._why_not_adapters(changed)]

    def evidence(self) -> dict[str, Any]:
        """What was seen, as it stands in `result.json`."""
        seen = {"trained_parameters": self._trained_share(), "optimizer": self._optimizer_name()}
        return seen | ({"engine": self._sharing, "changed_parameters": self._changed} if self.decided else {})

    def _why_another_optimizer(self) -> list[str]:
        """What a flag says of the optimizer and is not so. What nobody asked for is recorded alone."""
        asked, groups = self._settings, self._optimizer.param_groups
        found = {
            "optim": self._optimizer_name(),
            "learning_rate": max(group.get("initial_lr", group.get("lr", 0.0)) for group in groups),
            "weight_decay": max(group.get("weight_decay", 0.0) for group in groups),
        }
        return [
            f"{name} {getattr(asked, name)} was asked for, the optimizer has {value}"
            for name, value in found.items()
            if asked.origins.get(name, "default") != "default" and getattr(asked, name) != value
        ]

    def _optimizer_name(self) -> str:
        """As `--optim` calls it; of another kind its class."""
        if type(self._optimizer) is not torch.optim.AdamW:
            return type(self._optimizer).__name__
        return "adamw_torch_fused" if self._optimizer.param_groups[0].get("fused") else "adamw_torch"

    def _why_other_gradients(self, step: Step) -> list[str]:
        """Whether the optimizer was given what the step reports: unscaled, and clipped."""
        [norm] = self._notes.gradient_norms
        if self._sharded() and self._accelerator.num_processes > 1:
            norm = self._accelerator.reduce(norm.square(), "sum").sqrt()
        wanted = min(step.grad_norm, self._settings.max_grad_norm or float("inf"))
        if abs(float(norm) - wanted) > TOLERANCE * wanted:
            return [
                f"the optimizer was given gradients of norm {float(norm):.4g}; unscaled they have "
                f"{step.grad_norm:.4g}, and max_grad_norm is {self._settings.max_grad_norm:g}"
            ]
        return []

    def _trained_share(self) -> float:
        trained = sum(p.numel() for p in self._model.parameters() if p.requires_grad)
        return trained / sum(p.numel() for p in self._model.parameters())

    def _why_not_adapters(self, changed: torch.Tensor) -> list[str]:
        """What is wrong with which parameters are trained, and which have changed."""
        named = list(self._model.named_parameters())
        moved = [name for (name, p), it in zip(named, changed.tolist(), strict=True) if it and not p.requires_grad]
        found = [f"{len(moved)} parameters that are frozen have changed, as {moved[0]}"] if moved else []
        base = [name for name, p in named if p.requires_grad and "lora_" not in name]
        if self._settings.use_peft and base:
            found.append(
                f"adapters alone were asked for: True; trained are {self._trained_share():.1%} of all, as {base[0]}"
            )
        return found

    def _sharded(self) -> bool:
        return any(isinstance(p, DTensor) for p in self._model.parameters())

    def _engine(self, weights: torch.Tensor) -> str:
        """What keeps the processes' weights alike after a step on rows of their own: FSDP2, DDP or none."""
        parameters = list(self._model.parameters())
        sharded = [isinstance(p, DTensor) and any(isinstance(x, Shard) for x in p.placements) for p in parameters]
        if all(sharded):
            return "FSDP2"
        if any(sharded):
            return f"FSDP2 for {sum(sharded)} of {len(sharded)} parameters"
        if self._accelerator.num_processes == 1:
            return "none"
        replicas = self._accelerator.gather(weights.unsqueeze(0))
        return "DDP" if bool((replicas == replicas[0]).all()) else "none"
