"""Time, tokens and FLOPs of optimizer steps."""

import copy
import statistics
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ..report.spread import disturbance
from ..settings.fields import COMPUTE_DTYPES

# Fewer timed steps than this are not enough to claim a speed.
LEAST_TIMED_STEPS = 10


class Window(Protocol):
    """What `StepMeter` needs of the memory meter."""

    done: bool

    def peak_bytes(self) -> int: ...

    def window(self) -> AbstractContextManager[None]: ...


@dataclass
class StepTime:
    """How long one optimizer step took, whether it counts, and the peak memory up to its end where it is known."""

    seconds: float = 0.0
    timed: bool = False
    peak_bytes: int | None = None


def synchronize(device: torch.device) -> None:
    """Waits for the device to finish what it was given."""
    if device.type != "cpu":
        torch.accelerator.synchronize()


class StepMeter:
    """Times optimizer steps in three phases that never mix.

    First, steps under the memory meter, until it has seen a whole step; then untimed steps up to `untimed_steps`;
    then the timed ones. fp16 can skip its first steps, which makes the first phase longer. A step in which something
    was compiled is never timed.
    """

    def __init__(
        self,
        device: torch.device,
        memory: Window,
        untimed_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.device, self.memory, self.untimed_steps, self.clock = device, memory, untimed_steps, clock
        self.seen = 0
        # How often the compiler has been at work: a step in which it was is not timed.
        self.compilations: Callable[[], int] = lambda: 0

    @contextmanager
    def step(self) -> Iterator[StepTime]:
        """Around one whole optimizer step, the wait for its data included."""
        self.seen += 1
        metered, compilations = not self.memory.done, self.compilations()
        timing = StepTime(timed=not metered and self.seen > self.untimed_steps)
        with self.memory.window() if metered else nullcontext():
            synchronize(self.device)
            started = self.clock()
            yield timing
            synchronize(self.device)
            timing.seconds = self.clock() - started
        timing.timed &= self.compilations() == compilations
        if self.memory.done:
            timing.peak_bytes = self.memory.peak_bytes()


def throughput(seconds: list[float], tokens: list[int]) -> dict[str, Any]:
    """The speed of the timed steps, keyed as in `result.json`.

    Args:
        seconds: wall time of each timed step.
        tokens: tokens of each timed step that carried a loss, over all processes.

    Returns:
        Rates and times are None where fewer than ten steps were timed. `disturbed` says why the times are not to be
        compared, and is None where they are.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("tokens_per_second", "step_ms_median", "step_ms_mean", "step_ms_p10", "step_ms_p90", "disturbed")
    )
    if len(seconds) >= LEAST_TIMED_STEPS:
        tenths = statistics.quantiles(seconds, n=10, method="inclusive")
        found["tokens_per_second"] = sum(tokens) / sum(seconds)
        median, mean = statistics.median(seconds), statistics.fmean(seconds)
        found["step_ms_median"], found["step_ms_mean"] = 1000 * median, 1000 * mean
        found["step_ms_p10"], found["step_ms_p90"] = 1000 * tenths[0], 1000 * tenths[-1]
        found["disturbed"] = disturbance(median, tenths[0], tenths[-1], mean)
    return found | {"timed_steps": len(seconds), "tokens": sum(tokens)}


def model_flops_per_row(
    config: PreTrainedConfig, block_size: int, frozen: Collection[str] = (), adapters: bool = False
) -> int | None:
    """Matrix-multiply FLOPs to train on one row of `block_size` tokens, recomputation not counted.

    The forward pass is counted by PyTorch's FlopCounterMode on a model without storage (device "meta"), with full
    T x T attention; the backward pass costs twice the forward pass (Kaplan et al. 2020, section 2.1). For GPT-2
    that is 3 x [2T(12 C^2 L + C V) + 4 T^2 C L]. Where parameters are `frozen`, by name, the backward pass is counted
    as well, as far down as it goes. With `adapters` it is the half that is not for the weights, and the adapters' own
    products are not counted. None for a model that cannot run without storage, or whose parameters have other names:
    unknown, not guessed.
    """
    # Transformers looks into the row for packed sequences, which needs values, unless it is given a whole mask; models
    # without attention in turn know no such mask.
    # Whoever builds a model from a config writes its attention into it; the caller's model is to keep its own.
    config = copy.deepcopy(config)
    mask = torch.zeros((1, 1, block_size, block_size), device="meta")
    for arguments in ({"attention_mask": mask}, {}):
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
                row = torch.zeros((1, block_size), dtype=torch.long)
                for name in () if adapters else frozen:
                    model.get_parameter(name).requires_grad_(False)
            backward = bool(frozen) and not adapters
            with torch.set_grad_enabled(backward), FlopCounterMode(display=False) as counter:
                logits = model(input_ids=row, **arguments).logits
                if backward:
                    logits.sum().backward()
        except Exception:
            # Any model's code may need real values on its way (mixtures of experts do).
            continue
        return (1 if backward else 2 if adapters else 3) * counter.get_total_flops()
    return None


def matmul_flops_per_second(device: torch.device, precision: str, seconds: float = 0.3) -> float:
    """The best rate of a square matrix multiply on this device in the run's dtype, in FLOPs a second."""
    dtype = getattr(torch, COMPUTE_DTYPES[precision])
    size = 1024 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 3 or spent < seconds:
        synchronize(device)
        started = time.perf_counter()
        torch.mm(a, b)
        synchronize(device)
        elapsed = time.perf_counter() - started
        # The first run pays for starting up.
        best = min(best, elapsed) if runs else best
        spent, runs = spent + elapsed, runs + 1
    return 2 * size**3 / best
