"""Mixed precision: products in bf16 or fp16 over fp32 master weights, by autocast; for fp16 with a gradient scaler."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor

from .. import float32
from ..settings.choices import COMPUTE_DTYPES
from ..settings.fields import Settings
from . import grouped_mm_autocast
from .seen import TOLERANCE, Seen, dtype_name

if TYPE_CHECKING:
    from transformers import Trainer

DTYPES = {precision: getattr(torch, name) for precision, name in COMPUTE_DTYPES.items()}


def validate(settings: Settings, device_type: str) -> list[str]:
    """Why fp32 would not be fp32 here, or fp16 would be."""
    found = float32.validate(settings, device_type)
    if settings.engine == "trainer" and settings.mixed_precision == "fp16" and device_type == "cpu":
        found.append(
            "fp16 by transformers.Trainer on a CPU: it trains in fp32 there, without a word; use "
            "accelerate_configs/bf16.yaml, or recipes/ablate.py"
        )
    return found


def install(settings: Settings) -> None:
    """Puts kernels in place for what autocast leaves out, and decides what fp32 products are computed in."""
    grouped_mm_autocast.install()
    float32.exact_convolutions()
    float32.set_tf32(settings.tf32)


def scale_gradients(accelerator: Accelerator, settings: Settings) -> None:
    """Switches autocast and the gradient scaler on where Accelerate leaves them out.

    On the CPU it accepts fp16 and then trains in fp32 without a scaler; PyTorch has both since 2.3.
    """
    if settings.mixed_precision == "fp16" and accelerator.scaler is None:
        accelerator.native_amp = True
        accelerator.scaler = torch.amp.GradScaler(accelerator.device.type)


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, as settings. Its model is the script's, and so is TF32 that nobody asked for."""
    args, device = trainer.args, trainer.args.device.type
    return {
        "mixed_precision": "fp16" if args.fp16 else "bf16" if args.bf16 else trainer.accelerator.mixed_precision,
        "dtype": parameter_dtype(model),
        "tf32": float32.products(device) == "tf32" if args.tf32 is None else args.tf32,
    }


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments."""
    asked = settings.mixed_precision
    return {"bf16": asked == "bf16", "fp16": asked == "fp16", "tf32": settings.tf32 or None}


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """The dtypes that products, parameters and residual stream had, and the scale that backward passes began with."""
    residual = seen.forward.residual_dtype
    found = {
        "compute_dtype": COMPUTE_DTYPES[seen.settings.precision],
        "parameter_dtype": parameter_dtype(seen.model),
        # None where it was not seen: in compiled code, or in blocks that have no norm.
        "residual_dtype": dtype_name(residual) if residual else None,
        "gradient_scaler": _scaled(seen.accelerator),
    }
    missing = [*_why_another_dtype(seen), *_why_not_scaled(seen)]
    device = seen.accelerator.device.type
    found["float32_products"] = float32.products(device)
    if seen.settings.tf32 and found["float32_products"] != "tf32":
        missing.append(f"tf32 was asked for, fp32 products are in {found['float32_products']}")
    return found, missing + float32.validate(seen.settings, device)


def update_evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether the optimizer was given what the step reports: unscaled, and clipped."""
    [norm] = seen.updates.gradient_norms
    sharded = any(isinstance(p, DTensor) for p in seen.model.parameters())
    if sharded and seen.accelerator.num_processes > 1:
        norm = seen.accelerator.reduce(norm.square(), "sum").sqrt()
    wanted = min(seen.step.grad_norm, seen.settings.max_grad_norm or float("inf"))
    if abs(float(norm) - wanted) <= TOLERANCE * wanted:
        return {}, []
    return {}, [
        f"the optimizer was given gradients of norm {float(norm):.4g}; unscaled they have "
        f"{seen.step.grad_norm:.4g}, and max_grad_norm is {seen.settings.max_grad_norm:g}"
    ]


def parameter_dtype(model: nn.Module) -> str:
    """The dtype of most parameters: a model may keep a few in fp32."""
    counts: Counter[torch.dtype] = Counter()
    for parameter in model.parameters():
        counts[parameter.dtype] += parameter.numel()
    return dtype_name(counts.most_common(1)[0][0])


def _why_another_dtype(seen: Seen) -> list[str]:
    """What is wrong with the dtypes of the products and the parameters, if anything."""
    asked, products = seen.settings, seen.forward.dtypes
    wanted = DTYPES[asked.precision]
    computed = seen.compiled.dtypes if seen.compiled else set().union(*products.values())
    parameters = parameter_dtype(seen.model)
    found = []
    if computed != {wanted}:
        what = f"mixed_precision {asked.mixed_precision}" if asked.dtype == "float32" else f"dtype {asked.dtype}"
        words = ", ".join(sorted(map(dtype_name, computed))) or "nothing that is known"
        others = [name for name, dtypes in products.items() if dtypes != {wanted}]
        where = f" ({len(others)} of {len(products)} products in another, as {others[0]})" if others else ""
        found.append(f"{what} was asked for, the model computed in {words}{where}")
    if parameters != asked.dtype:
        found.append(f"parameters in {asked.dtype} were asked for, they are in {parameters}")
    return found


def _scaled(accelerator: Accelerator) -> bool:
    return accelerator.scaler is not None and accelerator.scaler.is_enabled()


def _why_not_scaled(seen: Seen) -> list[str]:
    """What is wrong with the scale of what backward passes began with."""
    asked, scaled = seen.settings, _scaled(seen.accelerator)
    if scaled != (asked.mixed_precision == "fp16"):
        return ["fp16 was asked for without a gradient scaler" if not scaled else "a scaler without fp16"]
    # A backward pass begins with the scaler's scale / the micro-batches that the accelerator knows of.
    wanted = (seen.step.loss_scale or 1.0) / seen.accelerator.gradient_accumulation_steps
    began = [float(gradient) for gradient in seen.forward.loss_gradients]
    others = [gradient for gradient in began if abs(gradient / wanted - 1) > TOLERANCE]
    if not others:
        return []
    return [f"a backward pass began with a gradient of {others[0]:g}, loss scale and accumulation give {wanted:g}"]
