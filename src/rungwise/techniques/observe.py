"""Takes notes of what happens in optimizer steps, by hooks, where it happens. Each technique says what they show."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.hooks import RemovableHandle
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from ..metrics.around import Around
from .update_notes import fingerprint


@dataclass
class Block:
    """How often a backward pass went through a block that can be checkpointed, and how often it ran again then.

    It is hidden where its hooks see no gradient: up to Transformers 5.22 they stand inside of its checkpoint, and a
    reentrant one runs without gradients.
    """

    owed: int = 0
    recomputed: int = 0
    hidden: bool = False


class ForwardNotes:
    """Notes of the micro-batches of one optimizer step.

    What the accelerator is asked for is noted whatever the model is made of; what modules do, by hooks on them, in
    eager mode alone: in compiled code hooks would change the graph.

    Attributes:
        backward_passes: micro-batches that went backward.
        unsynchronised: those of them whose gradients were to stay in their process.
        loss_gradients: what each backward pass began with, a scalar each: the scaler's scale by the accumulation.
        clipped_at: the limits that gradients were clipped at.
        draws: whether the forward pass drew random numbers.
        dtypes: modules that multiply by parameters, with the dtypes of what they gave back.
        residual_dtype: what the norm of the last block was given; None where it was not seen.
        blocks: what every block that can be checkpointed did, in the model's order.
        rows: the shape of each micro-batch, and a fingerprint of it.
    """

    def __init__(self, model: nn.Module, accelerator: Accelerator, eager: bool, begins: tuple[Any, str] | None = None):
        """Begins to take notes.

        Args:
            model: not wrapped.
            accelerator: that trains it.
            eager: whether no part of the model is compiled.
            begins: an object and its method that is called as a micro-batch begins [the accelerator's accumulate].
        """
        self.backward_passes = self.unsynchronised = 0
        self.loss_gradients: list[torch.Tensor] = []
        self.clipped_at: set[float] = set()
        self.draws = False
        self.dtypes: dict[str, set[torch.dtype]] = {}
        self.residual_dtype: torch.dtype | None = None
        self.blocks: list[Block] = []
        self.rows: list[tuple[torch.Size, torch.Tensor]] = []
        self._device = accelerator.device
        self._state: Any = None
        self._in_forward = False
        self._undo: list[Callable[[], None]] = []
        self._observe(*(begins or (accelerator, "accumulate")), self._note_start)
        self._observe(accelerator, "backward", self._note_backward)
        self._observe(accelerator, "no_sync", self._note_no_sync)
        self._observe(accelerator, "clip_grad_norm_", self._note_clipping)
        if eager:
            self._attach(model)

    def close(self) -> None:
        """Takes no more notes; nothing of it is left in the model."""
        for undo in self._undo:
            undo()
        self._undo.clear()

    def _observe(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Has a method tell with what it is called."""

        def observed(method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return method(*args, **kwargs)

        self._undo.append(Around(owner, name, observed).remove)

    def _hook(self, handle: RemovableHandle) -> None:
        self._undo.append(handle.remove)

    def _attach(self, model: nn.Module) -> None:
        for name, module in _products(model):
            self._hook(module.register_forward_hook(self._dtype_noter(name)))
        self._hook(model.register_forward_pre_hook(self._enter, with_kwargs=True))
        self._hook(model.register_forward_hook(self._leave))
        norms = [m for block in repeated_blocks(model)[-1:] for m in block.children() if "Norm" in type(m).__name__]
        for norm in norms[:1]:
            self._hook(norm.register_forward_pre_hook(self._note_residual))
        for module in checkpointable_blocks(model):
            block = Block()
            self.blocks.append(block)
            self._hook(module.register_forward_hook(self._run_noter(block)))
            if hasattr(module, "_gradient_checkpointing_func"):
                around = Around(module, "_gradient_checkpointing_func", self._checkpoint_noter(block))
                self._undo.append(around.remove)
            # A block's first part runs again inside of its checkpoint. It may be the last one to run, in which
            # recomputing stops as soon as it has what backward needs: its beginning is noted.
            self._hook(next(module.children()).register_forward_pre_hook(self._recompute_noter(block)))

    def _enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._in_forward = True
        rows = kwargs.get("input_ids")
        if isinstance(rows, torch.Tensor):
            self.rows.append((rows.shape, fingerprint(rows)))

    def _leave(self, *_: Any) -> None:
        self._in_forward = False

    def _dtype_noter(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            # A router may be a linear layer that gives back what it chose, too.
            output = output[0] if isinstance(output, tuple) else output
            self.dtypes.setdefault(name, set()).add(output.dtype)

        return note

    def _note_residual(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            self.residual_dtype = inputs[0].dtype

    def _run_noter(self, block: Block) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            block.hidden = self._in_forward and not torch.is_grad_enabled()
            self._note_run(block, output)

        return note

    def _checkpoint_noter(self, block: Block) -> Callable[..., Any]:
        def checkpointed(checkpoint: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            block.hidden = False  # what an earlier run without gradients was, as a recurrent model has them
            output = checkpoint(*args, **kwargs)
            if block.hidden:
                self._note_run(block, output)
            return output

        return checkpointed

    def _note_run(self, block: Block, output: Any) -> None:
        output = output if isinstance(output, tuple) else (output,)
        parts = [part for part in output if getattr(part, "requires_grad", False)]
        # Nothing goes back through a block that is frozen, or that the loss does not depend on, as in a patcher.
        if self._in_forward and parts:
            register_multi_grad_hook(parts, lambda _: setattr(block, "owed", block.owed + 1), mode="any")

    def _recompute_noter(self, block: Block) -> Callable[..., None]:
        def note(*_: Any) -> None:
            # A part of the model that runs after the model's forward has ended is run by the backward pass.
            block.recomputed += not self._in_forward

        return note

    def _note_start(self, *_: Any, **__: Any) -> None:
        self._state = _random_state(self._device)

    def _note_backward(self, loss: torch.Tensor, **_: Any) -> None:
        self.backward_passes += 1
        self.draws |= self._state is not None and _random_state(self._device) != self._state
        if loss.requires_grad:
            loss.register_hook(lambda gradient: self.loss_gradients.append(gradient.detach()))

    def _note_no_sync(self, *_: Any, **__: Any) -> None:
        self.unsynchronised += 1

    def _note_clipping(self, parameters: Any, max_norm: float, *_: Any, **__: Any) -> None:
        self.clipped_at.add(float(max_norm))


def repeated_blocks(model: nn.Module) -> list[nn.Module]:
    """The model's identical layers, by the names that Transformers has for them."""
    return [m for m in model.modules() if type(m).__name__ in (model._no_split_modules or ())]


def checkpointable_blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks that can recompute themselves in the backward pass, in the model's order."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def _products(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """What multiplies by the model's matrices."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and not getattr(module, "gives_its_input_back", False):
            yield name, module
        elif type(module).__name__.endswith("Experts") and isinstance(getattr(module, "act_fn", None), nn.Module):
            # Experts give back the dtype that they were given; what they compute in shows inside.
            yield name, module.act_fn


def _random_state(device: torch.device) -> tuple[Any, ...]:
    """Where every generator stands that a model may draw from."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    numpy = np.random.get_state()[1].tobytes(), np.random.get_state()[2]
    return (*(state.numpy().tobytes() for state in states), random.getstate(), numpy)
