"""Which kernels compute bf16 and fp16 products on a CPU: PyTorch's own, unless those of `cpu_matmul` are faster here.

Whether a processor has the instructions does not decide it: there are some that have them and multiply at half of
fp32's rate. So both are measured, on products of a training step, forward and backward.
"""

import itertools
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object

from ..metrics.flops import matmul_flops_per_second
from ..settings.choices import COMPUTE_DTYPES
from ..settings.fields import Settings
from . import cpu_matmul

# Tokens, width and vocabulary of the products: half a micro-batch of the default model, whatever model is trained.
TOKENS, WIDTH, VOCABULARY = 2048, 256, 2048
SECONDS = 1.0
# Kernels whose numbers come out of fewer lines stay in place unless the others are clearly faster.
CLEARLY = 1.05
KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "pytorch": torch.mm,
    "rungwise": cpu_matmul.product,
}

# By precision: GFLOP/s of each kernel, as the choice was made in this process.
_chosen_by: dict[str, dict[str, float]] = {}


def choose(accelerator: Accelerator, settings: Settings) -> None:
    """Has the faster kernels compute the products of a run on a CPU in bf16 or fp16.

    Every process measures, at the same time, since they share the cores when they train, too; each then decides by the
    mean of all, so that they decide alike.
    """
    precision = settings.precision
    if accelerator.device.type != "cpu" or precision == "no":
        return
    dtype = getattr(torch, COMPUTE_DTYPES[precision])
    measured = gather_object([measure(dtype)])
    rates = {name: sum(found[name] for found in measured) / len(measured) for name in KERNELS}
    _chosen_by[precision] = rates
    cpu_matmul.use(cpu_matmul.used() - {dtype} | ({dtype} if faster(rates) else set()))


def faster(rates: dict[str, float]) -> bool:
    """Whether the kernels of `cpu_matmul` are clearly faster than PyTorch's."""
    return rates["rungwise"] > CLEARLY * rates["pytorch"]


def describe(settings: Settings, device: torch.device) -> dict[str, Any]:
    """Which kernels compute a run's products, and at what rates, as it stands in the environment of `result.json`.

    Returns:
        `matmul_kernels`: of bf16 and fp16 on a CPU, pytorch or rungwise, by precision.
        `kernel_gflops`: of each of the two on a training step's products, where that decided.
        `matmul_gflops`: of a square product in fp32 and in the run's precision, by the kernels in use.
    """
    precision = settings.precision
    kernels = {}
    if device.type == "cpu" and precision != "no":
        used = getattr(torch, COMPUTE_DTYPES[precision]) in cpu_matmul.used()
        kernels[precision] = "rungwise" if used else "pytorch"
    rates = {name: matmul_flops_per_second(device, name) / 1e9 for name in dict.fromkeys(("no", precision))}
    return {
        "matmul_kernels": kernels,
        "kernel_gflops": _chosen_by.get(precision, {}),
        "matmul_gflops": {"fp32" if name == "no" else name: rate for name, rate in rates.items()},
    }


@cache
def measure(
    dtype: torch.dtype, seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """GFLOP/s of each kernel over a training step's products, each at its best, both ways in turn.

    A processor may take longer for one product than all of them may take: it ends with the first product that is
    through when the time is up, and compares those that there are.
    """
    products = _products(dtype)
    best = {name: {} for name in KERNELS}
    started = clock()
    for number in itertools.cycle(range(len(products))):
        for name, multiply in KERNELS.items():
            begun = clock()
            multiply(*products[number])
            taken = clock() - begun
            best[name][number] = min(taken, best[name].get(number, taken))
        if clock() - started >= seconds:
            break
    flops = sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b in (products[n] for n in best["pytorch"]))
    return {name: flops / sum(times.values()) / 1e9 for name, times in best.items()}


def _products(dtype: torch.dtype) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Of the widening layer of a block, and of the logits: forward, and backward for the input and for the weight."""
    found = []
    # GPT-2's layers keep their weights as (in, out), embeddings as (out, in).
    for weight in (torch.randn(WIDTH, 4 * WIDTH), torch.randn(VOCABULARY, WIDTH).t()):
        weight = weight.to(dtype)
        x = torch.randn(TOKENS, WIDTH).to(dtype)
        gradient = torch.randn(TOKENS, weight.shape[1]).to(dtype)
        found += [(x, weight), (gradient, weight.t()), (x.t(), gradient)]
    return found
