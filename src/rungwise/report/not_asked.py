"""Why a claim is not about a pair of rungs: each takes the first of them and gives a reason in words, or ''."""

import math

from ..settings.fields import FIELDS, is_default_model
from .rung_result import RungResult


def another_model(rung: RungResult) -> str:
    """What is saved hangs on a model's sizes: fixed bounds of it are the default model's, all trained."""
    result = rung.rounds[0]
    if not is_default_model(result["settings"], result["origins"]):
        return "the bound is that of the default model"
    # Older results do not tell.
    trained = result["evidence"].get("trained_parameters", 1)
    return "the bound is that of a model that is trained as a whole" if trained < 1 else ""


def fewer_tokens(rung: RungResult) -> str:
    """Fewer tokens in a process than by default have fewer activations."""
    usual = {name: FIELDS[name].default for name in ("global_batch_size", "block_size")}
    tokens = math.prod(rung.settings.get(name, default) for name, default in usual.items())
    fewer = tokens / rung.settings.get("num_processes", 1) < math.prod(usual.values())
    return "the bound is that of the default batch, which has more tokens" if fewer else ""


def fused(rung: RungResult) -> str:
    """bf16 halves what a chain of operators keeps, too, of which a fused one keeps little."""
    return "a fused activation keeps little that could be halved" if rung.settings.get("fused_activation") else ""


def mostly_weights(rung: RungResult) -> str:
    """What acts on activations can save no more than there are."""
    if rung.peak is None or rung.memory("activations_mib") >= 0.5 * rung.peak:
        return ""
    return "most of the peak is parameters, gradients and optimizer state"


def compiled(rung: RungResult) -> str:
    """Checkpointing's claims are about eager mode: a compiler chooses by itself what to recompute."""
    return "the compiler recomputes, too" if rung.settings.get("torch_compile") else ""


def dropout(rung: RungResult) -> str:
    """Losses are not the same where random numbers are drawn batch by batch."""
    drops = rung.rounds[0]["evidence"].get("dropout")
    return "dropout draws other numbers for other micro-batches" if drops else ""
