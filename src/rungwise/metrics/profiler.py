"""PyTorch's profiler, of which a process has one."""

from typing import Any

import torch
from torch.profiler import profile


def own_profiler(**options: Any) -> profile:
    """A profiler of this house, made with these options.

    Raises:
        RuntimeError: another tool's is at work. A second one would take its events away and not say so.
    """
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another tool holds PyTorch's profiler; end that, or leave it out")
    return profile(**options)
