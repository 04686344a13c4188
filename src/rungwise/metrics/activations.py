"""Who owns a run's activations: what is saved for backward at the end of the first micro-batch's forward pass.

Bytes of storages, each counted once, for the module and the operator that saved it first. What lives anyway is left
out: parameters (gathered ones, too), buffers and the batch. The labels that a loss shifts are a copy, and count.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils._pytree import tree_leaves

from ..model.probe import base_model
from .activation_rows import LOSS, kind, table
from .around import Around
from .figure import Figure
from .saved_tensors import (
    CAST,
    NOT_KNOWN,
    CompiledCode,
    ModuleNotes,
    Saved,
    SavingNotes,
    graph,
    is_cast,
    kept_by,
    operator_of,
    storage_of,
    storages,
)


class ActivationMeter:
    """Measures one run's activations in the first micro-batch that goes backward, and is gone from the model then.

    Attributes:
        result: as it stands in `result.json`; empty until it is known.
    """

    def __init__(
        self,
        model: nn.Module,
        accelerator: Accelerator,
        blocks: list[nn.Module],
        compiled: CompiledCode | None = None,
    ):
        """Makes ready to measure.

        Args:
            model: with the techniques applied, before it is prepared.
            accelerator: whose `backward` ends a forward pass.
            blocks: those that recompute themselves in the backward pass.
            compiled: the code of a compiled model.
        """
        self.result: dict[str, Any] = {}
        self.figure = compiled.figure if compiled else Figure()
        self._model, self._compiled, self._checkpointed = model, compiled, bool(blocks)
        self._kinds = {module: kind(name, model) for name, module in model.named_modules()}
        self._batch: set[int] = set()
        self._notes: ModuleNotes | None = None
        self._saving: SavingNotes | None = None
        self._recompute: dict[str, Any] | None = None
        self._undo: list[Callable[[], None]] = []
        self._watch_backward(accelerator)
        inside = {m for module in (compiled.modules if compiled else ()) for m in module.modules()}
        for module in self._kinds.keys() - inside:
            self._watch_module(module)
        if compiled:
            compiled.watch(True)
            self._undo.append(lambda: compiled.watch(False))
        elif blocks:
            self._watch_block(blocks[-1])

    def close(self) -> None:
        """Measures no more; nothing of it is left in the model."""
        self._end_saving()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _watch_backward(self, accelerator: Accelerator) -> None:
        """Has the first backward pass begin with reading what is kept, and end the measurement."""

        def backward(method: Callable[..., None], loss: torch.Tensor, **kwargs: Any) -> None:
            self.figure.attempt(self._read, loss)
            method(loss, **kwargs)
            self.figure.attempt(self._end)
            self.close()

        self._undo.append(Around(accelerator, "backward", backward).remove)

    def _end(self) -> None:
        # Only after backward is it known what a block kept as it ran again.
        if self._recompute:
            self.result["recompute"] = self._recompute
        elif self._checkpointed:
            self.result["unknown"].append("what a checkpointed block keeps as it runs again")

    def _watch_module(self, module: nn.Module) -> None:
        if module is self._model:
            before = module.register_forward_pre_hook(self.figure.hook(self._begin), with_kwargs=True)
            after = module.register_forward_hook(self._end_saving, always_call=True)
        else:
            before = module.register_forward_pre_hook(self.figure.hook(self._enter))
            after = module.register_forward_hook(self.figure.hook(self._leave))
        self._undo += [before.remove, after.remove]

    def _begin(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if not (module.training and torch.is_grad_enabled()):
            return
        self._batch = storages(_tensors((args, kwargs)))
        self._notes = ModuleNotes(module)
        if not self._compiled:
            self._saving = SavingNotes(self._notes, self.figure)
            self._saving.__enter__()

    def _end_saving(self, *_: Any) -> None:
        if self._saving:
            self._saving.close()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if self._notes:
            self._notes.enter(module)

    def _leave(self, *_: Any) -> None:
        if self._notes:
            self._notes.leave()

    def _read(self, loss: torch.Tensor) -> None:
        """What is kept as a backward pass from this loss begins."""
        notes, self._notes = self._notes, None
        names = self._names(notes) if notes else []
        unknown: list[str] = []
        saved = self._saving.saved([loss]) if self._saving else self._kept_in_graph(loss, notes, unknown)
        self._saving = None
        self.result = self._table(saved, names, self._batch) | {"recompute": None, "unknown": unknown}

    def _names(self, notes: ModuleNotes) -> list[str]:
        """The kind of the module at each place, and the loss behind the last one that is not the model itself."""
        names = [self._kinds[module] for module in notes.modules]
        behind = len(names)
        while behind > 1 and base_model(self._model) in notes.modules[behind - 1].modules():
            behind -= 1
        return names[:behind] + [LOSS] * (len(names) - behind)

    def _kept_in_graph(self, loss: torch.Tensor, notes: ModuleNotes | None, unknown: list[str]) -> list[Saved]:
        """What the nodes behind the loss keep, compiled ones and those between them."""
        if self._compiled:
            self._batch |= self._compiled.inputs()
        found = []
        for node in graph([loss]):
            number, operator = node._sequence_nr(), operator_of(node)
            tensors, hidden = kept_by(node)
            if hidden:
                unknown.append("what checkpointed blocks keep whose forward was not seen")
            labels = self._compiled.kept(number) if self._compiled else None
            if labels is not None and len(labels) != len(tensors):
                unknown.append("which modules own what a compiled graph keeps that came from a warm cache")
                labels = [(None, NOT_KNOWN)] * len(tensors)
            if labels is None:
                # Numbers that code multiplies by are kept as tensors without a dimension.
                tensors = [tensor for tensor in tensors if tensor.ndim]
            for n, tensor in enumerate(tensors):
                place = notes.place_of(number) if notes else NOT_KNOWN
                if labels:
                    place, label = self._kind_in_graph(labels[n][0]), labels[n][1]
                else:
                    module = notes.modules[place] if notes else self._model
                    label = CAST if is_cast(tensor, module) else operator
                storage = storage_of(tensor)
                found.append(Saved(place, label, storage._cdata, storage.nbytes()))
        unknown[:] = dict.fromkeys(unknown)
        return found

    def _kind_in_graph(self, path: str | None) -> str:
        """The kind of a module that is named as in the compiled one, of which there may be many alike."""
        if path in (LOSS, None):
            return path or NOT_KNOWN
        if self._compiled.modules == [self._model]:
            return kind(path, self._model)
        roots = {self._kinds[module] for module in self._compiled.modules}
        root = roots.pop() if len(roots) == 1 else type(self._compiled.modules[0]).__name__
        return f"{root}.{kind(path)}" if path else root

    def _watch_block(self, block: nn.Module) -> None:
        """Has a checkpointed block tell what is saved when it first runs with gradients.

        That is its second run, in backward, if checkpointing is reentrant. If not, it is the first, in which the
        checkpoint keeps a placeholder for each tensor that it will have to make again.
        """
        if "_gradient_checkpointing_func" not in vars(block):
            return

        def checkpoint(own: Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            def run(*inputs: Any) -> Any:
                if self._recompute or self.figure.lost or not torch.is_grad_enabled():
                    return function(*inputs)
                return self._run_block(block, function, inputs)

            return own(run, *args, **kwargs)

        self._undo.append(Around(block, "_gradient_checkpointing_func", checkpoint).remove)

    def _run_block(self, block: nn.Module, function: Callable[..., Any], inputs: tuple[Any, ...]) -> Any:
        around, self._notes = self._notes, None
        with self.figure.around(lambda: self._saving_in(block)) as saving:
            outputs = function(*inputs)
        self._notes = around
        if saving:
            # The keyword arguments are masks and positions.
            given = (inputs, getattr(function, "keywords", {}))
            self.figure.attempt(self._keep, block, given, outputs, saving)
        return outputs

    @contextmanager
    def _saving_in(self, block: nn.Module) -> Iterator[SavingNotes]:
        self._notes = ModuleNotes(block)
        with SavingNotes(self._notes, self.figure) as saving:
            yield saving

    def _keep(self, block: nn.Module, given: Any, outputs: Any, saving: SavingNotes) -> None:
        """Keeps the table of what a block saved as it ran. What it was `given` was made before and lives on."""
        live = storages(_tensors(given)) | self._batch
        saved = saving.saved(_tensors(outputs))
        names = [self._kinds[module] for module in saving.modules.modules]
        self._recompute = {"module": self._kinds[block], **self._table(saved, names, live)}

    def _table(self, saved: Iterable[Saved], names: list[str], live: set[int]) -> dict[str, Any]:
        """The sum and the rows of what is saved beside the model itself. `live` are more storages to leave out."""
        return table(saved, names, live | storages([*self._model.parameters(), *self._model.buffers()]))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
