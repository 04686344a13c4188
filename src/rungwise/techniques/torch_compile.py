"""What torch.compile needs on this machine, and what it would get wrong there."""

import sysconfig
from pathlib import Path

from ..settings.fields import Settings


def problems(settings: Settings, device_type: str) -> list[str]:
    """What stands in the compiler's way on this machine, found before anything is built."""
    if not settings.torch_compile:
        return []
    found = []
    if device_type == "cpu":
        from torch._inductor import config, exc
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except (exc.InvalidCxxCompiler, RuntimeError):
            named = [config.cpp.cxx] if isinstance(config.cpp.cxx, str) else [name for name in config.cpp.cxx if name]
            found.append(
                f"--torch_compile needs a C++ compiler on the CPU, and none of {', '.join(named)} runs; install one "
                "(Debian: apt-get install g++; macOS: xcode-select --install), or name one in the environment "
                "variable CXX"
            )
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            found.append(
                f"--torch_compile needs Python's headers, and {sysconfig.get_path('include')} has no Python.h; "
                "install them (Debian: apt-get install python3-dev)"
            )
    else:
        from torch.utils._triton import has_triton

        if not has_triton():
            found.append(
                "--torch_compile needs Triton on this GPU, and it is missing or does not support it; "
                "install triton, or leave --torch_compile out"
            )
        if device_type == "cuda" and settings.gradient_accumulation_steps > 1:
            found += _overwritten_gradients(settings)
    return found


def _overwritten_gradients(settings: Settings) -> list[str]:
    """CUDA graphs with accumulation: the first micro-batch's gradients stay in the memory of the graph's next run.

    By release and model PyTorch ends such a run with an error or trains on wrong sums (its issue 169545).
    """
    from torch._inductor import config, list_mode_options

    mode = settings.torch_compile_mode
    culprit, mend = f"--torch_compile_mode {mode}", "use --torch_compile_mode max-autotune-no-cudagraphs"
    options = list_mode_options(mode) if mode != "default" else {}
    if not options.get("triton.cudagraphs"):
        if not config.triton.cudagraphs:
            return []
        culprit, mend = "the environment variable TORCHINDUCTOR_CUDAGRAPHS=1", "unset it"
    return [
        f"{culprit} has the compiler replay CUDA graphs, which overwrite the gradients of "
        f"{settings.gradient_accumulation_steps} accumulated micro-batches; {mend}, or do not accumulate"
    ]
