"""The device of a run: which one it is, what it is called, what it multiplies in hardware."""

import platform
from pathlib import Path

import torch

from .settings.fields import Settings

# The devices whose allocator counts its own peak; elsewhere (Apple's MPS, say) a run would have no memory figure.
MEASURED_ACCELERATORS = ("cuda", "xpu")


def measured_accelerator() -> torch.device | None:
    """This machine's accelerator, if it is one whose memory can be measured."""
    device = torch.accelerator.current_accelerator(check_available=True)
    return device if device is not None and device.type in MEASURED_ACCELERATORS else None


def device_type(settings: Settings) -> str:
    """The kind of device that a run with these settings uses here: cpu, cuda or xpu."""
    device = measured_accelerator()
    return "cpu" if settings.use_cpu or device is None else device.type


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


def synchronize(device: torch.device) -> None:
    """Waits for the device to finish what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()
