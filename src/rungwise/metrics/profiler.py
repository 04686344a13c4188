"""PyTorch's profiler, of which a process has one."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import profile

from ..signals import deferred


@contextmanager
def own_profiler(**options: Any) -> Iterator[profile]:
    """A profiler of this house, made with these options, at work inside.

    A signal waits until it has begun or ended: one that is torn in two breaks the process as that ends.

    Raises:
        RuntimeError: another tool's is at work. A second one would take its events away and not say so.
    """
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another tool holds PyTorch's profiler; end that, or leave it out")
    profiler, begun = profile(**options), False
    try:
        with deferred(), warnings.catch_warnings():
            # PyTorch 2.10 says that of several cycles the last is kept. There is one.
            warnings.filterwarnings("ignore", "Warning: Profiler clears events")
            profiler.start()
            begun = True
        yield profiler
    finally:
        if begun:
            with deferred():
                profiler.stop()
