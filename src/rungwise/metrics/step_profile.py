"""Where the time of one optimizer step goes: products, attention, loss and so on, by PyTorch's profiler.

Operators are told apart by their names; in eager mode also by the module that they run in, since RMSNorm or GPT-2's
GELU are chains of operators that occur elsewhere, too. What runs backward is what the operator forward is: autograd
numbers both alike. On a CPU a class has the time of its operators, on an accelerator that of the kernels that they
launched; what Python does between operators, what autograd does around them (it adds up gradients, those of biases and
those of tensors that are used twice), and what an accelerator waits for, is `rest`. Of several processes each measures
its own step; the main one's is reported.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, record_function

from .figure import Figure
from .profiler import own_profiler
from .step_classes import STEP, classify, scope_of, scoped

ACTIVITIES = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
NONE_LEFT = "no untimed step was left after those that show memory and evidence; raise --untimed_steps"


class StepProfile:
    """Profiles one whole optimizer step: the first that is asked of it in which the optimizer steps.

    Use `watch()` once there is a model, and while `wanted` `window()` around a step in which nothing else is measured.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.figure = Figure()
        self._model: nn.Module | None = None
        self._ready: Callable[[], bool] = lambda: False
        self._why = NONE_LEFT
        self._found: dict[str, float] = {}

    def watch(self, model: nn.Module, ready: Callable[[], bool], *, compiled: bool = False, why_not: str = "") -> None:
        """Takes note of what is trained.

        Args:
            model: not prepared.
            ready: whether nothing else takes notes in steps any more.
            compiled: whether part of it is compiled: marks in its modules would change the graphs.
            why_not: why its steps must not be profiled, if so.
        """
        self._model = None if compiled else model
        self._ready = (lambda: False) if why_not else ready
        self._why = why_not or self._why

    @property
    def wanted(self) -> bool:
        """Whether the next untimed step is to be profiled."""
        return not self._found and not self.figure.lost and self._ready()

    def window(self) -> AbstractContextManager[None]:
        """Around one whole optimizer step. One in which the optimizer does not step, as fp16's may, leaves nothing."""
        return self.figure.around(self._window)

    @contextmanager
    def _window(self) -> Iterator[None]:
        activities = [ProfilerActivity.CPU, *(kind for name, kind in ACTIVITIES.items() if name == self._device.type)]
        with ExitStack() as marks:
            if self._model is not None:
                _mark(self._model, marks, self.figure)
            with own_profiler(activities=activities) as profiler, record_function(STEP):
                yield
        self._found = classify(profiler.profiler.kineto_results.events(), self._device.type)

    def forget(self) -> None:
        """Drops what was found: the step was none like those to come."""
        self._found = {}

    def result(self) -> dict[str, Any]:
        """`step_ms` of the profiled step and the ms of each class, keyed as in `result.json`; they add up to it.

        Where no step was profiled, `step_ms` is None, and `reason` says why.
        """
        if self.figure.lost or not self._found:
            return {"step_ms": None, "reason": self.figure.lost or self._why}
        return {f"{name}_ms": ms for name, ms in self._found.items()}


def _mark(model: nn.Module, marks: ExitStack, figure: Figure) -> None:
    """Has the modules that classes are known by, and the loss, mark in the profile when they run."""
    for module in model.modules():
        if scope := scope_of(module):
            open_ranges: list[record_function] = []
            enter, leave = _ranges(scope, open_ranges)
            marks.callback(module.register_forward_pre_hook(figure.hook(enter)).remove)
            # A checkpoint ends its recomputing by an exception, as soon as it has what backward needs.
            marks.callback(module.register_forward_hook(figure.hook(leave), always_call=True).remove)
        # Transformers' models keep here what makes a loss of logits.
        if loss := vars(module).get("_loss_function"):
            module._loss_function = _within("loss", loss, figure)
            marks.callback(setattr, module, "_loss_function", loss)


def _ranges(name: str, open_ranges: list[record_function]) -> tuple[Callable[..., None], Callable[..., None]]:
    def enter(*_: Any) -> None:
        open_ranges.append(record_function(scoped(name)).__enter__())

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    return enter, leave


def _within(name: str, function: Callable[..., Any], figure: Figure) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with figure.around(lambda: record_function(scoped(name))):
            return function(*args, **kwargs)

    return marked
