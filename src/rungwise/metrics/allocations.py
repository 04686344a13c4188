"""What an allocator does while something runs, on the CPU and on CUDA."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import ProfilerActivity

from .profiler import own_profiler
from .settling import settled_exchanges


def allocations(device: torch.device) -> AbstractContextManager[list[tuple[int, int]]]:
    """What the allocator does inside, once that has ended: (time in ns, bytes taken, or given back as a negative).

    Nothing on accelerators whose allocator keeps no such record.
    """
    if device.type == "cpu":
        return _allocations()
    return _cuda_allocations() if device.type == "cuda" else nullcontext([])


@contextmanager
def _allocations() -> Iterator[list[tuple[int, int]]]:
    """`allocations` on the CPU, from the profiler's events."""
    changes: list[tuple[int, int]] = []
    with settled_exchanges(), own_profiler(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        yield changes
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes += sorted((e.start_ns(), e.nbytes()) for e in events if e.device_type().name == "CPU")


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
