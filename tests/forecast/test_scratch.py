"""What half-precision products take beside their output: in a forecast, against what the allocator does."""

import itertools

from rungwise.forecast import forecast, scratch
from rungwise.forecast.devices import CPU
from rungwise.forecast.tracker import Tracker
from rungwise.metrics.allocations import allocations
from rungwise.techniques import cpu_matmul

import pytest
import torch
from harness import tiny_settings
from needs import LOSS_IN_CHUNKS
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

CALLS = {
    "mm": lambda x, w, b: x @ w,
    "mm, transposed": lambda x, w, b: x.t() @ x,
    "addmm": lambda x, w, b: torch.addmm(b, x, w),
    "addmm in place": lambda x, w, b: torch.zeros(len(x), len(b), dtype=x.dtype).addmm_(x, w),
    "bmm": lambda x, w, b: x.view(4, -1, len(w)) @ w.expand(4, *w.shape),
    "baddbmm": lambda x, w, b: torch.baddbmm(b, x.view(4, -1, len(w)), w.expand(4, *w.shape)),
    "out": lambda x, w, b: torch.mm(x, w, out=torch.empty(len(x), len(b), dtype=x.dtype)),
}


def inputs(dtype):
    return [torch.ones(shape, dtype=dtype) for shape in ((256, 64), (64, 192), (192,))]


def highest(log):
    """The most bytes held, with what products take."""
    held = list(itertools.accumulate(change for _, change in log.changes))
    products = {index: scratch.taken(product) for index, product in log.products.items()}
    return max(size + products.get(index, 0) for index, size in enumerate(held))


@pytest.fixture
def kernels():
    before = cpu_matmul.used()
    yield cpu_matmul.use
    cpu_matmul.use(before)


@pytest.mark.parametrize("used", [(), (torch.bfloat16,)], ids=["PyTorch", "Rungwise"])
@pytest.mark.parametrize("call", CALLS)
def test_a_product_takes_what_the_allocator_gives_it(call, used, kernels):
    kernels(used)
    tracker = Tracker(CPU)
    with FakeTensorMode(), tracker, tracker.logged() as log:
        CALLS[call](*inputs(torch.bfloat16))
    with allocations(torch.device("cpu")) as changes:
        CALLS[call](*inputs(torch.bfloat16))
    assert len(log.products) == 1
    assert highest(log) == max(itertools.accumulate(change for _, change in changes))


def product(*shapes, dtype=torch.bfloat16):
    with FakeTensorMode():
        args = [torch.empty(shape, dtype=dtype) for shape in shapes]
        return scratch.product(torch.ops.aten.mm.default, args, {})


def test_own_kernels_take_their_blocks_in_fp32(kernels):
    kernels((torch.bfloat16,))
    rows, depth, columns = 24, 40, 56
    blocks = 4 * (rows * depth + depth * columns + rows * columns)
    # A sum begins with a zero.
    assert scratch.taken(product((rows, depth), (depth, columns))) == blocks + 4


def test_nothing_is_tried_in_fp32_or_of_other_operators():
    assert product((8, 8), (8, 8), dtype=torch.float32) is None
    with FakeTensorMode():
        half = torch.empty(8, 8, dtype=torch.bfloat16)
    assert scratch.product(torch.ops.aten.add.Tensor, (half, half), {}) is None


def test_products_that_would_take_long_are_not_tried(kernels):
    kernels((torch.bfloat16,))
    assert scratch.taken(product((1024, 1024), (1024, 1024))) is None
    assert scratch.taken(product((1, 32768), (32768, 1024))) is None
    assert scratch.taken(product((1024, 1024), (1024, 512))) is not None


@LOSS_IN_CHUNKS
def test_a_forecast_that_leaves_out_what_counts_says_so(kernels, monkeypatch):
    kernels((torch.bfloat16,))
    sizes = {"vocab_size": 1024, "n_positions": 64, "n_embd": 64, "n_layer": 4, "n_head": 2, "use_cache": False}
    config = AutoConfig.for_model("gpt2", **sizes)
    asked = {"gradient_checkpointing": True, "linear_cross_entropy": True, "block_size": 64}
    monkeypatch.setattr(scratch, "LARGEST_FLOPS", 0)
    assert forecast(tiny_settings(**asked), config).note is None
    assert forecast(tiny_settings(mixed_precision="bf16", **asked), config).note == scratch.NOT_TRIED
    monkeypatch.undo()
    assert forecast(tiny_settings(mixed_precision="bf16", **asked), config).note is None
