"""FLOPs of a model's training, and the rate of a matrix product to compare them with."""

import copy
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache, partial
from typing import TypeVar

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from ..device import synchronize
from ..settings.choices import COMPUTE_DTYPES

_Count = TypeVar("_Count")


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
    backward = bool(frozen) and not adapters

    def count(model: PreTrainedModel, forward: Callable[[], torch.Tensor]) -> int:
        for name in () if adapters else frozen:
            model.get_parameter(name).requires_grad_(False)
        with torch.set_grad_enabled(backward), FlopCounterMode(display=False) as counter:
            logits = forward()
            if backward:
                logits.sum().backward()
        return (1 if backward else 2 if adapters else 3) * counter.get_total_flops()

    return _without_storage(config, block_size, count)


@dataclass(frozen=True)
class ForwardFlops:
    """Matrix-multiply FLOPs of the forward pass over one row.

    Attributes:
        total: of the whole model.
        blocks: of each block that was asked for, in order.
        last: of each block's last product, as far as what is behind it keeps nothing for the backward pass.
        head: of the product that gives the logits.
    """

    total: int
    blocks: tuple[int, ...]
    last: tuple[int, ...]
    head: int


def forward_flops(
    config: PreTrainedConfig, block_size: int, blocks_of: Callable[[nn.Module], list[nn.Module]]
) -> ForwardFlops | None:
    """Counts a forward pass as `model_flops_per_row` does. None as there.

    Args:
        config: the model's.
        block_size: tokens of the row.
        blocks_of: the blocks to count by themselves.
    """

    def count(model: PreTrainedModel, forward: Callable[[], torch.Tensor]) -> ForwardFlops:
        counter = FlopCounterMode(display=False)
        began: dict[nn.Module, int] = {}
        found: dict[nn.Module, int] = {}
        last: dict[nn.Module, int] = {}
        blocks, head = blocks_of(model), model.get_output_embeddings()
        inside = {part: block for block in blocks for part in block.modules() if not any(part.children())}

        def begin(module: nn.Module, _: object) -> None:
            began[module] = counter.get_total_flops()

        def end(module: nn.Module, *_: object) -> None:
            found[module] = counter.get_total_flops() - began[module]
            if module in inside and (found[module] or (isinstance(module, nn.Dropout) and module.p)):
                # Dropout behind a product keeps its mask, for which the product is computed again.
                last[inside[module]] = found[module]

        for module in {*blocks, *inside, head} - {None}:
            module.register_forward_pre_hook(begin)
            module.register_forward_hook(end)
        with torch.no_grad(), counter:
            forward()
        return ForwardFlops(
            counter.get_total_flops(),
            tuple(found.get(block, 0) for block in blocks),
            tuple(last.get(block, 0) for block in blocks),
            found.get(head, 0),
        )

    return _without_storage(config, block_size, count)


def _without_storage(
    config: PreTrainedConfig, block_size: int, count: Callable[[PreTrainedModel, Callable[[], torch.Tensor]], _Count]
) -> _Count | None:
    """What `count` makes of a model on device "meta" and of its forward pass over one row; None if that cannot run."""
    # Transformers looks into the row for packed sequences, which needs values, unless it is given a whole mask; models
    # without attention in turn know no such mask.
    # Whoever builds a model from a config writes its attention into it; the caller's model is to keep its own.
    config = copy.deepcopy(config)
    mask = torch.zeros((1, 1, block_size, block_size), device="meta")
    for arguments in ({"attention_mask": mask}, {}):
        try:
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", trust_remote_code=False)
                row = torch.zeros((1, block_size), dtype=torch.long)
            return count(model, partial(_logits, model, row, arguments))
        except Exception:
            # Any model's code may need real values on its way (mixtures of experts do).
            continue
    return None


def _logits(model: PreTrainedModel, row: torch.Tensor, arguments: dict[str, torch.Tensor]) -> torch.Tensor:
    return model(input_ids=row, **arguments).logits


@cache
def matmul_flops_per_second(
    device: torch.device, precision: str, seconds: float = 0.3, clock: Callable[[], float] = time.perf_counter
) -> float:
    """The best rate of a square matrix multiply on this device in a precision's dtype, in FLOPs a second.

    It is the best of as many as fill so many seconds by `clock`, and of no fewer than two, by the kernels that are in
    use when it is first asked for; a process measures once.
    """
    dtype = getattr(torch, COMPUTE_DTYPES[precision])
    size = 1024 if device.type == "cpu" else 8192
    # Of its own, since whoever trains here draws from the global one.
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 3 or spent < seconds:
        synchronize(device)
        started = clock()
        torch.mm(a, b)
        synchronize(device)
        elapsed = clock() - started
        # The first run pays for starting up.
        best = min(best, elapsed) if runs else best
        spent, runs = spent + elapsed, runs + 1
    return 2 * size**3 / best
