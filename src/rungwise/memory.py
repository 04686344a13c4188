"""Peak memory and who owns it, on CPU and on CUDA, in bytes.

On CUDA the allocator counts its own peak. The CPU allocator reports each allocation to PyTorch's profiler; their
running sum is the same figure, compiled code included. It is measured over building the model and over one whole
optimizer step that starts with the optimizer's state in place, and not while steps are timed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

MIB = 2**20

# The profiler announces its start and end on stderr unless told otherwise before its first use.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def tensor_bytes(tensors: Iterator[torch.Tensor]) -> int:
    """Bytes held by distinct tensors: one that is tied or listed twice counts once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors in the optimizer's state."""
    return tensor_bytes(v for state in optimizer.state.values() for v in state.values() if torch.is_tensor(v))


class MemoryMeter:
    """Measures one run's peak.

    Use `building()` around what makes model and optimizer, `watch()` once they exist, and `window()` around optimizer
    steps until `done`.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.done = False
        self._peak = 0
        self._live_after_building = 0
        self._owners: dict[str, int] = {}
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None

    @contextmanager
    def building(self) -> Iterator[None]:
        """Counts what is allocated from here on; on CPU also what is still held at the end."""
        if self.device.type != "cpu":
            torch.accelerator.reset_peak_memory_stats()
            yield
            return
        with _allocations() as changes:
            yield
        self._live_after_building = self._count(changes, held_before=0)

    def watch(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Counts the owners at each optimizer step, when all four of them exist at once."""
        self._model, self._optimizer = model, optimizer
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self._count_gradients()),
            optimizer.register_step_post_hook(lambda *_: self._count_state()),
        ]

    @contextmanager
    def window(self) -> Iterator[None]:
        """Counts one whole optimizer step. The first that starts with the optimizer's state in place is the last."""
        complete = bool(self._optimizer.state)
        if self.device.type == "cpu" and complete:
            # Gradients are freed between steps, so what is held now is the building's and the optimizer's.
            held = self._live_after_building + optimizer_state_bytes(self._optimizer)
            with _allocations() as changes:
                yield
            self._count(changes, held)
        else:
            yield
        if complete:
            self.done = True
            for hook in self._hooks:
                hook.remove()

    def peak_bytes(self) -> int:
        """The allocator's peak so far, in bytes."""
        return self._peak if self.device.type == "cpu" else torch.accelerator.max_memory_allocated()

    def result(self) -> dict[str, float | None]:
        """Peak and owners in MiB, keyed as in `result.json`; None for what was not measured.

        Activations are the peak less the four owners counted from their tensors. They so include temporaries and, as
        the peak may fall before all gradients exist, are understated by at most the gradients.
        """
        if not self.done:
            return {"peak_allocated_mib": None, "peak_rss_mib": _mib(peak_rss_bytes())}
        peak = self.peak_bytes()
        figures = {"peak_allocated": peak, **self._owners, "activations": peak - sum(self._owners.values())}
        if self.device.type != "cpu":
            figures["peak_reserved"] = torch.accelerator.max_memory_reserved()
        figures["peak_rss"] = peak_rss_bytes()
        return {f"{name}_mib": _mib(count) for name, count in figures.items()}

    def _count(self, changes: list[int], held_before: int) -> int:
        held = held_before
        for change in changes:
            held += change
            self._peak = max(self._peak, held)
        return held

    def _count_gradients(self) -> None:
        self._owners["parameters"] = tensor_bytes(self._model.parameters())
        # With DDP several gradients are views into one bucket, so they are counted one by one.
        gradients = (p.grad for p in self._model.parameters() if p.grad is not None)
        self._owners["gradients"] = sum(g.numel() * g.element_size() for g in gradients)

    def _count_state(self) -> None:
        self._owners["optimizer_state"] = optimizer_state_bytes(self._optimizer)
        self._owners["buffers"] = tensor_bytes(self._model.buffers())


@contextmanager
def _allocations() -> Iterator[list[int]]:
    """The CPU allocator's events while the context is open, in order: bytes taken, or given back as a negative."""
    changes: list[int] = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        yield changes
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes += [e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()) if e.device_type().name == "CPU"]


def peak_rss_bytes() -> int | None:
    """The process's largest resident size in bytes, or None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _mib(count: int | None) -> float | None:
    return None if count is None else count / MIB
