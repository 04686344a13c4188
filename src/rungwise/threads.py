"""How many threads this process computes with on the CPU, and whose choice that is: a person's goes before ours."""

import os

import psutil
import torch

# Variables that `accelerate launch` and `torchrun` leave in what they start.
LAUNCHED = ("ACCELERATE_MIXED_PRECISION", "TORCHELASTIC_RUN_ID")
FLAG = "--num_cpu_threads_per_process"

_shared = False


def share_cores() -> None:
    """Shares the cores among this machine's processes, unless somebody chose a number of threads.

    `accelerate launch` and `torchrun` set OMP_NUM_THREADS=1 where the person set nothing. Without a launcher the
    choice is the person's, or PyTorch's own.
    """
    global _shared
    if _launched(os.environ) and os.environ.get("OMP_NUM_THREADS") == "1" and _chosen() is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        _shared = True


def origin() -> str:
    """Who chose the number of threads: a variable or a flag of the person, the launcher, PyTorch or Rungwise."""
    if _shared:
        return "all cores, shared among this machine's processes"
    return _chosen() or ("the launcher" if "OMP_NUM_THREADS" in os.environ else "PyTorch")


def _launched(environ: dict[str, str]) -> bool:
    return any(name in environ for name in LAUNCHED)


def _chosen() -> str | None:
    """By what a person chose the number of threads, if one did.

    In this process's environment the launcher's OMP_NUM_THREADS=1 looks like a person's. The launcher's own, as it was
    when it started, has the person's alone.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        return None
    if not _launched(os.environ):
        return "OMP_NUM_THREADS"
    try:
        launcher = next(parent for parent in psutil.Process().parents() if not _launched(parent.environ()))
        if any(word.partition("=")[0].replace("-", "_") == FLAG.replace("-", "_") for word in launcher.cmdline()):
            return FLAG
        return "OMP_NUM_THREADS" if "OMP_NUM_THREADS" in launcher.environ() else None
    except (psutil.Error, OSError, StopIteration):
        # Where it cannot be told, what a person may have set is left alone.
        return "OMP_NUM_THREADS"
