"""Imports of PyTorch, Transformers and what stands on them: a million objects, and as long as the process lives."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_kept = False


@contextmanager
def kept() -> Iterator[None]:
    """Keeps Python's garbage collector from looking through what is imported inside, then and later.

    Else a short run spends half of its time on that, and a round of it may fall into a step that is timed. Only the
    first time in a process: what exists later may be garbage one day.
    """
    global _kept
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not _kept:
            _kept = True
            gc.freeze()
        if enabled:
            gc.enable()
