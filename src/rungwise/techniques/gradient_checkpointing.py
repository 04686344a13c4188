"""Gradient checkpointing: each block keeps its input alone and runs forward again in the backward pass."""

import inspect
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from ..metrics.flops import ForwardFlops
from ..settings.fields import Settings
from .observe import checkpointable_blocks
from .seen import Seen, UnavailableTechnique

if TYPE_CHECKING:
    from transformers import Trainer


def apply(model: PreTrainedModel, settings: Settings, device: torch.device) -> None:
    """Has each block keep its input alone and run forward again in the backward pass.

    Raises:
        UnavailableTechnique: the model cannot, the release does not know an option, or there is nothing to offload to.
    """
    if not settings.gradient_checkpointing:
        return
    options = _options(settings)
    # What is Transformers' own stands beside the keyword arguments of torch.utils.checkpoint, not among them.
    own = {name: options.pop(name) for name in ("every_n_layers", "offload") if name in options}
    # Transformers renamed the method; older 5.x releases only have the first name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    if not model.supports_gradient_checkpointing:
        raise UnavailableTechnique(
            f"{type(model).__name__} does not support gradient checkpointing; leave --gradient_checkpointing out"
        )
    if own.get("offload") and device.type == "cpu":
        raise UnavailableTechnique("offload moves activations from an accelerator to the host; this run is on the CPU")
    unknown = [name for name in own if name not in inspect.signature(enable).parameters]
    if unknown:
        raise UnavailableTechnique(
            f"this Transformers release does not know {', '.join(unknown)} in --gradient_checkpointing_kwargs; "
            "install a newer one, or leave it out"
        )
    if options["use_reentrant"] and not model.get_input_embeddings().weight.requires_grad:
        # This way only sees a gradient that the first block's input asks for, and frozen embeddings ask for none.
        model.enable_input_require_grads()
    enable(options, **own)
    if not any(is_checkpointed(module) for module in model.modules()):
        raise UnavailableTechnique(
            f"{type(model).__name__} has no block that Transformers can checkpoint; leave --gradient_checkpointing out"
        )


def _options(settings: Settings) -> dict[str, Any]:
    return {"use_reentrant": False, **(settings.gradient_checkpointing_kwargs or {})}


def _name_in(arguments: type) -> str:
    """What Transformers calls it: from 5.24 on by another name, of which the first is an alias."""
    new = "activation_checkpointing"
    return new if any(field.name == new for field in fields(arguments)) else "gradient_checkpointing"


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, or its model by the script's own hand, as settings."""
    name = _name_in(type(trainer.args))
    asked = bool(getattr(trainer.args, name)) or any(is_checkpointed(module) for module in model.modules())
    options = getattr(trainer.args, f"{name}_kwargs") if asked else None
    return {"gradient_checkpointing": asked, "gradient_checkpointing_kwargs": options}


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments."""
    if not settings.gradient_checkpointing:
        return {}
    from transformers import TrainingArguments

    name = _name_in(TrainingArguments)
    return {name: True, f"{name}_kwargs": _options(settings)}


def is_checkpointed(module: nn.Module) -> bool:
    """Whether this is a block that recomputes itself in the backward pass."""
    return isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing


def checkpointed_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that recompute themselves in the backward pass, in the model's order."""
    return [module for module in model.modules() if is_checkpointed(module)]


def every_n_layers(settings: Settings) -> int:
    """Of how many layers one is checkpointed, where checkpointing is asked for."""
    return (settings.gradient_checkpointing_kwargs or {}).get("every_n_layers", 1)


def extra_flops(settings: Settings, forward: ForwardFlops) -> int:
    """What is computed again for one row: the blocks, but for what stands behind the last tensor that one keeps.

    Non-reentrant recomputation stops there (torch.utils.checkpoint, `set_checkpoint_early_stop`).
    """
    if not settings.gradient_checkpointing:
        return 0
    stops = not (settings.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
    again = [block - last * stops for block, last in zip(forward.blocks, forward.last, strict=True)]
    return sum(again[:: every_n_layers(settings)])


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Which blocks were recomputed that should not have been, or were not that should."""
    compiled = seen.compiled
    recomputed = compiled.recomputed_blocks if compiled else sum(block.recomputed for block in seen.forward.blocks)
    return {"recomputed_blocks": recomputed}, _why_not(seen, recomputed)


def _why_not(seen: Seen, recomputed: int) -> list[str]:
    asked = seen.settings
    every = every_n_layers(asked)
    if asked.gradient_checkpointing != (recomputed > 0):
        return [
            f"gradient checkpointing was asked for: {asked.gradient_checkpointing}; "
            f"blocks that were recomputed: {recomputed}"
        ]
    if not asked.gradient_checkpointing:
        return []
    if seen.compiled:
        # Of a block that is compiled once for all, one stands for all.
        owed = 1 if seen.compiled.regional else len(checkpointable_blocks(seen.model)[::every])
        wrong = [f"{recomputed} of {owed}"] if recomputed < owed else []
    else:
        blocks = seen.forward.blocks
        due = [block.owed if index % every == 0 else 0 for index, block in enumerate(blocks)]
        wrong = [
            f"block {index} {block.recomputed} times in {wanted} passes"
            for index, (block, wanted) in enumerate(zip(blocks, due, strict=True))
            if block.recomputed < wanted or (wanted == 0 and block.recomputed)
        ]
    if not wrong:
        return []
    which = "each block" if every == 1 else f"one block in {every}"
    return [f"gradient checkpointing of {which} was asked for; recomputed were: {', '.join(wrong)}"]
