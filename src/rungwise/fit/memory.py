"""How much memory there is: as a person writes it, of a GPU by its name, or of this machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

from ..device import device_name, measured_accelerator, native_precision
from ..metrics.memory import MIB
from .gpus import find_gpu

UNITS = {"MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "MB": 10**6, "GB": 10**9, "TB": 10**12}
AUTO = "auto"
# What an allocator's peak leaves out, by the device. CUDA: a context of some hundred MiB, the kernels that libraries
# load, and pieces of the allocator's segments that nothing fits into. CPU: Python and its packages, about 700 MiB.
RESERVES = {"cpu": 1024.0, "cuda": 1024.0}
LEFT_OUT = {
    "cpu": "Python and its packages",
    "cuda": "CUDA's context, loaded kernels, fragments",
}


@dataclass(frozen=True)
class Room:
    """The memory that one process may take of its device.

    Attributes:
        device: cpu or cuda.
        here: whether it is this machine's.
        mib: what there is, in MiB.
        reserve: MiB of it that are left to what a forecast does not count.
        words: whose it is, and who says so.
        precision: what products are to be computed in there: no (fp32), bf16 or fp16.
        capability: of an NVIDIA GPU that is known by its name.
    """

    device: str
    here: bool
    mib: float
    reserve: float
    words: str
    precision: str
    capability: tuple[int, int] | None = None

    @property
    def free(self) -> float:
        """What a forecast is held against, in MiB."""
        return self.mib - self.reserve


def find_room(
    memory: str | None, gpu: str | None, reserve: str | None, processes: int, errors: list[str]
) -> Room | None:
    """The room that is asked about; None and what is wrong with the question.

    Args:
        memory: a size, or `auto`; beside `gpu` a part of its memory.
        gpu: a name; without one it is this machine's device.
        reserve: a size [by the device].
        processes: how many share a CPU's memory; GPUs they have one each.
        errors: gets a message for each problem.
    """
    asked = None if memory in (None, AUTO) else parse_size("--memory", memory, errors)
    kept = None if reserve is None else parse_size("--reserve", reserve, errors)
    if memory is None and gpu is None:
        errors.append("--memory is required, as in --memory 16GiB; or --memory auto, or --gpu NAME")
    if memory == AUTO and gpu is not None:
        errors.append(f"--memory auto is this machine's, and --gpu {gpu} is not asked of it; drop one")
    known = find_gpu(gpu, errors) if gpu is not None else None
    if known and asked is not None and asked > known.gib * 1024:
        errors.append(
            f"--memory {memory} is more than the {known.gib:g} GiB that PyTorch reports of --gpu {gpu}; beside it "
            "--memory is the part that is yours: lower it, or drop one"
        )
    if errors:
        return None
    if known:
        device, precision, here = "cuda", known.precision, measured_accelerator() is not None
        there_is, whose = known.gib * 1024, f"{gpu}, as PyTorch reports it"
    else:
        device, precision, there_is, whose = this_machine()
        here = True
        if device not in RESERVES:
            errors.append(f"there is no forecast for this machine's {device}; name a GPU in --gpu")
            return None
        share = processes if device == "cpu" else 1
        there_is, asked = there_is / share, None if asked is None else asked / share
        whose += f", shared by {processes} processes" if share > 1 else ""
    mib = there_is if asked is None else asked
    words = whose if asked is None else f"--memory {memory}, {whose}" if known else f"--memory {memory}"
    kept = RESERVES[device] if kept is None else kept
    room = Room(device, here, mib, kept, words, precision, known.capability if known else None)
    if room.free <= 0:
        errors.append(f"--reserve leaves nothing of {mib:,.0f} MiB (it is {kept:,.0f}); lower it")
    return room


def this_machine() -> tuple[str, str, float, str]:
    """This machine's device, what to compute in on it, the MiB that are free of it now, and its name."""
    device = measured_accelerator() or torch.device("cpu")
    if device.type == "cpu":
        free = psutil.virtual_memory().available
    else:
        free, _ = torch.get_device_module(device).mem_get_info()
    return device.type, best(native_precision(device)), free / MIB, f"free here, {device_name(device)}"


def best(native: Sequence[str]) -> str:
    """Of the dtypes that a device multiplies in hardware the one that costs nothing: bf16, else fp16 on a GPU."""
    if "bf16" in native:
        return "bf16"
    # A CPU that has fp16 without bf16 is not known.
    return "fp16" if "fp16" in native else "no"


def parse_size(flag: str, text: str, errors: list[str]) -> float | None:
    """A size in MiB; None and a problem if it is none. A number without a unit may be meant in two ways."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([A-Za-z]+)", text.strip())
    if found and found[2] in UNITS:
        return float(found[1]) * UNITS[found[2]] / MIB
    errors.append(
        f"{flag} {text!r}: write a number and a unit, as 16GiB (16 x 2**30 bytes); units: {', '.join(UNITS)}"
    )
    return None
