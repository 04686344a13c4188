"""Peak memory and who owns it, on CPU and on CUDA, in bytes.

On CUDA the allocator counts its own peak. The CPU allocator reports each allocation to PyTorch's profiler; their
running sum is the same figure, compiled code included. Everywhere it is measured over building the model and over one
whole optimizer step that starts with the optimizer's state in place, and closed there: what compiles before that step,
or evaluates, saves and merges after it, has no part in it.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .allocations import allocations
from .figure import Figure
from .phases import Begins, Timeline, over_time, phases
from .resident import peak_rss_bytes

MIB = 2**20
TIMELINE_POINTS = 500
# What an allocator does inside, as `allocations` has it.
Source = Callable[
    [torch.device, dict[int, int], Iterable[torch.UntypedStorage]], AbstractContextManager[list[tuple[int, int]]]
]


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a tensor that this process holds: of a sharded one its shard."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that this process holds of distinct tensors: one that is tied or listed twice counts once."""
    return sum(storage.nbytes() for storage in _storages(tensors))


def _storages(tensors: Iterable[torch.Tensor]) -> Collection[torch.UntypedStorage]:
    """Where this process keeps tensors, each storage once."""
    storages = (part.untyped_storage() for tensor in tensors for part in _parts(local(tensor)))
    # By identity, not by address: a fake tensor's has none.
    return {storage._cdata: storage for storage in storages}.values()


def _parts(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors that a tensor is made of: itself, or of a quantized one its codes, its scales and their table."""
    if not is_traceable_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _parts(getattr(tensor, name))


def optimizer_state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors in the optimizer's state."""
    return tensor_bytes(_state(optimizer))


def _state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))


