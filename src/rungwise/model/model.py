"""The model: a small GPT-2 by default, or any causal LM by name. Parameters are fp32 master weights by default."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.loss.loss_utils import ForCausalLMLoss
from transformers.utils import logging

from ..errors import closest
from ..settings.fields import Settings
from .probe import longest_row, text_config, vocab_size

# How the text part of a model that reads images or sound, too, is called in its weights, and what it is called alone.
TEXT_PART = {
    r"^(model\.)?language_model\.lm_head\.": "lm_head.",
    r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.",
}


def default_config() -> GPT2Config:
    """A GPT-2 small enough for a laptop: 5.3 million parameters, no dropout, so that every rung can be compared."""
    return GPT2Config(
        vocab_size=2048,
        n_positions=256,
        n_embd=256,
        n_layer=6,
        n_head=8,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )


def load_config(settings: Settings) -> PreTrainedConfig:
    """The model's config; of a model that reads images or sound, too, that of its text part.

    Raises:
        ValueError: the model type does not exist, or an override does not fit.
        OSError: the config is neither a folder nor to be had from the Hub.
    """
    source = settings.model_name_or_path or settings.config_name
    if source:
        config = AutoConfig.from_pretrained(source)
    elif settings.model_type:
        if settings.model_type not in CONFIG_MAPPING:
            near = closest(settings.model_type, CONFIG_MAPPING.keys())
            raise ValueError(f"no such model type{near}; see Transformers' list of causal language models")
        config = CONFIG_MAPPING[settings.model_type]()
    else:
        config = default_config()
    config = text_part(config)
    if settings.config_overrides:
        config = _overridden(config, settings)
    # A key-value cache serves generation; in training it only holds memory.
    config.use_cache = False
    return config


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the causal language model in a larger one, or `config` itself."""
    text = text_config(config)
    return text if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else config


def _overridden(config: PreTrainedConfig, settings: Settings) -> PreTrainedConfig:
    """The config with `--config_overrides`, and without special tokens that then lie outside its vocabulary."""
    overrides = settings.config_overrides
    config.update_from_string(overrides)
    changes = {name: getattr(config, name) for name in (pair.partition("=")[0] for pair in overrides.split(","))}
    known = vocab_size(config)
    for name, value in config.to_dict().items():
        special = name.endswith("_token_id") and name not in changes and isinstance(value, int)
        if special and known is not None and value >= known:
            changes[name] = None
    if settings.model_type:
        # Made anew: sizes that follow from others, as the heads of keys from all heads, follow from the new ones.
        return type(config)(**changes)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def problems(settings: Settings, load: Callable[[Settings], PreTrainedConfig] = load_config) -> list[str]:
    """What is wrong with the model asked for, found without building it. `load` gives its config."""
    try:
        config = load(settings)
    except Exception as error:
        # Configs come from the Hub and from other people's code, which raise anything.
        return [f"{_named(settings)}: {_first_line(error)}"]
    if reason := _why_no_causal_lm(config):
        return [f"{_named(settings)}: {reason}"]
    found = []
    longest = longest_row(config, settings.block_size)
    if longest < settings.block_size:
        found.append(
            f"--block_size {settings.block_size} is longer than the model's {longest} positions; "
            f"use --block_size {longest} or less"
        )
    if getattr(config, "output_router_logits", False):
        mend = f"false in {settings.model_name_or_path}/config.json" if settings.model_name_or_path else "false"
        found.append(
            "output_router_logits is true: each micro-batch would add a loss of its router, which is no sum over "
            f"tokens, so that accumulation would train another model; set output_router_logits={mend}"
        )
    if settings.attn_implementation:
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, attn_implementation=settings.attn_implementation)
        except Exception as error:
            found.append(f"--attn_implementation {settings.attn_implementation}: {_first_line(error)}")
        else:
            # Transformers takes another one of the same kind where that is not installed or not the model's.
            if (taken := model.config._attn_implementation) != settings.attn_implementation:
                found.append(
                    f"--attn_implementation {settings.attn_implementation}: Transformers takes {taken} in its place "
                    "here; name that one, or leave it out"
                )
    return found


def _why_no_causal_lm(config: PreTrainedConfig) -> str | None:
    """Why no row of tokens can be learnt by a model from this config, if so."""
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code:
        return (
            f"{config.model_type} is not a causal language model in Transformers; use one that "
            "AutoModelForCausalLM knows, as gpt2 or llama"
        )
    if vocab_size(config) is None:
        return f"{config.model_type} has no vocab_size of its own: it is no model of text; use a causal language model"
    return None


def _named(settings: Settings) -> str:
    """The flags that name the model."""
    named = ("model_name_or_path", "config_name", "model_type", "config_overrides")
    return " ".join(f"--{name} {value}" for name in named if (value := getattr(settings, name)))


def build_model(settings: Settings, config: PreTrainedConfig | None = None) -> PreTrainedModel:
    """Builds or loads the model with parameters of `settings.dtype`, whatever dtype they were saved in.

    That is fp32 by default: the small updates of AdamW get lost in half-precision parameters. `config` is the one that
    was opened before [loads it].
    """
    if not sys.stderr.isatty():
        # A bar of loaded weights is for a person who waits; in a log file it is noise.
        logging.disable_progress_bar()
    # The model keeps its config and changes it; the one that was opened stays as it is.
    config = copy.deepcopy(config) if config else load_config(settings)
    dtype = getattr(torch, settings.dtype)
    attention = {"attn_implementation": settings.attn_implementation} if settings.attn_implementation else {}
    if settings.model_name_or_path:
        whole = AutoConfig.from_pretrained(settings.model_name_or_path)
        names = {"key_mapping": TEXT_PART} if type(whole) is not type(config) else {}
        model = AutoModelForCausalLM.from_pretrained(
            settings.model_name_or_path, config=config, dtype=dtype, **attention, **names
        )
    else:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, **attention)
    model.loss_function = CausalLMLoss()
    return model


class CausalLMLoss:
    """Transformers' own loss of causal language models, which notes whether it is told what to divide by.

    Some models compute their loss themselves and ignore `num_items_in_batch`: accumulation would then scale their
    gradients. Transformers finds the function by the class's name, which for GPT2LMHeadModel says nothing; its warning
    about that would also break a compiled graph.
    """

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
        return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch, **kwargs)


def save_model(accelerator: Accelerator, model: nn.Module, folder: Path) -> None:
    """Saves an ordinary Transformers folder of a prepared model, be it sharded. Call it in every process."""
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


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
