"""What compiled graphs keep for backward, by the module and the operator that made it.

The compiler's forward graph ends with what it keeps. Its nodes know where in the model they come from.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..metrics.activation_rows import LOSS
from ..metrics.figure import Figure
from ..metrics.saved_tensors import CAST, storages

# In compiled code a copy in another dtype, and what leaves its values as they are.
CASTS = ("convert_element_type", "to_copy")
LAYOUTS = (*CASTS, "permute", "transpose", "t", "view", "reshape", "unsqueeze", "squeeze", "select", "slice", "expand")


@dataclass(frozen=True)
class Label:
    """Who made a tensor that a graph keeps; of a copy of one of the graph's inputs, which one."""

    module: str
    operator: str
    copied: int | None


class GraphNotes:
    """Reads graphs as they are compiled, and notes which ones ran while it watches.

    Attributes:
        modules: that are compiled.
        figure: lost where what the graphs keep cannot be told.
    """

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []
        self.figure = Figure()
        self._watches = False
        self._kept: dict[int, list[tuple[str, str]]] = {}
        self._inputs: set[int] = set()

    def watch(self, on: bool) -> None:
        """Begins to take notes of the graphs that run, or ends it and forgets them."""
        self._watches = on
        self._kept, self._inputs = {}, set()

    def kept(self, number: int) -> list[tuple[str, str]] | None:
        """The module and the operator of each tensor that the node of this number keeps, if the node is a graph's."""
        return self._kept.get(number)

    def inputs(self) -> set[int]:
        """The storages of integers that the graphs were given, as the batch is."""
        return self._inputs

    def reader(self, whole: bool) -> tuple[list[Label], Callable[..., Any]]:
        """What reads one graph on its way to Inductor, and the list that then holds a label for each of its outputs.

        Args:
            whole: whether it is one of the whole model, whose last operators are the loss.
        """
        from torch._inductor.compile_fx import compile_fx_inner

        labels: list[Label] = []

        def compile_and_read(graph: torch.fx.GraphModule, inputs: Any, **options: Any) -> Any:
            if not options.get("is_backward"):
                names = {name for module in self.modules for name, _ in module.named_modules()}
                labels[:] = self.figure.attempt(_labels, graph.graph, names, whole) or []
            return compile_fx_inner(graph, inputs, **options)

        return labels, compile_and_read

    def ran(self, labels: list[Label], arguments: Sequence[Any], outputs: Any) -> None:
        """Notes that the graph of these labels has run."""
        if self._watches:
            self.figure.attempt(self._note, labels, arguments, outputs)

    def _note(self, labels: list[Label], arguments: Sequence[Any], outputs: Any) -> None:
        integers = [a for a in arguments if isinstance(a, torch.Tensor) and not a.is_floating_point()]
        self._inputs |= storages(integers)
        found = [o.grad_fn for o in outputs if isinstance(o, torch.Tensor) and o.grad_fn is not None]
        for node in (node for node in found if node.name() == "CompiledFunctionBackward"):
            # Numbers that are no tensors stand behind those that are.
            count = len(node._raw_saved_tensors) + len(getattr(node, "_tensors_no_vc_check", None) or ())
            last = labels[len(labels) - count :] if count <= len(labels) else []
            self._kept[node._sequence_nr()] = [_resolved(label, arguments) for label in last]


def _resolved(label: Label, arguments: Sequence[Any]) -> tuple[str, str]:
    of_weight = label.copied is not None and isinstance(arguments[label.copied], nn.Parameter)
    return label.module, CAST if of_weight else label.operator


def _labels(graph: torch.fx.Graph, names: set[str], whole: bool) -> list[Label]:
    """A label for each tensor that a forward graph returns, in its order. `names` are those of the modules."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    modules = {node: _module(node, names) for node in graph.nodes}
    last = max((node.meta.get("seq_nr", 0) for node, module in modules.items() if module), default=0)
    found = []
    for node in graph.output_node().args[0]:
        if isinstance(node, torch.fx.Node) and isinstance(node.meta.get("val"), torch.Tensor):
            source, cast = node, False
            while _name(source) in LAYOUTS and source.args:
                cast |= _name(source) in CASTS
                source = source.args[0]
            copied = inputs.index(source) if cast and source.op == "placeholder" else None
            behind = whole and not modules[node] and node.meta.get("seq_nr", 0) > last
            found.append(Label(LOSS if behind else modules[node], _operator(node), copied))
    return found


def _module(node: torch.fx.Node, names: set[str]) -> str:
    """The innermost module that a node comes from, named as in the compiled one."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    [path] = [path for path, _ in stack.values()][-1:] or [""]
    # Dynamo's path begins with the local variable that holds the compiled module.
    words = [word for word in re.findall(r"\w+", path) if word != "_modules"]
    return next(name for n in range(len(words) + 1) if (name := ".".join(words[n:])) in names)


def _name(node: torch.fx.Node) -> str:
    return getattr(node.target, "__name__", str(node.target)).split(".")[0].lstrip("_")


def _operator(node: torch.fx.Node) -> str:
    """The operator of the model's code that a node comes from."""
    if node.op == "placeholder":
        return "input"
    original = node.meta.get("original_aten")
    return str(original).removeprefix("aten.").split(".")[0].lstrip("_") if original else _name(node)
