"""Measure what each memory and speed technique costs and buys when a causal language model is trained.

What a recipe is made of stands here by its name, and is imported when it is first asked for: a question for `--help`
and a mistyped flag are answered before PyTorch is loaded.
"""

import importlib
import logging
import os
import warnings
from typing import Any

__version__ = "0.1.0"

# PyTorch reads these once, when it is first used. The memory meter turns its profiler on in the middle of training:
# the profiler would announce itself on stderr each time, and the CPU allocator would warn about every older block.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

# Where torchao is installed, Transformers imports it, whether it is used or not: of kernels for other machines and for
# other releases of PyTorch, and of its own use of PyTorch, it would say so each time, and Python of its strings at
# first.
_KERNELS = ("Failed to load ", "Skipping import of cpp extensions")
logging.getLogger("torchao").addFilter(lambda record: not record.getMessage().startswith(_KERNELS))
logging.getLogger("torch.utils._pytree").addFilter(lambda record: "is an Enum subclass" not in record.getMessage())
warnings.filterwarnings("ignore", category=SyntaxWarning, module=".*torchao")

_HOMES = {
    "configure": "run.configure",
    "build_datasets": "run.configure",
    "build_dataloader": "data.loader",
    "build_eval_dataloader": "data.loader",
    "build_model": "model.model",
    "CausalLMLoss": "model.model",
    "build_accelerator": "techniques",
    "apply_techniques": "techniques",
    "build_optimizer": "techniques",
    "build_scheduler": "techniques",
    "Run": "run.run",
    "train": "loop",
    "evaluate": "loop",
    "apply_before_trainer": "techniques",
    "training_arguments": "trainer.rung",
    "RungTrainer": "trainer.rung",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
