"""What a run ran on and with: a figure means nothing without it."""

import os
import platform
import subprocess
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import float32, threads
from .device import device_name, measured_accelerator, native_precision

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "wandb", "rungwise")
# What PyTorch and its libraries read from the environment that changes speed, memory or results.
VARIABLES = (
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    *float32.ONEDNN,
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ATEN_CPU_CAPABILITY",
    "OMP_PROC_BIND",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)


def describe(device: torch.device) -> dict[str, Any]:
    """Versions, device, threads, precision support, switches, git commit and date."""
    return {
        **versions(),
        "platform": platform.platform(),
        "device": device.type,
        "device_name": device_name(device),
        "device_count": torch.accelerator.device_count() if device.type != "cpu" else 1,
        "threads": torch.get_num_threads(),
        "threads_origin": threads.origin(),
        "local_processes": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        "cores": os.cpu_count(),
        "native_precision": native_precision(device),
        **switches(device),
        "git_commit": _git_commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def versions() -> dict[str, str | None]:
    """Python's version and those of the packages that decide what a run measures."""
    packages = {name: _version(name) for name in PACKAGES}
    # PyTorch's own word says which build it is, too (+cpu, +cu130).
    return {"python": platform.python_version(), **packages, "torch": torch.__version__}


def switches(device: torch.device) -> dict[str, Any]:
    """What changes speed, or what a precision means, without standing in any setting."""
    backends, cudnn = torch.backends.cuda, torch.backends.cudnn
    kernels = ("flash", "mem_efficient", "math", "cudnn")
    return {
        "float32_products": float32.products(device.type, with_flag=False),
        "float32_convolutions": "tf32" if cudnn.conv.fp32_precision == "tf32" else "ieee",
        "fp16_accumulation": backends.matmul.allow_fp16_accumulation,
        "sdpa_backends": [name for name in kernels if getattr(backends, f"{name}_sdp_enabled")()],
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def machine() -> dict[str, Any]:
    """The environment of a run that starts here: `comparable` says what of it must stay the same."""
    return describe(measured_accelerator() or torch.device("cpu"))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        here = Path(__file__).parent
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
