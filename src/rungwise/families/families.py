"""Families of causal language models that techniques are tried on, small and with random weights.

Twelve by name, and every model type that Transformers has a causal language model for, made small from its default
config.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..model.config import text_part
from ..model.probe import SWITCHES
from ..model.shrink import shrink

BLOCK_SIZE = 32
# Parameters of a model that counts as small.
LARGEST = 5_000_000


@dataclass(frozen=True)
class Family:
    """A family by its name, the `model_type` that Transformers knows it by, and tiny sizes if it has any here."""

    name: str
    model_type: str
    config_overrides: str = ""

    @property
    def model_class(self) -> str:
        """The class that Transformers trains it with."""
        return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.model_type]

    @property
    def flags(self) -> list[str]:
        """The flags of `ablate.py` that build it in its tiny sizes."""
        flags = ["--model_type", self.model_type, "--config_overrides", self.config_overrides]
        return [*flags, "--block_size", str(BLOCK_SIZE)]


# Two heads of queries share one of keys; a head is 16 wide.
_DECODER = "vocab_size=256,hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2"
_GROUPED = f"{_DECODER},num_key_value_heads=1"

FAMILIES = (
    Family(
        "GPT-2",
        "gpt2",
        "vocab_size=256,n_positions=32,n_embd=32,n_layer=2,n_head=2,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0",
    ),
    Family("GPT-NeoX", "gpt_neox", _DECODER),
    Family(
        "OPT", "opt", "vocab_size=256,hidden_size=32,ffn_dim=64,num_hidden_layers=2,num_attention_heads=2,dropout=0"
    ),
    Family("Llama", "llama", _GROUPED),
    # A window shorter than a row.
    Family("Mistral", "mistral", f"{_GROUPED},sliding_window=16"),
    Family("Qwen3", "qwen3", f"{_GROUPED},head_dim=16"),
    # Of six blocks five look back 16 tokens, the sixth sees the whole row.
    Family(
        "Gemma 3",
        "gemma3_text",
        "vocab_size=256,hidden_size=32,intermediate_size=64,num_hidden_layers=6,num_attention_heads=2,"
        "num_key_value_heads=1,head_dim=16,query_pre_attn_scalar=16,sliding_window=16",
    ),
    Family("Phi-3", "phi3", _GROUPED),
    Family("OLMo 2", "olmo2", _GROUPED),
    Family("Mixtral", "mixtral", f"{_GROUPED},num_local_experts=4"),
    Family("Qwen3-MoE", "qwen3_moe", f"{_GROUPED},moe_intermediate_size=32,num_experts=4,num_experts_per_tok=2"),
    Family(
        "Mamba 2",
        "mamba2",
        "vocab_size=256,hidden_size=32,num_hidden_layers=2,num_heads=4,head_dim=16,n_groups=1,state_size=16,"
        "chunk_size=16",
    ),
)

# By model type, what its default config leaves open and its model does not do without.
_LEFT_OPEN: dict[str, dict[str, Any]] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    # Positions are the cells of a grid, which a row has to fill.
    "reformer": {"axial_pos_shape": [4, BLOCK_SIZE // 4], "axial_pos_embds_dim": [16, 16], "is_decoder": True},
    "xmod": {"default_language": "en_XX"},
}


def model_types() -> list[str]:
    """Every model type that Transformers has a causal language model for."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def small_config(model_type: str) -> PreTrainedConfig:
    """A small config of this type, without dropout and causal if a field of it decides that.

    Raises:
        Exception: whatever the config's class has against its own defaults or the small sizes.
    """
    config = text_part(CONFIG_MAPPING[model_type](**_LEFT_OPEN.get(model_type, {})))
    # A router's own loss is no sum over tokens, and refused.
    for name, value in {**SWITCHES, "output_router_logits": False}.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return shrink(config)


def write_small(model_type: str, folder: Path) -> list[str]:
    """Writes `small_config` into a folder; returns the flags of `ablate.py` that build a model from it.

    Raises:
        Exception: as `small_config`, or what the model has against being built from it.
    """
    config = small_config(model_type)
    with torch.device("meta"):
        size = AutoModelForCausalLM.from_config(config).num_parameters()
    if size > LARGEST:
        raise ValueError(f"{size:,} parameters are left")
    config.save_pretrained(folder)
    return ["--config_name", str(folder), "--block_size", str(BLOCK_SIZE)]
