"""What autograd saves for the backward pass: each tensor with the module that ran and the operator that saved it.

In eager mode hooks see each tensor as it is saved. Compiled code must not run under them, since it is guarded by them
and would be compiled again: there the graph behind the loss is read instead.
"""

import re
import sys
import weakref
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.autograd.graph import Node, saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .figure import Figure
from .memory import local

CAST = "cast copy of a weight"
NOT_KNOWN = "not known"
# What may stand between a parameter and a copy of it that has another dtype or layout, and nothing else.
LAYOUT = re.compile(
    "(ToCopy|T|View|UnsafeView|ReshapeAlias|Transpose|Permute|Select|Slice|Unsqueeze|Squeeze|Expand|Split|Alias)"
    r"Backward\d"
)


@dataclass(frozen=True)
class Saved:
    """A tensor that a node keeps for backward: who saved it, its storage's identity and size in bytes.

    `place` is an index into the notes of the modules that ran, or the module's name where compiled code ran.
    """

    place: int | str
    operator: str
    storage: int
    nbytes: int


class CompiledCode(Protocol):
    """What is asked of compiled code."""

    modules: list[nn.Module]
    # Lost where what the code keeps cannot be told.
    figure: Figure

    def kept(self, number: int) -> list[tuple[str, str]] | None:
        """The module and the operator of each tensor that the node of this number keeps, if the node is a graph's.

        A module is named as in the compiled one, which is '' itself. Empty where the graph was not seen.
        """

    def inputs(self) -> set[int]:
        """The storages of integers that the graphs were given, as the batch is."""

    def watch(self, on: bool) -> None:
        """Begins to take notes of the graphs that run, or ends it and forgets them."""


class ModuleNotes:
    """Which module ran as autograd's nodes were numbered. The first place is the root's, and so is the last."""

    def __init__(self, root: nn.Module):
        self.modules, self._numbers = [root], [_next_number()]
        self._stack = [root]

    def enter(self, module: nn.Module) -> None:
        """A module begins."""
        self._stack.append(module)
        self._mark()

    def leave(self) -> None:
        """The module that began last ends."""
        self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        self.modules.append(self._stack[-1])
        self._numbers.append(_next_number())

    @property
    def last(self) -> int:
        """The place of what runs now."""
        return len(self.modules) - 1

    def place_of(self, number: int) -> int:
        """The place at which the node of this number was made."""
        return max(0, bisect_right(self._numbers, number) - 1)


