"""Which kernels compute products in half precision: a rule over measured rates, which are given here."""

import itertools

from rungwise.device import device_name
from rungwise.report.comparable import differences
from rungwise.run.console import settings_block
from rungwise.techniques import build_accelerator, cpu_matmul, product_kernels

import pytest
import torch
from harness import tiny_settings

CPU = torch.device("cpu")
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
# As a process may have measured before it is tested.
measure = product_kernels.measure.__wrapped__


@pytest.fixture
def rates(monkeypatch):
    """Gives what is measured, and leaves the kernels as they were."""
    before = cpu_matmul.used()
    given = {}
    monkeypatch.setattr(product_kernels, "measure", lambda dtype: dict(given))
    yield given
    cpu_matmul.use(before)


def settings(precision):
    flags = ("--dtype", "bfloat16") if precision == "pure" else ()
    return tiny_settings(*flags, config=f"accelerate_configs/{'fp32' if precision == 'pure' else precision}.yaml")


@pytest.mark.parametrize("precision, half", [("bf16", "bf16"), ("fp16", "fp16"), ("pure", "bf16")])
@pytest.mark.parametrize(
    "pytorch, rungwise, kernels",
    [(100, 104, "pytorch"), (100, 106, "rungwise"), (100, 20, "pytorch"), (2, 300, "rungwise")],
)
def test_pytorchs_kernels_stay_unless_others_are_clearly_faster(
    rates, monkeypatch, precision, half, pytorch, rungwise, kernels
):
    """Whatever the processor has instructions for, and whatever was decided before."""
    square = {"no": 3e9, half: 5e9}
    monkeypatch.setattr(product_kernels, "matmul_flops_per_second", lambda device, precision: square[precision])
    for before in ((), HALF.values()):
        cpu_matmul.use(before)
        rates |= {"pytorch": pytorch, "rungwise": rungwise}
        build_accelerator(settings(precision))
        assert (HALF[half] in cpu_matmul.used()) == (kernels == "rungwise")
        # The other dtype's are another decision.
        assert all((dtype in cpu_matmul.used()) == bool(before) for dtype in set(HALF.values()) - {HALF[half]})
        found = product_kernels.describe(settings(precision), CPU)
        assert found["matmul_kernels"] == {half: kernels} and found["kernel_gflops"] == rates
        assert found["matmul_gflops"] == {"fp32": 3, half: 5}


def test_fp32_and_accelerators_have_nothing_to_choose(rates):
    """Nothing is measured there: there are no rates to give."""
    build_accelerator(settings("fp32"))
    found = product_kernels.describe(settings("fp32"), CPU)
    assert found["matmul_kernels"] == found["kernel_gflops"] == {} and found["matmul_gflops"].keys() == {"fp32"}

    class OnGPU:
        device = torch.device("cuda")

    product_kernels.choose(OnGPU(), settings("bf16"))


@pytest.mark.parametrize("others, kernels", [(140, "rungwise"), (60, "pytorch")])
def test_processes_decide_alike_by_the_mean(rates, monkeypatch, others, kernels):
    """What this process has measured is near the margin; the other one's decides."""
    rates |= {"pytorch": 100, "rungwise": 104}
    other = {"pytorch": 100, "rungwise": others}
    monkeypatch.setattr(product_kernels, "gather_object", lambda own: [*own, other])
    build_accelerator(settings("bf16"))
    found = product_kernels.describe(settings("bf16"), CPU)
    assert found["matmul_kernels"] == {"bf16": kernels}
    assert found["kernel_gflops"] == {"pytorch": 100, "rungwise": (104 + others) / 2}


def timed(monkeypatch, seconds):
    """A clock that products move on: `seconds` of a kernel's nth product, counted by kernel."""
    now, calls = [0.0], {name: itertools.count() for name in seconds}
    shapes = []

    def kernel(name):
        def multiply(a, b):
            shapes.append((*a.shape, b.shape[1], a.dtype))
            now[0] += seconds[name](next(calls[name]))

        return multiply

    monkeypatch.setattr(product_kernels, "KERNELS", {name: kernel(name) for name in seconds})
    return (lambda: now[0]), shapes


