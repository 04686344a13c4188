"""Autocast for the products of mixtures of experts, which PyTorch leaves out.

Transformers multiplies all experts of a layer at once, by `grouped_mm`. Autocast does not know that operator, so that
experts with fp32 parameters, which are most of such a model, would be computed in fp32 under a label that says bf16
(https://github.com/pytorch/pytorch/issues/174763).
"""

from collections.abc import Callable
from typing import Any

import torch

# PyTorch's operator, and what Transformers takes in its place in compiled code and where the other is missing.
OPERATORS = ("aten::_grouped_mm", "transformers::grouped_mm_fallback")
KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}

_libraries: list[torch.library.Library] = []


def install() -> None:
    """Has autocast cast the inputs of grouped products as it does for any other, in this process, once."""
    for name in OPERATORS:
        namespace, _, operator = name.partition("::")
        packet = getattr(getattr(torch.ops, namespace), operator, None)
        for device, key in KEYS.items():
            if packet is None or torch._C._dispatch_has_kernel_for_dispatch_key(name, key):
                continue
            library = torch.library.Library(namespace, "IMPL")
            library.impl(operator, _cast_inputs(packet, device), key)
            # A library takes its kernels back when it is deleted.
            _libraries.append(library)


def _cast_inputs(operator: Any, device: str) -> Callable[..., torch.Tensor]:
    def kernel(*arguments: Any, **options: Any) -> torch.Tensor:
        dtype = torch.get_autocast_dtype(device)
        # The offsets of the groups are integers.
        cast = [a.to(dtype) if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]
        with torch.autocast(device, enabled=False):
            return operator(*cast, **options)

    return kernel
