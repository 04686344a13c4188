"""torch.compile: what it needs on this machine, what is compiled, and whether compiled code did the work."""

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from accelerate.utils.other import is_compiled_module
from torch import nn
from transformers import PreTrainedModel

from ..device import device_name, native_precision
from ..errors import no_folder
from ..settings.fields import Settings
from .compile_notes import CompileNotes, ObservedCompile
from .compile_record import CompileRecord
from .gradient_checkpointing import is_checkpointed
from .observe import repeated_blocks
from .seen import Seen, UnavailableTechnique

if TYPE_CHECKING:
    from transformers import Trainer

# With less of the compiled modules' parameters in compiled code, most of the model fell back to eager.
LEAST_COMPILED = 0.5


def validate(settings: Settings, device_type: str) -> list[str]:
    """What stands in the compiler's way on this machine, found before anything is built."""
    if not settings.torch_compile:
        return []
    found, mode = missing_tools("--torch_compile", device_type), settings.torch_compile_mode
    cache = settings.torch_compile_cache_dir
    if cache and (why_not := no_folder(cache)):
        found.append(f"--torch_compile_cache_dir {cache}: {why_not}")
    if device_type == "cpu" and mode != "default":
        from torch._inductor import list_mode_options

        if set(list_mode_options(mode)) == {"triton.cudagraphs"}:
            found.append(
                f"--torch_compile_mode {mode} has no effect on the CPU: it is CUDA graphs, and nothing more; "
                "use default or max-autotune"
            )
    if device_type == "cuda" and settings.gradient_accumulation_steps > 1:
        found += _overwritten_gradients(settings)
    return found


def missing_tools(flag: str, device_type: str) -> list[str]:
    """What the compiler, which this flag needs, lacks on this machine."""
    found = []
    if device_type == "cpu":
        from torch._inductor import config, exc
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except (exc.InvalidCxxCompiler, RuntimeError):
            named = [config.cpp.cxx] if isinstance(config.cpp.cxx, str) else [name for name in config.cpp.cxx if name]
            found.append(
                f"{flag} needs a C++ compiler on the CPU, and none of {', '.join(named)} runs; install one "
                "(Debian: apt-get install g++; macOS: xcode-select --install), or name one in the environment "
                "variable CXX"
            )
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            found.append(
                f"{flag} needs Python's headers, and {sysconfig.get_path('include')} has no Python.h; "
                "install them (Debian: apt-get install python3-dev)"
            )
    else:
        from torch.utils._triton import has_triton

        if not has_triton():
            found.append(
                f"{flag} needs Triton on this GPU, and it is missing or does not support it; "
                f"install triton, or leave {flag} out"
            )
    return found


def apply(model: PreTrainedModel, settings: Settings, device: torch.device) -> CompileRecord | None:
    """Compiles the model, or its repeated block once, in place.

    Raises:
        UnavailableTechnique: regional scope for a model that names no repeated block, or whose blocks are checkpointed
            around what would be compiled; bf16 on a GPU that the compiler leaves in eager mode.
    """
    if not settings.torch_compile:
        return None
    if device.type == "cuda" and settings.precision == "bf16" and "bf16" not in native_precision(device):
        raise UnavailableTechnique(
            f"the compiler leaves bf16 in eager mode on {device_name(device)}, which has no bf16 instructions; "
            "use an fp16 config, or leave --torch_compile out"
        )
    regional = settings.torch_compile_scope == "regional"
    modules = repeated_blocks(model) if regional else [model]
    if not modules:
        raise UnavailableTechnique(
            f"{type(model).__name__} names no repeated block, so nothing would be compiled; "
            "use --torch_compile_scope model"
        )
    if regional and any(is_checkpointed(module) and _has_own_call(module) for module in modules):
        raise UnavailableTechnique(
            f"this Transformers release ({transformers.__version__}) checkpoints {type(modules[0]).__name__} from "
            "outside what regional compiling compiles, so that no graph would recompute anything; "
            "use --torch_compile_scope model, or Transformers 5.23 or newer"
        )
    record = CompileRecord(settings)
    record.compile(modules)
    return record


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """What a Trainer was asked for, or the script by its own hand, as settings."""
    args, plugin = trainer.args, trainer.accelerator.state.dynamo_plugin
    return {
        "torch_compile": bool(args.torch_compile) or is_compiled_module(trainer.model_wrapped),
        "torch_compile_mode": args.torch_compile_mode or "default",
        "torch_compile_scope": "regional" if plugin.use_regional_compilation else "model",
    }


def arguments(settings: Settings) -> dict[str, Any]:
    """The same as TrainingArguments."""
    mode = settings.torch_compile_mode
    return {"torch_compile": settings.torch_compile, "torch_compile_mode": None if mode == "default" else mode}


def observe(model: nn.Module, settings: Settings) -> CompileNotes | None:
    """Notes of what another loop has compiled of a model, if it was asked to."""
    if not settings.torch_compile:
        return None
    regional = settings.torch_compile_scope == "regional"
    return ObservedCompile(repeated_blocks(model) if regional else [model], regional)


def _has_own_call(block: nn.Module) -> bool:
    """Whether a block wraps its `__call__`, as by a checkpoint: `compile()` takes the inside alone."""
    return type(block).__call__ is not nn.Module.__call__


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """How many graphs there are, and whether compiled code used most of the parameters."""
    compiled = seen.compiled
    if compiled is None or not compiled.graphs:
        found = {"compiled_graphs": 0, "compiled_parameters": 0.0}
        asked = seen.settings.torch_compile
        return found, ["torch_compile was asked for, and no graph was compiled"] if asked else []
    share = compiled.compiled_share()
    found = {"compiled_graphs": compiled.graphs, "compiled_parameters": share}
    if share >= LEAST_COMPILED:
        return found, []
    reasons = "; ".join(compiled.result()["graph_break_reasons"])
    return found, [
        f"torch_compile was asked for, and {share:.0%} of the parameters were used by compiled code: "
        f"most of it fell back to eager ({reasons or 'no graph break is known'})"
    ]


def why_not_profiled(settings: Settings, device_type: str) -> str:
    """Why a step's profile would tell nothing of a run, or ''."""
    graphs = device_type == "cuda" and settings.torch_compile and _replays_graphs(settings)
    return "CUDA graphs launch kernels without the operators that they belong to" if graphs else ""


def _replays_graphs(settings: Settings) -> str:
    """What has the compiler replay CUDA graphs, or ''."""
    from torch._inductor import config, list_mode_options

    mode = settings.torch_compile_mode
    if mode != "default" and list_mode_options(mode).get("triton.cudagraphs"):
        return f"--torch_compile_mode {mode}"
    return "the environment variable TORCHINDUCTOR_CUDAGRAPHS=1" if config.triton.cudagraphs else ""


def _overwritten_gradients(settings: Settings) -> list[str]:
    """CUDA graphs with accumulation: the first micro-batch's gradients stay in the memory of the graph's next run.

    By release and model PyTorch ends such a run with an error or trains on wrong sums (its issue 169545).
    """
    culprit = _replays_graphs(settings)
    if not culprit:
        return []
    remedy = "unset it" if "environment" in culprit else "use --torch_compile_mode max-autotune-no-cudagraphs"
    return [
        f"{culprit} has the compiler replay CUDA graphs, which overwrite the gradients of "
        f"{settings.gradient_accumulation_steps} accumulated micro-batches; {remedy}, or do not accumulate"
    ]
