"""What the tracker counts of fake tensors, against what the CPU's allocator does on real ones."""

import itertools

from rungwise.forecast.devices import CPU
from rungwise.forecast.tracker import Tracker, UnknownValue
from rungwise.metrics.allocations import allocations

import pytest
import torch
from needs import LOSS_IN_CHUNKS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

SIZE = 2**14
OPERATORS = {
    "float times half": lambda f, h, i, m: f * h,
    "half times float in place": lambda f, h, i, m: h.mul_(f),
    "float times half in place": lambda f, h, i, m: f.mul_(h),
    "half times column": lambda f, h, i, m: h.view(128, 128) * f[:128, None],
    "half times number in a tensor": lambda f, h, i, m: h * torch.ones(()),
    "half less than float": lambda f, h, i, m: h < f,
    "float and integer": lambda f, h, i, m: f * i,
    "integer over number": lambda f, h, i, m: i / 2,
    "exponential of integers": lambda f, h, i, m: torch.exp(i),
    "mask times integer": lambda f, h, i, m: m * i,
    "three operands in place": lambda f, h, i, m: h.addcmul_(h, f),
    "out": lambda f, h, i, m: torch.mul(h, f, out=f),
    "where": lambda f, h, i, m: torch.where(m, f, h),
    "masked fill": lambda f, h, i, m: f.masked_fill(m, 0),
    "copy": lambda f, h, i, m: f.copy_(h),
    "cast": lambda f, h, i, m: f.to(torch.bfloat16),
    "one dtype": lambda f, h, i, m: F.silu(h) + h,
    "sum": lambda f, h, i, m: h.sum(dtype=torch.float32),
    "sum of a dimension": lambda f, h, i, m: h.view(128, 128).sum(1, dtype=torch.float32),
    "sum in its dtype": lambda f, h, i, m: h.sum() + f.sum(),
    "mean of half": lambda f, h, i, m: h.mean(),
    "mean": lambda f, h, i, m: f.mean(),
    "sum of a mask": lambda f, h, i, m: m.sum(),
    "running sum of a mask": lambda f, h, i, m: m.cumsum(0),
    "softmax": lambda f, h, i, m: torch.softmax(h, -1, dtype=torch.float32),
    "norm": lambda f, h, i, m: torch.rsqrt(f.pow(2).view(128, 128).mean(-1, keepdim=True) + 1e-6),
}


def inputs():
    dtypes = torch.float32, torch.bfloat16, torch.int64, torch.bool
    return [torch.ones(SIZE, dtype=dtype) for dtype in dtypes]


def peak(changes):
    return max(itertools.accumulate((change for _, change in changes), initial=0))


def track(function, *, inside=False):
    """The log of a function on fake tensors."""
    tracker = Tracker(CPU)
    tracker.inside = inside
    with FakeTensorMode(), tracker, tracker.logged() as log:
        function()
    return log


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_takes_what_it_takes_on_the_cpu(name):
    function = OPERATORS[name]
    function(*inputs())
    with allocations(torch.device("cpu")) as real:
        function(*inputs())
    log = track(lambda: function(*inputs()))
    # Numbers, of 8 bytes at most, are wrapped in tensors on their way.
    assert abs(peak(log.changes) - peak(real)) <= 64


def test_views_count_once_and_what_is_gone_is_taken_off():
    def function():
        a = torch.zeros(1000)
        b = a.view(10, 100).t()[3:]
        del a
        c = torch.zeros(500)
        del b
        return c

    log = track(function)
    assert [change for _, change in log.changes] == [4000, 2000, -4000, -2000]
    assert len(set(log.storages)) == 2


def test_what_was_there_before_is_not_given_back():
    """As the profiler, to which a block from before it is unknown."""
    tracker = Tracker(CPU)
    with FakeTensorMode(), tracker:
        before = torch.zeros(1000)
        with tracker.logged() as log:
            del before
            torch.zeros(10)
    assert [change for _, change in log.changes] == [40, -40]


@LOSS_IN_CHUNKS
@pytest.mark.parametrize("policy", ["compact", "balanced"])
@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_in_chunks_is_seen_from_inside(policy, reduction, dtype):
    """Its registered fake would give its results alone."""

    def function():
        hidden = torch.zeros(512, 32, dtype=dtype, requires_grad=True)
        weight = torch.zeros(1024, 32, dtype=dtype, requires_grad=True)
        labels = torch.zeros(512, dtype=torch.long)
        options = torch.nn.LinearCrossEntropyOptions(acc_policy=policy, acc_dtype=torch.float32)
        F.linear_cross_entropy(hidden, weight, labels, reduction=reduction, options=options).float().sum().backward()

    with allocations(torch.device("cpu")) as real:
        function()
    assert peak(track(function).changes) == pytest.approx(peak(real), rel=1e-3)


def test_a_model_may_not_ask_for_values():
    with pytest.raises(UnknownValue, match="asks for the value"):
        track(lambda: int(torch.zeros(5).sum()), inside=True)
    # But whether rows are whole, and the loop its own numbers.
    assert track(lambda: bool((torch.zeros(5) == 0).all()), inside=True)
    assert track(lambda: float(torch.zeros(5).sum()))


@pytest.mark.parametrize("bound", [2.0, 0.1])
def test_what_is_drawn_until_it_lies_within_bounds_is_drawn_once(bound):
    """By rejection: of many numbers, and of few."""
    found = track(lambda: torch.nn.init.trunc_normal_(torch.empty(1000), std=1.0, a=-bound, b=bound))
    assert peak(found.changes) >= 4000


def test_nothing_waits_without_end_for_a_value():
    def waits():
        while torch.zeros(1).sum().item():
            pass

    with pytest.raises(UnknownValue, match="without end"):
        track(waits)