def test_rates_are_those_of_a_training_steps_products_at_their_best(monkeypatch):
    # The first round is slow, the second 10 ms and 20 ms a product.
    seconds = {"pytorch": lambda n: 0.05 if n < 6 else 0.01, "rungwise": lambda n: 0.05 if n < 6 else 0.02}
    clock, shapes = timed(monkeypatch, seconds)
    found = measure(torch.bfloat16, seconds=0.77, clock=clock)
    layer, logits = 2 * 2048 * 256 * 1024, 2 * 2048 * 256 * 2048
    flops = 3 * layer + 3 * logits
    assert found == pytest.approx({"pytorch": flops / 0.06 / 1e9, "rungwise": flops / 0.12 / 1e9})
    assert len(shapes) == 24 and shapes[0] == shapes[1] == (2048, 256, 1024, torch.bfloat16)
    assert {shape[:3] for shape in shapes} == {
        (2048, 256, 1024),
        (2048, 1024, 256),
        (256, 2048, 1024),
        (2048, 256, 2048),
        (2048, 2048, 256),
        (256, 2048, 2048),
    }


def test_a_hopeless_kernel_does_not_hold_a_run_up(monkeypatch):
    clock, shapes = timed(monkeypatch, {"pytorch": lambda n: 3.0, "rungwise": lambda n: 0.01})
    found = measure(torch.float16, clock=clock)
    assert len(shapes) == 2 and found["rungwise"] == pytest.approx(300 * found["pytorch"])


def test_the_measured_kernels_are_pytorchs_and_ours(monkeypatch):
    monkeypatch.setattr(product_kernels, "TOKENS", 64)
    found = measure(torch.bfloat16, seconds=0.0)
    assert found.keys() == {"pytorch", "rungwise"} and min(found.values()) > 0
    a, b = product_kernels._products(torch.bfloat16)[1]
    own, blocks = (multiply(a, b) for multiply in product_kernels.KERNELS.values())
    torch.testing.assert_close(own, blocks, rtol=2**-7, atol=2**-5)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_the_settings_say_whose_products_are_slower_than_fp32s(precision):
    environment = {"device_name": device_name(CPU), "device": "cpu", "threads": 2, "torch": "2"}

    def line(own, kernels):
        environment["matmul_gflops"] = {"fp32": 340.0, precision: own}
        environment["matmul_kernels"] = kernels
        return next(x for x in settings_block(settings(precision), environment).splitlines() if "products" in x)

    slow = f"  Matrix products: 180 GFLOP/s in {precision}; 340 in fp32; they are slower in {precision} here"
    assert line(180.2, {precision: "pytorch"}) == line(180.2, {}) == slow
    assert line(1264.9, {precision: "pytorch"}) == f"  Matrix products: 1,265 GFLOP/s in {precision}; 340 in fp32"
    blocks = f"{precision}, computed in fp32 and rounded; 340 in fp32; they are slower in {precision} here"
    assert line(320.0, {precision: "rungwise"}).endswith(blocks)
    assert "products" not in settings_block(settings("fp32"), environment)


def test_kernels_are_compared_within_a_precision_and_rates_are_not():
    fp32 = {"matmul_kernels": {}, "matmul_gflops": {"fp32": 340.0}}
    own = {"matmul_kernels": {"bf16": "pytorch"}, "matmul_gflops": {"fp32": 330.0, "bf16": 180.0}}
    blocks = {"matmul_kernels": {"bf16": "rungwise"}, "kernel_gflops": {"pytorch": 1.0}}
    for other in (own, blocks, {"matmul_kernels": {"fp16": "rungwise"}}, {}):
        assert differences(fp32, other) == differences(other, fp32) == {}
    assert differences(own, blocks) == {"matmul_kernels": ({"bf16": "pytorch"}, {"bf16": "rungwise"})}
    assert differences(own, {**own, "matmul_gflops": {}}) == {}
    # An older result does not say which ones it had.
    assert differences({}, own) == {"matmul_kernels": (None, {"bf16": "pytorch"})}
