"""What an allocator does while something runs, on the CPU and on CUDA."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import itemgetter

import torch
from torch._C._profiler import _EventType, _ProfilerEvent
from torch.profiler import ProfilerActivity

from .profiler import own_profiler
from .settling import settled_exchanges


def allocations(
    device: torch.device, held: dict[int, int] | None = None, kept: Iterable[torch.UntypedStorage] = ()
) -> AbstractContextManager[list[tuple[int, int]]]:
    """What the allocator does inside, once that has ended: (time in ns, bytes taken, or given back as a negative).

    Nothing on accelerators whose allocator keeps no such record.

    Args:
        device: whose allocator.
        held: of a CPU, bytes by address of what was there before and counts when it is given back; nothing else from
            before does. Afterwards what of it is there still, and what came inside [nothing].
        kept: storages that `held` need not have.
    """
    if device.type == "cpu":
        held = {} if held is None else held
        # Here, where nothing holds the storages for longer.
        held |= {storage.data_ptr(): storage.nbytes() for storage in kept}
        return _allocations(held)
    return _cuda_allocations() if device.type == "cuda" else nullcontext([])


@contextmanager
def _allocations(held: dict[int, int]) -> Iterator[list[tuple[int, int]]]:
    """`allocations` on the CPU, from the profiler's events."""
    changes: list[tuple[int, int]] = []
    with settled_exchanges(), own_profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield changes
    changes += _changes(_events(profiler.profiler.kineto_results.experimental_event_tree()), held)


def _events(roots: Sequence[_ProfilerEvent]) -> list[tuple[int, int, int]]:
    """(time in ns, address, bytes) of what the CPU's allocator took, or gave back as a negative, in order of time."""
    found, left = [], [*reversed(roots)]
    while left:
        event = left.pop()
        left += reversed(event.children)
        if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    return sorted(found, key=itemgetter(0))  # of one thread in the order in which they came


def _changes(events: Iterable[tuple[int, int, int]], held: dict[int, int]) -> Iterator[tuple[int, int]]:
    """`allocations` of such events, each block with the bytes that it was taken with.

    PyTorch keeps the sizes of blocks by their address, and learns nothing of those that are given back while no
    profiler is at work. What is put there later, and given back inside, comes as a block of the old one's size.
    """
    for time, address, size in events:
        before = held.pop(address, 0)
        if before:
            # Also of a block that a thread without a profiler has given back: another one can be here since it did.
            yield time, -before
        if size > 0:
            held[address] = size
            yield time, size


@contextmanager
def _cuda_allocations() -> Iterator[list[tuple[int, int]]]:
    """`allocations` on CUDA, from the history that PyTorch's memory visualizer is made of."""
    changes: list[tuple[int, int]] = []
    torch.cuda.memory._record_memory_history(context=None, max_entries=1_000_000)
    try:
        yield changes
        torch.cuda.synchronize()
        history = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    finally:
        # Left on, it would take part in the steps that are timed.
        torch.cuda.memory._record_memory_history(enabled=None)
    signs = {"alloc": 1, "free_completed": -1}
    changes += [(1000 * e["time_us"], signs[e["action"]] * e["size"]) for e in history if e["action"] in signs]
