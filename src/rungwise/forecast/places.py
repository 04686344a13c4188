"""Tells a tracker which module is at work, and where each stretch of a step begins.

Stretches are what depth cannot change: a model that is deeper has more blocks, and what is allocated around and in the
first and the last ones is in the same order.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..metrics.activation_rows import LOSS
from .tracker import REST, Tracker


class Places:
    """Hooks on a model that is traced, for as long as it lives.

    Args:
        model: with its techniques applied.
        blocks: its layers, in order.
        tracker: is told.
    """

    def __init__(self, model: nn.Module, blocks: list[nn.Module], tracker: Tracker):
        self._tracker = tracker
        self._stack: list[str] = []
        self._rows = 0
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._enterer(name))
            module.register_forward_hook(self._leave, always_call=True)
            # Transformers' models keep here what makes a loss of logits.
            if loss := vars(module).get("_loss_function"):
                module._loss_function = self._within(LOSS, loss)
        model.register_forward_pre_hook(self._begin_rows, prepend=True)
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(self._marker(f"forward {index}"))
            block.register_forward_hook(self._backward_marker(index))

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Marks the beginning and the end of the optimizer's steps, too."""
        optimizer.register_step_pre_hook(lambda *_: self._mark("optimizer"))
        optimizer.register_step_post_hook(self._end_rows)

    def _mark(self, name: str) -> None:
        self._tracker.mark(f"{self._rows} {name}")

    def _begin_rows(self, *_: Any) -> None:
        self._rows += 1
        self._mark("forward")

    def _end_rows(self, *_: Any) -> None:
        self._rows = 0
        self._mark("end")

    def _marker(self, name: str) -> Callable[..., None]:
        def note(*_: Any) -> None:
            # A block that runs again in backward is part of that.
            if not self._in_backward():
                self._mark(name)

        return note

    def _in_backward(self) -> bool:
        return torch._C._current_autograd_node() is not None

    def _backward_marker(self, index: int) -> Callable[..., None]:
        def note(module: nn.Module, inputs: Any, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else output
            if isinstance(output, torch.Tensor) and output.requires_grad and not self._in_backward():
                output.register_hook(lambda _: self._mark(f"backward {index}"))

        return note

    def _enterer(self, name: str) -> Callable[..., None]:
        return lambda *_: self._enter(name)

    def _enter(self, name: str) -> None:
        self._stack.append(name)
        self._tell()

    def _leave(self, *_: Any) -> None:
        self._stack.pop()
        self._tell()

    def _tell(self) -> None:
        self._tracker.inside = bool(self._stack)
        self._tracker.enter_place(self._stack[-1] if self._stack else REST)

    def _within(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            self._enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self._leave()

        return told