class MemoryMeter:
    """Measures one run's peak.

    Use `building()` around what makes model and optimizer, `watch()` once they exist, and `window()` around optimizer
    steps until `done`. `timeline` then holds that step's memory over time: (ms since its start, bytes, phase).

    Attributes:
        held: the bytes that were held when that step began.
        beside: bytes that were allocated before it, where building was not measured: neither model nor optimizer.
        figure: the peak and its owners, which may be lost; `timeline_figure`, on CUDA, the timeline alone.
    """

    def __init__(self, device: torch.device, source: Source | None = None):
        """`source` tells of allocations; by default the device's own allocator does."""
        self.device = device
        self.figure, self.timeline_figure = Figure(), Figure()
        self.held = self.beside = 0
        self._measured = False
        self._allocations = source or allocations
        self.timeline: Timeline = []
        self._blocks: dict[int, int] = {}  # of building, by address
        self._peak = self._reserved = self._retries = 0
        self._rss: int | None = None
        self._live_after_building = 0
        self._windows = 0
        self._stepped = self._has_stepped = False
        self._owners: dict[str, int] = {}
        self._model: nn.Module | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._accelerator: Accelerator | None = None

    @property
    def done(self) -> bool:
        """Whether no step is to be measured any more."""
        return self._measured or self.figure.lost is not None

    def building(self) -> AbstractContextManager[None]:
        """Counts what is allocated from here on; on CPU also what is still held at the end."""
        return self.figure.around(self._building)

    @contextmanager
    def _building(self) -> Iterator[None]:
        if self.device.type != "cpu":
            with self._counters():
                yield
            return
        with self._allocations(self.device, self._blocks, ()) as changes:
            yield
        held = _running(changes, held_before=0)
        self._peak, self._live_after_building = max(self._peak, *held), held[-1]

    @contextmanager
    def _counters(self) -> Iterator[None]:
        """Has the accelerator's allocator count what happens inside, from what is held at its start."""
        # What was cached before, as by a compiler that tried kernels, would count as reserved.
        torch.accelerator.empty_cache()
        torch.accelerator.reset_peak_memory_stats()
        retries = _alloc_retries()
        yield
        torch.accelerator.synchronize()
        self._peak = max(self._peak, torch.accelerator.max_memory_allocated())
        self._reserved = max(self._reserved, torch.accelerator.max_memory_reserved())
        self._retries += _alloc_retries() - retries

    def watch(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, accelerator: Accelerator | None = None
    ) -> None:
        """Counts the owners at each optimizer step, when all four of them exist at once.

        Phases of the timeline are known where `accelerator` is the one that is asked for backward passes.
        """
        self._model, self._optimizer, self._accelerator = model, optimizer, accelerator
        self._hooks = [
            optimizer.register_step_pre_hook(self.figure.hook(lambda *_: self._count_gradients())),
            optimizer.register_step_post_hook(self.figure.hook(lambda *_: self._count_state())),
        ]

    def window(self) -> AbstractContextManager[None]:
        """Counts one whole optimizer step. The first that starts with the optimizer's state in place is the last."""
        return self.figure.around(self._window)

    @contextmanager
    def _window(self) -> Iterator[None]:
        # State is in place once the optimizer has stepped, be there none as in plain SGD. A run that goes on from a
        # checkpoint has it from the start; its first step compiles, and is left out.
        complete = self._has_stepped and self._windows > 0
        self._stepped = False
        begins: Begins = []
        if self.device.type == "cpu" and complete:
            # Gradients are freed between steps, so what is held now is the building's and the optimizer's.
            self.held = self._held_after_building() + optimizer_state_bytes(self._optimizer)
            with (
                self._allocations(self.device, self._blocks, self._kept()) as changes,
                phases(self._accelerator) as begins,
            ):
                yield
        elif complete:
            self.held = torch.accelerator.memory_allocated()
            # The allocator counts its peak itself; of its history nothing but the timeline is made.
            history = self.timeline_figure.around(lambda: self._allocations(self.device, self._blocks, ()))
            with self._counters(), history as changes, phases(self._accelerator) as begins:
                yield
        else:
            yield
            changes = []
        self._windows += 1
        if changes:
            running = _running(changes, self.held)
            if self.device.type == "cpu":
                self._peak = max(self._peak, *running)
            self.timeline = over_time(changes, running, begins, TIMELINE_POINTS)
        # A step that is skipped before its optimizer is no whole step.
        if complete and self._stepped:
            self._measured = True
            self._rss = peak_rss_bytes()
            for hook in self._hooks:
                hook.remove()

    def _kept(self) -> Collection[torch.UntypedStorage]:
        """Where model and optimizer are, from step to step."""
        return _storages([*self._model.parameters(), *self._model.buffers(), *_state(self._optimizer)])

    def _held_after_building(self) -> int:
        """What building left behind; at least the model, which Transformers may load in threads that tell nothing."""
        model = tensor_bytes(self._model.parameters()) + tensor_bytes(self._model.buffers())
        return max(self._live_after_building, model + self.beside)

    def peak_bytes(self) -> int | None:
        """The allocator's peak over the phases that were measured, in bytes; None if it was not."""
        return None if self.figure.lost else self._peak

    def result(self) -> dict[str, float | None]:
        """Peak and owners in MiB, keyed as in `result.json`; None for what was not measured.

        On an accelerator also what was reserved, and how often its allocator had to give its cache back to go on.

        Activations are the peak less the four owners counted from their tensors. They so include temporaries and, as
        the peak may fall before all gradients exist, are understated by at most the gradients.
        """
        peak = self.peak_bytes()
        if peak is None or not self._measured:
            return {"peak_allocated_mib": None, "peak_rss_mib": _mib(peak_rss_bytes())}
        figures = {"peak_allocated": peak, **self._owners, "activations": peak - sum(self._owners.values())}
        if self.device.type != "cpu":
            figures["peak_reserved"] = self._reserved
        figures["peak_rss"] = self._rss
        found = {f"{name}_mib": _mib(count) for name, count in figures.items()}
        return found if self.device.type == "cpu" else {**found, "alloc_retries": self._retries}

    def _count_gradients(self) -> None:
        self._stepped = self._has_stepped = True
        self._owners["parameters"] = tensor_bytes(self._model.parameters())
        # With DDP several gradients are views into one bucket, so they are counted one by one.
        gradients = (local(p.grad) for p in self._model.parameters() if p.grad is not None)
        self._owners["gradients"] = sum(g.numel() * g.element_size() for g in gradients)

    def _count_state(self) -> None:
        self._owners["optimizer_state"] = optimizer_state_bytes(self._optimizer)
        self._owners["buffers"] = tensor_bytes(self._model.buffers())


def _running(changes: list[tuple[int, int]], held_before: int) -> list[int]:
    """The bytes held before the first change and after each."""
    return list(itertools.accumulate((change for _, change in changes), initial=held_before))


def _alloc_retries() -> int:
    """How often an allocation failed at first in this process, and cached memory was given back for it."""
    return torch.accelerator.memory_stats().get("num_alloc_retries", 0)


def _mib(count: int | None) -> float | None:
    return None if count is None else count / MIB
