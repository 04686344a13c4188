"""What fp32 matrix products are computed in: switches and variables turn them into TF32 or bf16 without a word."""

import os

import torch

from .settings.fields import Settings

# Read by oneDNN, which multiplies on the CPU; the first that is set counts.
ONEDNN = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE")
# CUDA's switch as it stood before `--tf32` turned it.
_before_flag: str | None = None


def set_tf32(wanted: bool) -> None:
    """Has CUDA multiply fp32 in TF32, or as it did before this was first asked for."""
    global _before_flag
    matmul = torch.backends.cuda.matmul
    if wanted and _before_flag is None:
        _before_flag, matmul.fp32_precision = matmul.fp32_precision, "tf32"
    elif not wanted and _before_flag is not None:
        matmul.fp32_precision, _before_flag = _before_flag, None


def products(device_type: str, *, with_flag: bool = True) -> str:
    """The format that fp32 matrix products are rounded to on a device: ieee (fp32 itself), tf32, bf16 or f16.

    Not `with_flag` it is what they would be without `--tf32`: what is a setting is no part of the environment.
    """
    if device_type == "cuda":
        switch = torch.backends.cuda.matmul.fp32_precision if with_flag or _before_flag is None else _before_flag
        # "0" forbids TF32 to NVIDIA's libraries, whatever PyTorch asks them for; others are said to allow it.
        found = {None: switch, "0": "ieee"}.get(os.environ.get("NVIDIA_TF32_OVERRIDE"), "tf32")
    else:
        found = torch.backends.mkldnn.matmul.fp32_precision
        if found == "none":
            mode = next((os.environ[name] for name in ONEDNN if name in os.environ), "strict").lower()
            # oneDNN's "any" is the least of them.
            found = {"strict": "none", "any": "bf16"}.get(mode, mode)
    return "ieee" if found == "none" else found


def exact_convolutions() -> None:
    """Has cuDNN convolve in fp32 what is fp32: by PyTorch's default it takes TF32, even where products may not."""
    torch.backends.cudnn.allow_tf32 = False


def validate(settings: Settings, device_type: str) -> list[str]:
    """Why an fp32 run would not compute in fp32 here, or not in TF32, with what asks for it and how to stop it."""
    if settings.tf32:
        return _why_no_tf32(device_type)
    found = products(device_type, with_flag=False)
    if settings.precision != "no" or found == "ieee":
        return []
    remedy, named = "unset it, or train in bf16", os.environ.get
    if device_type == "cuda":
        variables = [name for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") if named(name)]
        switch = "torch.backends.cuda.matmul.fp32_precision"
    else:
        switch = "torch.backends.mkldnn.matmul.fp32_precision"
        by_switch = torch.backends.mkldnn.matmul.fp32_precision != "none"
        variables = [] if by_switch else [name for name in ONEDNN if named(name)]
    culprit = " and ".join(f"{name}={named(name)}" for name in variables)
    if not culprit:
        culprit = f"{switch} {found}"
        remedy = "call torch.set_float32_matmul_precision('highest') in the script, or train in bf16"
    return [f"fp32 was asked for, and {culprit} has fp32 matrix products computed in {found}; {remedy}"]


def _why_no_tf32(device_type: str) -> list[str]:
    if device_type != "cuda":
        return ["--tf32 acts on NVIDIA GPUs alone, and this run is on another device; leave it out"]
    if os.environ.get("NVIDIA_TF32_OVERRIDE") == "0":
        return ["--tf32 was asked for, and NVIDIA_TF32_OVERRIDE=0 forbids it; unset it, or leave the flag out"]
    if torch.cuda.get_device_capability()[0] < 8:
        return ["--tf32 needs a GPU of compute capability 8.0 or more, as an A100; leave it out"]
    return []
