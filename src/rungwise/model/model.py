"""The model: a small GPT-2 by default, or any causal LM by name. Parameters are fp32 master weights by default."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils import logging

from ..errors import SettingsError
from ..settings.fields import Settings
from ..settings.input_fields import MODEL_NAMES
from .config import load_config, switched, whole_config, why_not
from .probe import longest_row, quiet, text_config, vocab_size
from .weights import TEXT_PART, describe, mismatches


def validate(
    settings: Settings, load: Callable[[Settings], PreTrainedConfig] = load_config, weights: bool = True
) -> list[str]:
    """What is wrong with the model asked for, found without building it.

    Args:
        settings: name it.
        load: gives its config.
        weights: whether they are looked at, too; what is asked of a config alone needs none.
    """
    try:
        config = load(settings)
    except Exception as error:
        # Configs come from the Hub and from other people's code, which raise anything.
        return [f"{_named(settings)}: {_first_line(error)}"]
    if reason := why_not(config, settings):
        return [f"{_named(settings)}: {reason}"]
    found = switched(config, settings)
    try:
        model = empty_model(settings, config)
    except Exception as error:
        # As above.
        return [*found, _why_unbuilt(config, settings, error)]
    longest = longest_row(config, settings.block_size)
    if longest < settings.block_size:
        found.append(
            f"--block_size {settings.block_size} is longer than the model's {longest} positions; "
            f"use --block_size {longest} or less"
        )
    # Transformers takes another attention of the same kind where that is not installed or not the model's.
    taken = model.config._attn_implementation
    if settings.attn_implementation not in (None, taken):
        found.append(
            f"--attn_implementation {settings.attn_implementation}: Transformers takes {taken} in its place "
            "here; name that one, or leave it out"
        )
    if settings.model_name_or_path and weights:
        try:
            _check_weights(model, settings)
        except Exception as error:
            # As above.
            found.append(f"{_named(settings)}: {_first_line(error)}")
    return found


def _why_unbuilt(config: PreTrainedConfig, settings: Settings, error: Exception) -> str:
    """Why there is no model from this config."""
    pad, known = getattr(text_config(config), "pad_token_id", None), vocab_size(config)
    if pad is not None and known is not None and pad >= known:
        return (
            f"{_named(settings)}: pad_token_id {pad} lies beyond its {known} tokens; set pad_token_id to one of them, "
            f"as by --config_overrides pad_token_id=0, or vocab_size to {pad + 1} or more"
        )
    if settings.attn_implementation:
        return f"--attn_implementation {settings.attn_implementation}: {_first_line(error)}"
    return f"{_named(settings)}: no model can be made from its config: {_first_line(error)}"


def _check_weights(model: PreTrainedModel, settings: Settings) -> dict[str, list[str]]:
    """What of the weights does not fit the model, by kind, where that is meant.

    Raises:
        ValueError: it is not meant, or there are no weights.
    """
    found = mismatches(model, settings.model_name_or_path, _is_text_part(settings, model.config))
    if found and not settings.ignore_mismatched_weights:
        raise ValueError(describe(found))
    return found


def _is_text_part(settings: Settings, config: PreTrainedConfig) -> bool:
    """Whether the checkpoint reads images or sound, too, and its text part alone is built."""
    return type(whole_config(settings)) is not type(config)


def _named(settings: Settings) -> str:
    """The flags that name the model."""
    return " ".join(f"--{name} {value}" for name in MODEL_NAMES if (value := getattr(settings, name)))


def empty_model(settings: Settings, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """The model as `build_model` makes it, but on the meta device: names and shapes without storage.

    Raises:
        Exception: whatever the model's class has against its config.
    """
    with torch.device("meta"), quiet():
        return AutoModelForCausalLM.from_config(_own(settings, config), **_arguments(settings))


def build_model(settings: Settings, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """Builds or loads the model with parameters of `settings.dtype`, whatever dtype they were saved in.

    That is fp32 by default: the small updates of AdamW get lost in half-precision parameters. What of a checkpoint did
    not fit, where that is meant, is kept as `model.mismatched_weights`. `config` is the one that was opened before
    [loads it].

    Raises:
        SettingsError: the checkpoint's weights are not those of the model.
    """
    if not sys.stderr.isatty():
        # A bar of loaded weights is for a person who waits; in a log file it is noise.
        logging.disable_progress_bar()
    config = _own(settings, config)
    arguments = {"dtype": getattr(torch, settings.dtype), **_arguments(settings)}
    if settings.model_name_or_path:
        try:
            found = _check_weights(empty_model(settings, config), settings)
        except ValueError as error:
            raise SettingsError([f"{_named(settings)}: {error}"]) from error
        model = AutoModelForCausalLM.from_pretrained(
            settings.model_name_or_path,
            config=config,
            key_mapping=TEXT_PART if _is_text_part(settings, config) else None,
            ignore_mismatched_sizes=settings.ignore_mismatched_weights,
            **arguments,
        )
        model.mismatched_weights = found
    else:
        model = AutoModelForCausalLM.from_config(config, **arguments)
    model.loss_function = CausalLMLoss()
    return model


def _own(settings: Settings, config: PreTrainedConfig | None) -> PreTrainedConfig:
    """A config for a model, which keeps and changes it: a copy of the one that was opened, or else loaded."""
    return copy.deepcopy(config) if config else load_config(settings)


def _arguments(settings: Settings) -> dict[str, Any]:
    """What Transformers is told of any model. Not told whether code is trusted, it would ask at the terminal."""
    attention = {"attn_implementation": settings.attn_implementation} if settings.attn_implementation else {}
    return {"trust_remote_code": settings.trust_remote_code, **attention}


class CausalLMLoss:
    """Transformers' own loss of causal language models, which notes whether it is told what to divide by.

    Some models compute their loss themselves and ignore `num_items_in_batch`: accumulation would then scale their
    gradients. Transformers finds the function by the class's name, which for GPT2LMHeadModel says nothing; its warning
    about that would also break a compiled graph.
    """

    compute = staticmethod(ForCausalLMLoss)

    def __init__(self) -> None:
        self.divided = False

    def __call__(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The sum of token losses / `num_items_in_batch`, of logits (B, T, V) and labels (B, T)."""
        if num_items_in_batch is not None:
            self.divided = True
        return self.compute(logits, labels, vocab_size, num_items_in_batch, **kwargs)


def save_model(
    accelerator: Accelerator, model: nn.Module, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None
) -> None:
    """Saves an ordinary Transformers folder of a prepared model, be it sharded. Call it in every process.

    Args:
        accelerator: has prepared the model.
        model: adapters are merged into the weights that they adapt.
        folder: to save in.
        tokenizer: that the model was trained with, if any.
    """
    state = accelerator.get_state_dict(model)
    if not accelerator.is_main_process:
        return
    model = accelerator.unwrap_model(model)
    if hasattr(model, "merge_and_unload"):
        # Adapters go into the weights that they adapt: an ordinary model again.
        model = model.merge_and_unload()
        state = model.state_dict()
    # Gathered from shards, a tied parameter would stand in the file under each of its names.
    for name in getattr(model, "all_tied_weights_keys", {}):
        state.pop(name, None)
    # What was switched off for training serves generation.
    model.config.use_cache = True
    if model.generation_config is not None:
        model.generation_config.use_cache = True
    model.save_pretrained(folder, state_dict=state)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
