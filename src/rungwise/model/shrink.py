"""Makes a config small: a model of the same kind, some layers deep and 32 wide, from any causal LM's config alone.

Fields are known by what they are called. A size becomes the smaller of itself and the one below; of the layers one of
each kind stays, at least two. How many positions there are is left as it is.
"""

import re
from typing import Any

from transformers import PreTrainedConfig

VOCABULARY = 256
# The first pattern that fits a whole name decides.
_SIZES = {
    re.compile(names): size
    for names, size in {
        r".*_token_(id|index)": VOCABULARY - 1,
        r"(type|task_type|shape|pronunciation|audio)_vocab_size": 8,
        r"(.*_)?vocab_size(_per_layer_input|_base)?|.*_vocab": VOCABULARY,
        r"(.*_)?(kv_heads|key_value_heads|kv_n_heads|num_query_groups)": 2,
        # A head of these is 16 wide, and all of them are twice as wide as the model.
        r"num_heads|.*mamba.*heads": 4,
        r"(.*_)?(n_heads?|attention_heads|key_heads|value_heads)|heads_per_ngram": 2,
        # A rotary half and one without positions.
        r"qk_head_dim": 32,
        r"(.*_)?(head_dim|headdim|d_head|dim_head|attention_head_size|d_kv|rotary_dim)": 16,
        r"(.*_)?(rank|lowrank|d_rel|state_size|d_state)": 16,
        r"(moe|expert|shared|shared_expert)_.*(intermediate|hidden)_size": 32,
        r"(.*_)?(intermediate|ffn_hidden|feed_forward)_size": 64,
        r"(.*_)?(ffn_dim|d_ff|dff|dim_ff|d_inner|n_inner|mlp_dim)": 64,
        r"(.*_)?(hidden_size(_\w+)?|embedding_size|embedding_dim|emb_dim|embed_dim|proj_dim)": 32,
        r"d_model|n_embd|lru_width": 32,
        r"(.*_)?(num_experts|n_routed_experts|local_experts|zero_expert_num)": 4,
        r"num_experts_per_tok(en)?|moe_top_?k|moe_k|top_k_experts": 2,
        # Every second layer is of the other kind; the first one alone is dense.
        r".*_layer_period|.*_layer_interval|full_attention_interval|layer_group_size": 2,
        r".*_layer_offset|first_k_dense_replace|num_dense_layers|moe_layer_start_index": 1,
        r"n_group|num_expert_group|topk_group|n_groups": 1,
        r"(.*_)?(sliding_window|window_size|window_len|chunk_size|chunk_length|local_attention)": 16,
    }.items()
}
_DEPTHS = re.compile(r"num_hidden_layers|n_layers?|num_layers|num_blocks|(num_)?(encoder|decoder)_layers")
_HEADS = re.compile(r"num_attention_heads|n_heads?|num_heads")
_KEY_HEADS = re.compile(r"(.*_)?(kv_heads|key_value_heads|kv_n_heads|num_query_groups)")
# Sizes that a config may leave to its model, which some models do not work out.
_UNSET = {
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
}
# By model type: sizes that hang together in a way that no name tells.
_TOGETHER: dict[str, dict[str, Any]] = {
    "dbrx": {"attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0}},
    # Three stacks of two layers each; which layers are attention follows from their number.
    "dory": {
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
        "num_hidden_layers": 6,
        "layer_types": None,
    },
    "dots3_note_text": {"head_dim": 32},
    "flint": {"mlp_only_layers": [0]},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 16},
    # The second half of the layers uses the keys and values of the first.
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": [64] * 4,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    # Of two layers the second is run over and over.
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 1,
        "loop_layer_index_start": 1,
        "loop_layer_index_end": 2,
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 16,
        "indexer_compress_ratio": 4,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    # Attention reads the hidden state and the embedding side by side, and is one module for all hybrid layers.
    "zamba": {
        "attention_head_dim": 32,
        "attention_hidden_size": 64,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        "attention_head_dim": 32,
        "attention_hidden_size": 64,
        "mamba_headdim": 16,
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [1, 3],
    },
}


def shrink(config: PreTrainedConfig) -> PreTrainedConfig:
    """A small config of the same kind, without dropout. `config` stays as it is.

    Raises:
        Exception: whatever the config's class has against the small sizes.
    """
    small = type(config).from_dict(_small(config.to_dict()))
    small.use_cache = False
    return small


def _small(values: dict[str, Any]) -> dict[str, Any]:
    """A config's values, and those of the configs in it, made small."""
    depth = max((value for name, value in values.items() if _DEPTHS.fullmatch(name) and value), default=0)
    heads = max((value for name, value in values.items() if _HEADS.fullmatch(name) and value), default=0)
    per_layer = {int(index): changes for index, changes in values.get("per_layer_config", {}).items()}
    kept = _kept_layers(values, per_layer, depth)
    small = {}
    for name, value in values.items():
        if name == "per_layer_config":
            small[name] = {kept.index(index): _small(per_layer[index]) for index in per_layer if index in kept}
        elif isinstance(value, dict):
            small[name] = _small(value) if "model_type" in value else value
        elif isinstance(value, list | tuple) and len(value) == depth > 0:
            small[name] = [_smaller(name, value[index]) for index in kept]
        elif _DEPTHS.fullmatch(name) and value:
            small[name] = len(kept)
        elif _KEY_HEADS.fullmatch(name) and value and value < heads:
            # Several heads of queries share one of keys.
            small[name] = 1
        else:
            small[name] = _smaller(name, value)
    return small | _TOGETHER.get(values.get("model_type"), {})


def _kept_layers(values: dict[str, Any], per_layer: dict[int, Any], depth: int) -> list[int]:
    """The first layer of each kind, as the config's lists of `depth` values tell kinds apart; at least two layers."""
    lists = [value for value in values.values() if isinstance(value, list | tuple) and len(value) == depth]
    kinds = [repr([value[index] for value in lists] + [per_layer.get(index)]) for index in range(depth)]
    kept = [index for index in range(depth) if kinds[index] not in kinds[:index]]
    others = [index for index in range(depth) if index not in kept]
    return sorted(kept + others[: max(0, 2 - len(kept))])


def _smaller(name: str, value: Any) -> Any:
    if value is None:
        return _UNSET.get(name)
    if isinstance(value, float) and "drop" in name:
        return 0.0
    if isinstance(value, list) and name.endswith("_token_id"):
        return [_smaller(name, one) for one in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    return next((min(value, size) for names, size in _SIZES.items() if names.fullmatch(name)), value)
