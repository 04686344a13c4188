"""Keeps what ranks exchange on a CPU within sight of the profiler, which is told of what its own thread frees alone.

Gloo exchanges in threads of its own, each of which lets go of its tensors a moment behind the end of an exchange. A
tensor that such a thread frees, since it was the last to hold it, would count as held from there on.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from unittest import mock

import torch
from torch import distributed

# Behind an exchange that this thread has waited for.
SECONDS = 0.002


@contextmanager
def settled_exchanges() -> Iterator[None]:
    """Has this thread be the last that holds what is exchanged inside. Where nothing is, it does nothing."""
    if not distributed.is_initialized():
        yield
        return
    wait = distributed.Work.wait

    def wait_and_settle(work: distributed.Work, *timeout: timedelta) -> bool:
        done = wait(work, *timeout)
        # Here this thread holds the work, and by it the tensors.
        time.sleep(SECONDS)
        return done

    with (
        mock.patch.object(distributed.Work, "wait", wait_and_settle),
        mock.patch.object(distributed, "_broadcast_coalesced", _broadcast_each),
    ):
        yield


def _broadcast_each(group: distributed.ProcessGroup, tensors: Iterable[torch.Tensor], _: int, source: int) -> None:
    """What DDP begins with, tensor by tensor. Its own sends copies of many, and waits where nothing can settle.

    Nothing that was held at once is more or less for it: these copies are gone before DDP makes its buckets.
    """
    for tensor in tensors:
        distributed.broadcast(tensor, group=group, group_src=source)
