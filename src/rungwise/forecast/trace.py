"""Builds a model and trains it for two steps on fake tensors, by the code and under the meter of real runs."""

import dataclasses
import gc
import importlib.util
import itertools
import logging
import pkgutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedConfig

from ..loop import train
from ..metrics.memory import MIB, MemoryMeter, local
from ..metrics.throughput import StepMeter
from ..model.model import build_model
from ..model.probe import quiet
from ..settings.fields import Settings
from ..techniques import apply_techniques, build_optimizer, build_scheduler, plain_accelerator
from .devices import CPU, Device
from .places import Places
from .ranks import exchange_nothing, first_of
from .tracker import REST, Log, Tracker

# The second step starts with the optimizer's state in place; it is the one that is measured.
STEPS = 2
# What libraries hold.
WORKSPACES = "workspaces"
CHUNKED_LOSS = "torch.nn.modules.linear_cross_entropy"
# Where torchao keeps tensors for all optimizers of a process: fake ones must not be among them.
KEPT = {"torchao": [f"torchao.optim.subclass_8bit.get_qmap_{kind}" for kind in ("signed", "unsigned")]}


@dataclass(frozen=True)
class Trace:
    """What two steps on fake tensors allocate.

    Attributes:
        building: what building the model allocates.
        step: what the measured step allocates.
        held: the bytes held when that step begins.
        beside: those of them that no owner has, by place.
        owners: by the meter, in MiB, keyed as in `result.json`.
        gradients: the storages that are gradients when the optimizer steps, by their number in `step`.
        parameters: how many numbers the model's parameters are.
        blocks: how many layers it has.
    """

    building: Log
    step: Log
    held: int
    beside: dict[str, int]
    owners: dict[str, float]
    gradients: frozenset[int]
    parameters: int
    blocks: int

    @property
    def peak(self) -> int:
        """The most bytes that are held at once."""
        logs = (self.building.changes, 0), (self.step.changes, self.held)
        return max(max(itertools.accumulate((change for _, change in log), initial=held)) for log, held in logs)


def trace(settings: Settings, config: PreTrainedConfig, device: Device = CPU) -> Trace:
    """Traces a run with these settings in eager mode, of a model with random weights; of several ranks the first.

    Raises:
        Exception: whatever the model has against being run on fake tensors.
    """
    tracker = Tracker(device)
    # What is drawn for fake weights is drawn from the process's own numbers.
    with torch.random.fork_rng(devices=[]), ExitStack() as stack:
        stack.enter_context(first_of(settings.num_processes, tracker.resized))
        stack.enter_context(_own_state())
        # Which ranks there are is known by value.
        accelerator = plain_accelerator(settings)
        stack.enter_context(_fakes(settings, device, tracker))
        logs: list[Log] = []
        held: list[int] = []

        @contextmanager
        def source(*_: Any) -> Iterator[list[tuple[int, int]]]:
            with tracker.logged() as log:
                logs.append(log)
                held.append(tracker.held())
                yield log.changes

        meter = MemoryMeter(accelerator.device, source)
        with meter.building():
            model = build_model(settings, config)
            model, _ = apply_techniques(model, settings, accelerator.device)
            optimizer = build_optimizer(model, settings)
            scheduler = build_scheduler(optimizer, settings)
            blocks = blocks_of(model, config)
            meter.watch(model, optimizer)
            Places(model, blocks, tracker).watch(optimizer)
            gradients: set[int] = set()
            optimizer.register_step_pre_hook(lambda *_: gradients.update(_gradients(model, tracker)))
            # An optimizer is taken as it is: copied to where it is already, it would be copied by its memory.
            prepared, prepared_optimizer = accelerator.prepare(model, optimizer, device_placement=[True, False])
            exchange_nothing(prepared)
        steps = train(
            accelerator,
            prepared,
            prepared_optimizer,
            scheduler,
            _batches(settings),
            StepMeter(accelerator.device, meter, untimed_steps=STEPS),
            max_steps=STEPS,
            max_grad_norm=settings.max_grad_norm,
        )
        for _ in steps:
            pass
        if meter.figure.lost:
            raise RuntimeError(meter.figure.lost)
        owners = meter.result()
        building, step, beside = *logs, {}
        if device.knows_older:
            # Built on the host: what is moved from there, a step begins with.
            building = Log([(0, 0)])
            owned = sum(owners[f"{name}_mib"] for name in ("parameters", "optimizer_state", "buffers"))
            beside = {WORKSPACES: device.workspaces, REST: held[1] - round(owned * MIB)}
        return Trace(
            building,
            step,
            held[1] + device.workspaces if device.knows_older else meter.held,
            beside,
            owners,
            frozenset(gradients),
            sum(parameter.numel() for parameter in model.parameters()),
            len(blocks),
        )


