"""The parts of the name of a run that was given none. Each is made from the settings, "" where it says nothing."""

import re
from collections.abc import Callable
from typing import Any


def model(field: str) -> Callable[[Any], str]:
    """The last part of a model's name, with nothing in it that a folder's name must not have."""
    return lambda s: re.sub(r"[^\w.+=-]+", "-", (getattr(s, field) or "").rstrip("/").split("/")[-1])


def when(field: str, name: str) -> Callable[[Any], str]:
    """A name for a setting that is on; it may hold settings in braces, as in `lora{lora_r}`."""
    return lambda s: name.format(**vars(s)) if getattr(s, field) else ""


def unless(field: str, usual: str) -> Callable[[Any], str]:
    """The value of a setting, where it is another than the usual one."""
    return lambda s: "" if getattr(s, field) == usual else getattr(s, field)


def precision(s: Any) -> str:
    name = "fp32" if s.precision == "no" else s.precision
    return name if s.dtype == "float32" else f"pure_{name}"


def accumulation(s: Any) -> str:
    return f"accum{s.gradient_accumulation_steps}" if s.gradient_accumulation_steps > 1 else ""


def every_n_layers(s: Any) -> str:
    every = (s.gradient_checkpointing_kwargs or {}).get("every_n_layers", 1)
    return f"every{every}" if isinstance(every, int) and every > 1 else ""


def compiling(s: Any) -> str:
    scope = "" if s.torch_compile_scope == "model" else f"_{s.torch_compile_scope}"
    return f"compile{scope}" if s.torch_compile else ""


def mode(s: Any) -> str:
    return s.torch_compile_mode if s.torch_compile and s.torch_compile_mode != "default" else ""


def budget(s: Any) -> str:
    return f"budget{s.activation_memory_budget:g}" if s.torch_compile and s.activation_memory_budget != 1 else ""


def processes(s: Any) -> str:
    return f"x{s.num_processes}" if s.num_processes > 1 else ""
