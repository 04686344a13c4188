"""What torch.compile did in one run: graphs, graph breaks and recompiles with their reasons, and the time it took.

PyTorch has no public way to ask for these. Taken are dynamo's own notes (`torch._dynamo.callback`,
`graph_break_reasons`, `guard_failures`) and what is seen of each graph on its way to Inductor.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .compiler_cache import hits
from .graph_notes import GraphNotes


class CompileNotes:
    """Takes notes of what the compiler does, whoever has asked it to.

    Attributes:
        graphs: graphs that the compiler was given.
        compilations: times that the compiler was at work.
        seconds: wall time of all of them, forward and backward, by `clock`.
        recomputed_blocks: checkpointed blocks inside the graphs.
        dtypes: dtypes of the products with parameters that the graphs compute.
        kept: what the graphs keep for backward.
        regional: whether the repeated block is compiled once, and not the whole model.
    """

    def __init__(self, regional: bool, clock: Callable[[], float] = time.perf_counter):
        self.graphs = self.compilations = self.recompiles = self.recomputed_blocks = 0
        self.seconds = 0.0
        self.dtypes: set[torch.dtype] = set()
        self.regional = regional
        self._clock, self._started = clock, 0.0
        self.kept = GraphNotes()
        self._modules: list[nn.Module] = []
        # By identity; a note of each parameter that compiled code was called with, until the proof has asked.
        self._compiled: dict[int, int] | None = {}
        self._closing = ExitStack()
        self._listen()

    def _listen(self) -> None:
        from torch._dynamo import callback

        handler = callback.callback_handler
        for register, listeners, own in (
            (callback.on_compile_start, handler.start_callbacks, self._start),
            (callback.on_compile_end, handler.end_callbacks, self._end),
        ):
            register(own)
            self._closing.callback(lambda listeners=listeners, own=own: own in listeners and listeners.remove(own))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out what is compiled inside: it is not the training's."""
        from torch._dynamo.utils import graph_break_reasons, guard_failures

        counts = (self.graphs, self.compilations, self.recompiles, self.seconds)
        breaks, failures = list(graph_break_reasons), {code: list(found) for code, found in guard_failures.items()}
        yield
        self.graphs, self.compilations, self.recompiles, self.seconds = counts
        graph_break_reasons[:] = breaks
        guard_failures.clear()
        guard_failures.update(failures)

    def leave_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Leaves out what an optimizer compiles of its own, as torchao's do: it is not the model."""
        step = ExitStack()
        optimizer.register_step_pre_hook(lambda *_: step.enter_context(self.paused()) and None)
        optimizer.register_step_post_hook(lambda *_: step.close())

    def _start(self, about: Any) -> None:
        self._started = self._clock()

    def _end(self, about: Any) -> None:
        self.seconds += self._clock() - self._started
        self.compilations += 1
        # A frame's id is "<frame>/<compilation>": anything but the first compilation is one that guards asked for.
        again = about.compile_id.split("_")[0].rpartition("/")[2] != "0"
        self.recompiles += about.callback_trigger.name == "DYNAMO" and again

    def _note(self, graph: torch.fx.GraphModule) -> None:
        self.graphs += 1
        for module in graph.modules():
            for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                self.recomputed_blocks += "activation_checkpoint" in str(node.target)
                value = node.meta.get("example_value")
                if node.op == "call_function" and isinstance(value, torch.Tensor) and _is_product(node.target):
                    self.dtypes.add(value.dtype)

    def compiled_share(self) -> float:
        """The share of the modules' parameters that compiled code was called with. Call it once, after a step."""
        if self._compiled is not None:
            of_modules = {id(p): p.numel() for module in self._modules for p in module.parameters()}
            self._share = sum(self._compiled.values()) / max(1, sum(of_modules.values()))
            self._compiled = None
        return self._share

    def result(self) -> dict[str, Any]:
        """What was found so far, as it stands in `result.json`."""
        from torch._dynamo.utils import graph_break_reasons, guard_failures

        breaks = [reason for reason in graph_break_reasons if reason.graph_break]
        failures = [failure for code_failures in guard_failures.values() for failure in code_failures]
        return {
            "seconds": self.seconds,
            "graphs": self.graphs,
            "graph_breaks": len(breaks),
            "graph_break_reasons": _distinct(_why_broken(reason) for reason in breaks),
            "recompiles": self.recompiles,
            "recompile_reasons": _distinct(_why_recompiled(failure) for failure in failures),
        }

    def why_given_up(self, error: BaseException | None) -> str | None:
        """In words, if `error` is dynamo's that a frame was compiled too often."""
        if type(error).__name__ != "FailOnRecompileLimitHit":
            return None
        reasons = "; ".join(self.result()["recompile_reasons"]) or "no reason is known"
        return (
            f"the compiler gave up after {self.recompiles} recompiles ({reasons}); keep shapes and options of the "
            "model fixed, try another --torch_compile_scope, or leave --torch_compile out"
        )

    def noted(
        self, graph: torch.fx.GraphModule, compile_graph: Callable[..., Callable[..., Any]]
    ) -> Callable[..., Any]:
        """Has a graph compiled, with notes of it and of its runs.

        Args:
            graph: as dynamo made it.
            compile_graph: compiles it by Inductor, given what `inner_compile` is to be.
        """
        self._note(graph)
        labels, inner = self.kept.reader(whole=not self.regional)
        compiled = compile_graph(inner)

        def run(*arguments: Any) -> Any:
            if self._compiled is not None:
                self._compiled |= {id(a): a.numel() for a in arguments if isinstance(a, nn.Parameter)}
            outputs = compiled(*arguments)
            self.kept.ran(labels, arguments, outputs)
            return outputs

        return run

    def close(self) -> None:
        """Stops taking notes."""
        self._closing.close()


