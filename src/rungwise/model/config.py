"""The model's config: a small GPT-2's by default, or that of any causal LM by name; what is wrong with its source."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, GPT2Config, PreTrainedConfig
from transformers.utils import find_adapter_config_file

from ..errors import closest
from ..settings.fields import Settings
from .probe import text_config, vocab_size

# Ten times as many as the deepest have; each takes milliseconds to be looked at before anything is built.
MOST_LAYERS = 1000
# What a config must not switch on or off for a run: by its field, the value it needs, and what would happen otherwise.
NEEDED: dict[str, tuple[bool, str]] = {
    "return_dict": (True, "the model would give back a tuple, of which nobody knows where its loss is"),
    "gradient_checkpointing": (
        False,
        "blocks would be recomputed on every rung; --gradient_checkpointing is the flag for that",
    ),
    "output_hidden_states": (False, "each layer's output would be kept in memory, which no rung asks for"),
    "output_attentions": (False, "each layer's attention would be kept in memory, which no rung asks for"),
    "output_router_logits": (
        False,
        "each micro-batch would add a loss of its router, which is no sum over tokens, so that accumulation would "
        "train another model",
    ),
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
        ValueError: the model type does not exist, the source is not one to train from, or an override does not fit.
        OSError: the config is neither a folder nor to be had from the Hub.
    """
    source = settings.model_name_or_path or settings.config_name
    if source:
        config = text_part(whole_config(settings))
    elif settings.model_type:
        if settings.model_type not in CONFIG_MAPPING:
            near = closest(settings.model_type, CONFIG_MAPPING.keys())
            raise ValueError(f"no such model type{near}; see Transformers' list of causal language models")
        config = text_part(CONFIG_MAPPING[settings.model_type]())
    else:
        config = default_config()
    if settings.config_overrides:
        config = _overridden(config, settings)
    # A key-value cache serves generation; in training it only holds memory.
    config.use_cache = False
    return config


def whole_config(settings: Settings) -> PreTrainedConfig:
    """The config in the folder or on the Hub that `settings` name, all its parts, without overrides.

    Raises:
        ValueError: the source is an adapter, quantized, of an unknown type, or needs code that is not trusted.
        OSError: there is none.
    """
    source = settings.model_name_or_path or settings.config_name
    _check_source(source)
    values = None
    with suppress(TypeError):  # which some releases of Transformers raise over JSON that is no object
        values, _ = PreTrainedConfig.get_config_dict(source)
    if not isinstance(values, dict):
        raise ValueError("its config.json holds no object; give the one of the model")
    _check_values(values, settings)
    # Said in so many words: left out, Transformers asks at the terminal.
    return AutoConfig.from_pretrained(source, trust_remote_code=settings.trust_remote_code)


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the causal language model in a larger one, or `config` itself."""
    text = text_config(config)
    return text if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else config


def why_not(config: PreTrainedConfig, settings: Settings) -> str | None:
    """Why no row of tokens can be learnt by a model from this config, if so."""
    own_code = "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {})
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not own_code:
        return (
            f"{config.model_type} is not a causal language model in Transformers; use one that "
            "AutoModelForCausalLM knows, as gpt2 or llama"
        )
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING and not settings.trust_remote_code:
        return _untrusted(config.model_type)
    if vocab_size(config) is None:
        return f"{config.model_type} has no vocab_size of its own: it is no model of text; use a causal language model"
    if vocab_size(config) < 2:
        return f"its vocab_size is {vocab_size(config)}, of which there is nothing to learn; give one of at least 2"
    layers = getattr(text_config(config), "num_hidden_layers", 1)
    if isinstance(layers, int) and not 1 <= layers <= MOST_LAYERS:
        return f"it has {layers} layers, which no model has; give one of 1 to {MOST_LAYERS}"
    return None


def switched(config: PreTrainedConfig, settings: Settings) -> list[str]:
    """What of training the config itself decides, and must not."""
    source = settings.model_name_or_path or settings.config_name
    where = f" in {source}/config.json, or --config_overrides {{0}}" if source else " in --config_overrides"
    found = []
    for name, (needed, why) in NEEDED.items():
        if (value := getattr(config, name, None)) is not None and bool(value) != needed:
            written = f"{name}={str(needed).lower()}"
            found.append(f"{name} is {str(value).lower()}: {why}; set {written}{where.format(written)}")
    return found


def _check_source(source: str) -> None:
    """Raises a ValueError if a folder, file or Hub id has no config of a whole model."""
    path = Path(source)
    if path.suffix == ".gguf" or (path.is_dir() and not (path / "config.json").exists() and [*path.glob("*.gguf")]):
        raise ValueError(
            "GGUF weights are quantized for inference; convert them once by AutoModelForCausalLM.from_pretrained("
            "folder, gguf_file=name).save_pretrained(new_folder), and give that"
        )
    if path.is_file():
        raise ValueError("is a file; give the folder that save_pretrained wrote")
    # Transformers would load what the adapter names in its place, with the adapter on it.
    if adapter := find_adapter_config_file(source):
        raise ValueError(
            f"is an adapter ({Path(adapter).name}), no whole model; merge it first by AutoPeftModelForCausalLM."
            "from_pretrained(folder).merge_and_unload().save_pretrained(new_folder), and give that, or give the "
            "model it was trained on and --use_peft"
        )
    if path.is_dir() and not (path / "config.json").exists():
        raise ValueError("no config.json in it; give the folder that save_pretrained wrote")


def _check_values(values: dict[str, Any], settings: Settings) -> None:
    """Raises a ValueError if nothing can be trained from these values of a config.json."""
    quantized = values.get("quantization_config") or values.get("compression_config")
    if quantized:
        how = quantized.get("quant_method", "quantized") if isinstance(quantized, dict) else "quantized"
        raise ValueError(
            f"its weights are quantized ({how}), which a run cannot train as they are; give the checkpoint in fp32, "
            "bf16 or fp16 that they were made from"
        )
    model_type, own_code = values.get("model_type"), "AutoConfig" in (values.get("auto_map") or {})
    if model_type in CONFIG_MAPPING or (own_code and settings.trust_remote_code):
        return
    if own_code:
        raise ValueError(_untrusted(model_type))
    if model_type is None:
        raise ValueError("its config.json has no model_type; add the one it is of, as gpt2 or llama")
    near = closest(model_type, CONFIG_MAPPING.keys())
    raise ValueError(
        f"Transformers {transformers.__version__} has no model type {model_type}{near}; upgrade it by "
        "pip install -U transformers, or use another model"
    )


def _untrusted(model_type: str | None) -> str:
    return (
        f"{model_type} is made of Python code that comes with it and is not run unasked; read that code, then add "
        "--trust_remote_code"
    )


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
