"""LoRA: the model is frozen, and small adapters beside its layers are trained, by the peft package."""

import importlib.util
import warnings
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ..settings.fields import Settings
from .seen import Seen, UnavailableTechnique


def validate(settings: Settings, device_type: str) -> list[str]:
    """That the package is not installed."""
    if settings.use_peft and importlib.util.find_spec("peft") is None:
        return ["--use_peft: not installed; pip install 'rungwise[peft]'"]
    return []


def apply(model: PreTrainedModel, settings: Settings) -> nn.Module:
    """Freezes the model and gives its layers LoRA adapters (Hu et al. 2021) to train.

    Raises:
        UnavailableTechnique: peft finds no layer to adapt.
    """
    if not settings.use_peft:
        return model
    from peft import LoraConfig, get_peft_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    targets = settings.lora_target_modules.split(",") if settings.lora_target_modules else None
    if targets is None and model.config.model_type not in KNOWN:
        targets = "all-linear"
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=settings.lora_r,
        lora_alpha=settings.lora_alpha,
        target_modules=targets,
        # GPT-2's linear layers are kept transposed.
        fan_in_fan_out=model.config.model_type == "gpt2",
    )
    try:
        with warnings.catch_warnings():
            # peft asks Transformers for something by the name that it had before.
            warnings.simplefilter("ignore", FutureWarning)
            return get_peft_model(model, config)
    except ValueError as error:
        raise UnavailableTechnique(
            f"LoRA: {str(error).splitlines()[0]}; name layers in --lora_target_modules"
        ) from error


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has wrapped this model."""
    return hasattr(model, "peft_config")


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
