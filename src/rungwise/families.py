"""Families of causal language models that every technique is tried on, small and with random weights."""

from dataclasses import dataclass

from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING

BLOCK_SIZE = 32


@dataclass(frozen=True)
class Family:
    """A family by its usual name, the `model_type` that Transformers knows it by, and tiny sizes."""

    name: str
    model_type: str
    config_overrides: str

    @property
    def model_class(self) -> str:
        """The class that Transformers trains it with."""
        return MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[self.model_type]].__name__

    @property
    def flags(self) -> list[str]:
        """The flags of `ablate.py` that build it."""
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
