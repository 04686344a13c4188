"""LoRA: the model is frozen, and small adapters beside its layers are trained, by the peft package."""

import importlib.util
import warnings
from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ..errors import closest
from ..metrics.flops import model_flops_per_row
from ..model.model import empty_model
from ..settings.fields import OWN, Settings
from .seen import Seen, UnavailableTechnique

if TYPE_CHECKING:
    from transformers import Trainer

FLAG = "--lora_target_modules"
# peft's word for every linear layer but the head.
ALL_LINEAR = "all-linear"
ADAPTABLE = (nn.Linear, Conv1D, nn.Embedding, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def validate(settings: Settings, device_type: str) -> list[str]:
    """That the package is not installed, or which layers cannot get adapters."""
    if not settings.use_peft:
        return []
    if importlib.util.find_spec("peft") is None:
        return ["--use_peft: not installed; pip install 'rungwise[peft]'"]
    if settings.origins.get("model_type") == OWN:
        # A script's own model is not there yet; `apply` asks it.
        return []
    try:
        model = empty_model(settings)
    except Exception:
        # What is wrong with the model itself is said by `model.validate`.
        return []
    try:
        with torch.device("meta"):
            _wrap(model, settings)
    except UnavailableTechnique as error:
        return [str(error)]
    return []


def apply(model: PreTrainedModel, settings: Settings) -> nn.Module:
    """Freezes the model and gives its layers LoRA adapters (Hu et al. 2021) to train.

    Raises:
        UnavailableTechnique: a layer that was named cannot be adapted, or there is none.
    """
    if not settings.use_peft:
        return model
    return _wrap(model, settings)


def _wrap(model: PreTrainedModel, settings: Settings) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    targets = _targets(model, settings)
    if wrong := _not_adaptable(model, targets) if isinstance(targets, list) else []:
        raise UnavailableTechnique(f"{FLAG} {settings.lora_target_modules}: {'; '.join(wrong)}")
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules=targets,
        # GPT-2's linear layers are kept transposed.
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    shared = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    try:
        with warnings.catch_warnings():
            # peft warns of its own use of Transformers, and of what is refused here.
            warnings.simplefilter("ignore")
            wrapped = get_peft_model(model, config)
    except ValueError as error:
        raise UnavailableTechnique(f"LoRA: {str(error).splitlines()[0]}; name layers in {FLAG}") from error
    for name in wrapped.base_model.targeted_module_names:
        layer = wrapped.base_model.model.get_submodule(name).get_base_layer()
        if any(shared[id(p)] > 1 for p in layer.parameters()):
            raise UnavailableTechnique(
                f"LoRA: {name} shares its weights with another layer, so that the saved model, with the adapter in "
                f"them, would be another one than was trained; name other layers in {FLAG}"
            )
    return wrapped


def _targets(model: PreTrainedModel, settings: Settings) -> list[str] | str | None:
    """The names of the layers to adapt; None for peft's own choice."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    if not settings.lora_target_modules:
        return None if KNOWN.get(model.config.model_type) else ALL_LINEAR
    names = [name.strip() for name in settings.lora_target_modules.split(",")]
    return ALL_LINEAR if names == [ALL_LINEAR] else names


def _not_adaptable(model: PreTrainedModel, targets: list[str]) -> list[str]:
    """What is wrong with the names of layers: peft drops those that match nothing beside one that does."""
    layers = dict(model.named_modules())
    known = {name.rpartition(".")[2]: None for name, layer in layers.items() if isinstance(layer, ADAPTABLE)}
    found = []
    for target in targets:
        matched = {name: layer for name, layer in layers.items() if name == target or name.endswith(f".{target}")}
        other = next((layer for layer in matched.values() if not isinstance(layer, ADAPTABLE)), None)
        if not target:
            found.append("a name is empty; take out the comma beside it")
        elif not matched:
            found.append(f"{target} is no layer{closest(target, known)}; name some of {', '.join(known)}")
        elif other is not None:
            found.append(
                f"{target} is a {type(other).__name__}, which takes no adapter; name some of {', '.join(known)}"
            )
    return found


def passes(settings: Settings) -> int:
    """A row's training in forward passes: the backward pass is as two, without gradients of weights as one."""
    return 2 if settings.use_peft else 3


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """Whether a Trainer was given a model of which LoRA adapters alone are trained, as a setting."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    return {"use_peft": has_adapters(model) and all("lora_" in name for name in trained)}


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has wrapped this model."""
    return hasattr(model, "peft_config")


def flops_per_row(model: nn.Module, block_size: int) -> int | None:
    """`model_flops_per_row` of a model of which a part may be frozen, be it by adapters or by a script's own hand."""
    frozen = frozenset(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    return model_flops_per_row(model.config, block_size, frozen, has_adapters(model))


def update_evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """What is wrong with which parameters are trained, and which have changed."""
    named = list(seen.model.named_parameters())
    changed = seen.changed.tolist()
    moved = [name for (name, p), it in zip(named, changed, strict=True) if it and not p.requires_grad]
    missing = [f"{len(moved)} parameters that are frozen have changed, as {moved[0]}"] if moved else []
    base = [name for name, p in named if p.requires_grad and "lora_" not in name]
    if seen.settings.use_peft and base:
        missing.append(
            f"adapters alone were asked for: True; trained are {seen.trained_share:.1%} of all, as {base[0]}"
        )
    return {}, missing
