"""torch.compile as this house asks for it: in place, with fixed shapes, and with a cache of the run's own."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..settings.fields import Settings
from .compile_notes import CompileNotes
from .compiler_cache import CompilerCache


class CompileRecord(CompileNotes):
    """Compiles modules in place, so that parameters keep their names, and takes notes of it."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.perf_counter):
        import torch._dynamo

        # Compiled code of an earlier model in this process would be looked through for every frame of this one.
        torch._dynamo.reset()
        super().__init__(settings.torch_compile_scope == "regional", clock)
        self._mode, self._budget = settings.torch_compile_mode, settings.activation_memory_budget
        self._cache = CompilerCache(settings.torch_compile_cache_dir)
        self._closing.callback(self._cache.close)

    def compile(self, modules: list[nn.Module]) -> None:
        """Has each of these modules compile itself when it is first called.

        Shapes are fixed whatever the launcher left in the environment: packed blocks never change theirs. Where dynamo
        would go on in eager mode, after an error of its own or too many recompiles, it raises instead.
        """
        import torch._dynamo.config

        torch._dynamo.config.suppress_errors = False
        torch._dynamo.config.fail_on_recompile_limit_hit = True
        self._modules = self.kept.modules = modules
        backend = self._backend()
        for module in modules:
            module.compile(backend=backend, dynamic=False)

    def _backend(self) -> Callable[..., Any]:
        from torch._functorch import config as functorch
        from torch._inductor import list_mode_options
        from torch._inductor.compile_fx import compile_fx

        patches = list_mode_options(self._mode) if self._mode != "default" else None

        def compile_and_record(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            def compile_graph(inner: Callable[..., Any]) -> Callable[..., Any]:
                with functorch.patch(activation_memory_budget=self._budget):
                    return compile_fx(graph, inputs, inner_compile=inner, config_patches=patches)

            return self.noted(graph, compile_graph)

        return compile_and_record

    def result(self) -> dict[str, Any]:
        """What was found so far, as it stands in `result.json`."""
        return super().result() | {"cache": self._cache.label()}
