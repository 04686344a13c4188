"""The classes that a profiled step is divided into, and which of them each of the profiler's events belongs to."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

# `fused` is what runs in code that the compiler generated; products and attention that it calls are theirs.
CLASSES = ("products", "attention", "loss", "normalisation", "activation", "fused", "optimizer", "data", "rest")
# Whatever these do is theirs, products included.
WHOLE = ("loss", "optimizer", "data")
MARK = "rungwise::"
STEP = f"{MARK}step"
# The loop's wait for the micro-batches of a step.
DATA = f"{MARK}data"
BATCHED = "batched"
NAMES = (
    # With the casts that autocast makes for them.
    ("products", re.compile(r"aten::(mm|addmm|linear|_grouped_mm|_scaled_mm)(_|$)")),
    (BATCHED, re.compile(r"aten::(bmm|baddbmm)(_|$)")),
    ("attention", re.compile(r"scaled_dot_product|_attention")),
    # Also PyTorch's products and loss in one, linear_cross_entropy.
    ("loss", re.compile(r"nll_loss|cross_entropy|log_softmax")),
    ("normalisation", re.compile(r"layer_norm|rms_norm")),
    ("activation", re.compile(r"aten::(gelu|silu|relu|leaky_relu|mish|hardswish)(_|$)")),
    ("optimizer", re.compile(r"Optimizer\.|aten::_(foreach|fused_adam|fused_sgd|amp)_")),
    ("fused", re.compile(r"Torch-Compiled Region|CompiledFunction|## Call CompiledFxGraph|cpp_fused|triton_")),
)
ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
# What the profiler calls an autograd node at work, and a range that was marked by hand.
BACKWARD, RANGE = 1, 7


def scoped(name: str) -> str:
    """What a mark of a class is called in a profile."""
    return MARK + name


def scope_of(module: nn.Module) -> str | None:
    """The class of what runs directly in a module, if it has one. In attention, its projections are products."""
    kind = type(module).__name__
    # Adapters, too, which multiply beside the layer that they wrap.
    if isinstance(module, nn.Linear | Conv1D) or hasattr(module, "base_layer"):
        return "products"
    if "Attention" in kind:
        return "attention"
    if "Norm" in kind:
        return "normalisation"
    return "activation" if type(module).__module__ in ACTIVATIONS and "Softmax" not in kind else None


def classify(events: Iterable[Any], device_type: str) -> dict[str, float]:
    """The ms of each class, and of the `step`, of the events of a profile with a range `STEP` in it.

    `rest` is what the classes leave of the step. Empty where no optimizer stepped.

    Args:
        events: Kineto's.
        device_type: cpu, or the accelerator that had the work.
    """
    host, kernels = [], []
    for event in events:
        if event.device_type().name != "CPU":
            kernels.append(event)
        # Those that are linked are calls of the accelerator's runtime, in threads of other names.
        elif not event.is_async() and event.linked_correlation_id() <= 0:
            host.append(event)
    host.sort(key=lambda event: (event.start_ns(), -event.duration_ns()))
    step = next(event for event in host if event.name() == STEP)
    classes = _classes(host)
    spent: defaultdict[str, int] = defaultdict(int)
    if device_type == "cpu":
        for event, name, own_ns in zip(host, classes, _own_ns(host), strict=True):
            if event.start_thread_id() == step.start_thread_id() and _counts(event, name):
                spent[name] += own_ns
    else:
        spent["data"] = sum(event.duration_ns() for event in host if event.name() == DATA)
        launched_by = {event.correlation_id(): name for event, name in zip(host, classes, strict=True)}
        for kernel in kernels:
            # Ranges show among the kernels, too; what exchanges gradients runs beside the others.
            if not kernel.is_user_annotation() and not kernel.name().startswith("nccl"):
                spent[launched_by.get(kernel.linked_correlation_id(), "rest")] += kernel.duration_ns()
    if not any(event.name().startswith("Optimizer.step#") for event in host):
        return {}
    found = {name: spent[name] / 1e6 for name in CLASSES[:-1]}
    total = step.duration_ns() / 1e6
    return {"step": total, **found, "rest": total - sum(found.values())}


def _counts(event: Any, name: str) -> bool:
    """Whether an event's own time, without those in it, is its class's: of a mark or a node it is Python's."""
    return name in ("optimizer", "data", "fused") or event.scope() not in (BACKWARD, RANGE)


def _classes(host: list[Any]) -> list[str]:
    """The class of each event on the host, which begin one after another."""
    found: list[str] = []
    # By thread: what has begun and not ended, outermost first; by thread and number: what will go backward.
    open_events: defaultdict[int, list[tuple[Any, str]]] = defaultdict(list)
    forward: dict[tuple[int, int], str] = {}
    for event in host:
        around = open_events[event.start_thread_id()]
        while around and around[-1][0].end_ns() <= event.start_ns():
            around.pop()
        parent, inherited = around[-1] if around else (None, "rest")
        number = event.sequence_nr()
        if event.scope() == BACKWARD:
            name = forward.get((event.fwd_thread_id(), number), "rest")
        else:
            # Numbers are given where gradients are recorded: a checkpoint runs forward again in a node that needs it.
            recomputes = parent is not None and parent.scope() == BACKWARD and number >= 0
            name = _class_of(event.name(), "rest" if recomputes else inherited)
            # The last one to begin with a number is the one that autograd has made a node for.
            if number >= 0 and not event.fwd_thread_id():
                forward[event.start_thread_id(), number] = name
        found.append(name)
        around.append((event, name))
    return found


def _class_of(name: str, inherited: str) -> str:
    if inherited in WHOLE:
        return inherited
    if name.startswith(MARK):
        return name.removeprefix(MARK) if name != STEP else "rest"
    own = next((kind for kind, pattern in NAMES if pattern.search(name)), inherited)
    if own == BATCHED:
        # Of matrices of each head; elsewhere, as of experts, and in compiled code, where no module shows, a product.
        return "attention" if inherited == "attention" else "products"
    return own


def _own_ns(host: list[Any]) -> list[int]:
    """The time of each event less that of those directly in it."""
    own = [event.duration_ns() for event in host]
    open_events: defaultdict[int, list[int]] = defaultdict(list)
    for index, event in enumerate(host):
        around = open_events[event.start_thread_id()]
        while around and host[around[-1]].end_ns() <= event.start_ns():
            around.pop()
        if around:
            own[around[-1]] -= event.duration_ns()
        around.append(index)
    return own