class SavingNotes:
    """Notes what is saved inside its context. It keeps no tensor alive.

    Hooks that stand already, as a checkpoint's, are given each tensor as if these did not stand over them.
    """

    def __init__(self, modules: ModuleNotes, figure: Figure):
        """`modules` is an attribute, too; a note that cannot be taken costs the figure, and not the forward pass."""
        self.modules, self._figure = modules, figure
        self._hooks: saved_tensors_hooks | None = None
        self._notes: list[tuple[int, int, str | None, StorageWeakRef, int, weakref.ref[Any]]] = []

    def __enter__(self) -> "SavingNotes":
        under = torch._C._autograd._top_saved_tensors_default_hooks(True)
        self._pack, unpack = under or (lambda tensor: tensor.detach(), lambda tensor: tensor)
        self._hooks = saved_tensors_hooks(self._note, unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the context, once."""
        if self._hooks:
            self._hooks.__exit__()
        self._hooks = None

    def _note(self, tensor: torch.Tensor) -> Any:
        note = self._figure.attempt(self._describe, tensor, sys._getframe(1))
        packed = self._pack(tensor)
        if note:
            # What stands for the tensor lives as long as the node keeps it.
            self._figure.attempt(lambda: self._notes.append((*note, weakref.ref(packed))))
        return packed

    def _describe(self, tensor: torch.Tensor, frame: Any) -> tuple[int, int, str | None, StorageWeakRef, int]:
        """What is known of a tensor as it is saved. A weak storage's identity is not used again."""
        place = self.modules.last
        cast = is_cast(tensor, self.modules.modules[place])
        operator = CAST if cast else _python_operator(frame)
        number = _next_number() - 1
        # An operator in place that needs what it overwrites clones that for itself: its own node is the one before.
        source = tensor.grad_fn
        number -= source is not None and source.name() == "CloneBackward0" and source._sequence_nr() == number
        storage = storage_of(tensor)
        return place, number, operator, StorageWeakRef(storage), storage.nbytes()

    def saved(self, outputs: list[torch.Tensor]) -> list[Saved]:
        """What is kept now, in the order of saving. Its operators are those of the graph behind `outputs`."""
        names = {node._sequence_nr(): operator_of(node) for node in graph(outputs)}
        found = []
        for place, number, operator, storage, nbytes, kept in self._notes:
            packed = kept()
            if packed is None:
                continue
            if isinstance(packed, torch.Tensor):
                # Gathered parameters are given back after their module's forward, and take nothing now.
                nbytes = storage_of(packed).nbytes()
            found.append(Saved(place, operator or names.get(number, NOT_KNOWN), storage.cdata, nbytes))
        return found


def _next_number() -> int:
    """The number of the node that this thread makes next; one that is just saving has the number before."""
    return torch._C._autograd._get_sequence_nr()


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """The storage that this process holds of a tensor."""
    return local(tensor).untyped_storage()


def storages(tensors: Iterable[torch.Tensor]) -> set[int]:
    """The identities of these tensors' storages."""
    return {storage_of(tensor)._cdata for tensor in tensors}


def graph(outputs: list[torch.Tensor]) -> list[Node]:
    """The nodes behind these tensors, as they were made."""
    todo = [tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None]
    found = set(todo)
    while todo:
        for node, _ in todo.pop().next_functions:
            if node is not None and node not in found:
                found.add(node)
                todo.append(node)
    return sorted(found, key=lambda node: node._sequence_nr())


def kept_by(node: Node) -> tuple[list[torch.Tensor], bool]:
    """The tensors that a node keeps, as they are, and whether hooks hide more of them, as a checkpoint's do."""
    raw = [getattr(node, name) for name in dir(node) if name.startswith("_raw_saved_")]
    flat = [saved.data for value in raw for saved in (value if isinstance(value, tuple) else (value,))]
    # Compiled code keeps some of its own beside autograd.
    flat += getattr(node, "_tensors_no_vc_check", None) or []
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]
    return tensors, any(value is not None and not isinstance(value, torch.Tensor) for value in flat)


def operator_of(node: Node) -> str:
    """The operator that a node belongs to: `native_layer_norm`, or a Python function's class."""
    name = node.name().rpartition("::")[2]
    found = re.fullmatch(r"(\w+)Backward\d+", name)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", found[1]).lower() if found else name.removesuffix("Backward")


def _python_operator(frame: Any) -> str | None:
    """The class of a function in Python that is saving, `checkpoint` for what that keeps; None for others."""
    origin, name = frame.f_globals.get("__name__"), None
    if frame.f_code is torch.autograd.Function.apply.__func__.__code__:
        function = frame.f_locals["cls"]
        origin, name = function.__module__, function.__name__
    return "checkpoint" if origin == "torch.utils.checkpoint" else name


def is_cast(tensor: torch.Tensor, module: nn.Module) -> bool:
    """Whether a tensor is a copy of a parameter in another dtype, as autocast makes and keeps it for backward.

    That of a frozen parameter has no history: it is one of the module that runs, and is known by its values.
    """
    node, cast = tensor.grad_fn, False
    while node is not None and LAYOUT.fullmatch(node.name()):
        cast |= node.name().startswith("ToCopy")
        node = node.next_functions[0][0]
    if cast:
        return isinstance(getattr(node, "variable", None), nn.Parameter)
    if tensor.requires_grad or not tensor.is_floating_point():
        return False
    return any(_has_values(tensor, parameter) for parameter in module.parameters(recurse=False))


@torch.no_grad()
def _has_values(tensor: torch.Tensor, parameter: nn.Parameter) -> bool:
    if parameter.dtype == tensor.dtype or parameter.numel() != tensor.numel():
        return False
    copy = parameter.to(tensor.dtype)
    layouts = (copy, copy.mT) if copy.ndim > 1 else (copy,)
    return any(layout.shape == tensor.shape and torch.equal(layout, tensor) for layout in layouts)
