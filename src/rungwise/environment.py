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

PACKAGES = ("torch", "transformers", "accelerate", "datasets", "wandb", "rungwise")
# The devices whose allocator counts its own peak; elsewhere (Apple's MPS, say) a run would have no memory figure.
MEASURED_ACCELERATORS = ("cuda", "xpu")
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
        "float32_products": float32.products(device.type),
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


def measured_accelerator() -> torch.device | None:
    """This machine's accelerator, if it is one whose memory can be measured."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return device if device is not None and device.type in MEASURED_ACCELERATORS else None


def device_name(device: torch.device) -> str:
    """The device as its maker calls it."""
    if device.type != "cpu":
        return torch.get_device_module(device).get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def native_precision(device: torch.device) -> list[str]:
    """The dtypes this device multiplies in hardware; the others work too, slower."""
    if device.type == "cuda":
        return ["fp32", "fp16"] + ["bf16"] * torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "xpu":
        known = torch.xpu.get_device_properties(device)
        return ["fp32"] + ["fp16"] * known.has_fp16 + ["bf16"] * known.has_bfloat16_conversions
    # oneDNN, which multiplies matrices on the CPU, knows what this processor has instructions for.
    onednn = torch.ops.mkldnn
    found = ["fp32"]
    for name in ("bf16", "fp16"):
        supported = getattr(onednn, f"_is_mkldnn_{name}_supported", None)
        if supported and supported():
            found.append(name)
    return found


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
