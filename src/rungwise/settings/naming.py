"""What a run is called that was given no name."""

import re

from .fields import Settings


def made_name(settings: Settings) -> str:
    """A name that says what is studied: precision, accumulation, techniques, model."""
    parts = [{"no": "fp32"}.get(settings.precision, settings.precision)]
    if settings.dtype != "float32":
        parts[0] = f"pure_{parts[0]}"
    if settings.gradient_accumulation_steps > 1:
        parts.append(f"accum{settings.gradient_accumulation_steps}")
    if settings.gradient_checkpointing:
        parts.append("ckpt")
    if settings.torch_compile:
        parts.append("compile" if settings.torch_compile_scope == "model" else "compile_regional")
        if settings.torch_compile_mode != "default":
            parts.append(settings.torch_compile_mode)
        if settings.activation_memory_budget != 1:
            parts.append(f"budget{settings.activation_memory_budget:g}")
    if settings.use_peft:
        parts.append(f"lora{settings.lora_r}")
    if settings.num_processes > 1:
        parts.append(f"{'fsdp2-' if settings.fsdp else ''}x{settings.num_processes}")
    model = settings.model_name_or_path or settings.config_name or settings.model_type
    if model:
        parts.insert(0, re.sub(r"[^\w.+=-]+", "-", model.rstrip("/").split("/")[-1]))
    return "-".join(parts)