def blocks_of(model: nn.Module, config: PreTrainedConfig) -> list[nn.Module]:
    """The model's layers: of its lists of modules the first that is as long as its config says; none without one."""
    depth = getattr(config, "num_hidden_layers", None)
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == depth)
    return list(next(lists, ()))


def _gradients(model: nn.Module, tracker: Tracker) -> Iterator[int]:
    for parameter in model.parameters():
        if parameter.grad is not None and (number := tracker.number_of(local(parameter.grad))) is not None:
            yield number


def _batches(settings: Settings) -> Iterator[dict[str, torch.Tensor]]:
    """Micro-batches as the loader makes them, without end."""
    shape = (settings.micro_batch_size, settings.block_size)
    while True:
        yield {name: torch.zeros(shape, dtype=torch.long) for name in _columns(settings)}


def batch_bytes(settings: Settings, device: Device) -> int:
    """The bytes of the rows of one micro-batch."""
    column = settings.micro_batch_size * settings.block_size * torch.long.itemsize
    return len(_columns(settings)) * device.block(column)


def _columns(settings: Settings) -> tuple[str, ...]:
    return ("input_ids", "labels") if settings.packing else ("input_ids", "attention_mask", "labels")


@contextmanager
def _fakes(settings: Settings, device: Device, tracker: Tracker) -> Iterator[None]:
    """All tensors inside are fake, and the tracker sees them."""
    with ExitStack() as stack:
        # Transformers takes a fake tensor for one of a graph that is traced for any row, and makes a mask; rows that
        # are padded have one anyway.
        if settings.packing:
            patch = mock.patch("transformers.utils.import_utils.is_fake_tensor", lambda _: False, create=True)
            stack.enter_context(patch)
        # What an optimizer compiles of its own keeps its temporaries in registers: nothing of it is allocated.
        stack.enter_context(mock.patch.object(torch, "compile", lambda *_, **__: lambda *_, **__: None))
        # `nn.Module.to` exchanges fake parameters, which nothing may refer to then, for new ones; of real ones it
        # exchanges the data.
        stack.enter_context(mock.patch.object(torch.utils, "swap_tensors", _exchange))
        # The loss in chunks goes through as many as the vocabulary is wider than the model, each like the others.
        if importlib.util.find_spec(CHUNKED_LOSS):
            stack.enter_context(mock.patch(f"{CHUNKED_LOSS}.range", _ends, create=True))
        for name in (name for package, names in KEPT.items() if importlib.util.find_spec(package) for name in names):
            made = pkgutil.resolve_name(name).__wrapped__
            stack.enter_context(mock.patch(name, lru_cache(maxsize=1)(made)))
        # A checkpoint keeps the random numbers' state for each block: a real tensor, which nothing would see. It is on
        # the host, also where the model is not.
        size = 0 if device.knows_older else len(torch.get_rng_state())
        state = mock.patch.object(torch, "get_rng_state", lambda: torch.empty(size, dtype=torch.uint8))
        stack.enter_context(state)
        stack.enter_context(mock.patch.object(torch, "set_rng_state", lambda _: None))
        # What an operator has against fake tensors is said by the error that follows.
        stack.enter_context(mock.patch.object(logging.getLogger("torch._subclasses.fake_tensor"), "disabled", True))
        stack.enter_context(quiet())
        stack.enter_context(uncollected())
        stack.enter_context(device.operators())
        stack.enter_context(FakeTensorMode())
        stack.enter_context(tracker)
        yield


def _ends(*bounds: int) -> Sequence[int]:
    """Of a range the first two and the last."""
    whole = range(*bounds)
    return whole if len(whole) < 4 else (whole[0], whole[1], whole[-1])


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps Python's collector away: what it frees, and when, hangs on all that the process did before."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _exchange(parameter: torch.Tensor, converted: torch.Tensor) -> None:
    parameter.data = converted.data


@contextmanager
def _own_state() -> Iterator[None]:
    """Keeps what Accelerate knows of this process, of which there is one, from a trace and the other way round."""
    with ExitStack() as stack:
        for kind in (PartialState, AcceleratorState, GradientState):
            stack.enter_context(mock.patch.object(kind, "_shared_state", {}))
        yield


def eager(settings: Settings, accumulation: int) -> Settings:
    """The settings that are traced: on the CPU, eager, random weights, so many micro-batches a step."""
    changes: dict[str, Any] = {"use_cpu": True, "torch_compile": False, "model_name_or_path": None}
    return dataclasses.replace(settings, **changes, gradient_accumulation_steps=accumulation)
