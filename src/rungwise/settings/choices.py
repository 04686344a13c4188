"""The values that settings may have, and what follows from them."""

SCHEDULERS = ("constant", "constant_with_warmup", "linear", "cosine", "cosine_with_restarts", "polynomial")
SCHEDULERS += ("inverse_sqrt",)
# Of the parameters: fp32 master weights, or all of training in bf16.
DTYPES = ("float32", "bfloat16")
# As Transformers names them.
OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adamw_torch_8bit", "adafactor", "sgd")
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Whose loop trains, and the script that does.
ENGINES = {"rungwise": "recipes/ablate.py", "trainer": "recipes/trainer.py"}
CHECKPOINTING_KWARGS = {"use_reentrant": bool, "every_n_layers": int, "offload": bool}
# The dtype, as PyTorch names it, that products are computed in under each precision.
COMPUTE_DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}


def compute_precision(mixed_precision: str, dtype: str) -> str:
    """What matrix products are computed in: autocast's precision, or without it the parameters' own."""
    own = next((precision for precision, name in COMPUTE_DTYPES.items() if name == dtype), "no")
    return own if mixed_precision == "no" else mixed_precision