class ObservedCompile(CompileNotes):
    """Notes of what another loop has compiled: in its own cache, and with what it has told the compiler."""

    def __init__(self, modules: list[nn.Module], regional: bool):
        import torch._dynamo

        # What an earlier training of this process has compiled would be used again, and nobody would see it.
        torch._dynamo.reset()
        super().__init__(regional)
        self._modules = self.kept.modules = modules
        from torch._inductor import compile_fx as inductor

        compile_fx, self._inside, self._hits = inductor.compile_fx, False, hits()

        def observed(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
            if self._inside or "inner_compile" in options:  # Inductor calls itself, once it has set its options
                return compile_fx(graph, inputs, **options)
            self._inside = True
            try:
                return self.noted(graph, lambda inner: compile_fx(graph, inputs, inner_compile=inner, **options))
            finally:
                self._inside = False

        inductor.compile_fx = observed
        self._closing.callback(partial(setattr, inductor, "compile_fx", compile_fx))

    def result(self) -> dict[str, Any]:
        """What was found so far, as it stands in `result.json`; the cache is the script's."""
        return super().result() | {"cache": f"{'warm' if hits() > self._hits else 'cold'}: the script's own"}


def _is_product(target: Any) -> bool:
    """Whether an operator of a graph is what linear layers, GPT-2's transposed ones, or experts call."""
    name = getattr(target, "__name__", str(target))
    return name in ("linear", "addmm") or "grouped_mm" in name


def _why_broken(reason: Any) -> str:
    """Dynamo's first words about a graph break, and the line of the model's code."""
    frame = reason.user_stack[-1] if reason.user_stack else None
    where = f" at {Path(frame.filename).name}:{frame.lineno} in {frame.name}" if frame else ""
    return f"{reason.reason.strip().splitlines()[0]}{where}"


def _why_recompiled(failure: str) -> str:
    """Dynamo's first words about the guard that failed, without the compilation's number."""
    return " ".join(failure.splitlines()[0].partition(": ")[2].split("  #")[0].split())


def _distinct(texts: Any) -> list[str]:
    return list(dict.fromkeys(texts))
