"""Forecasts for CUDA: its rules by hand counts on small modules, and its lists against PyTorch's headers.

What only a GPU can tell is asked of one, where there is one.
"""

import dataclasses
import itertools
import re
from functools import partial
from pathlib import Path

from rungwise.forecast import cuda, forecast
from rungwise.forecast.cuda_autocast import CUDA, Lists, autocast, of_the_cpu
from rungwise.forecast.cuda_kernels import block, temporaries, workspaces
from rungwise.forecast.cuda_operators import CUDNN, EFFICIENT, FLASH, MATH, attention_kernel
from rungwise.forecast.devices import CPU, cuda_device
from rungwise.forecast.trace import WORKSPACES, eager, trace
from rungwise.forecast.tracker import Tracker
from rungwise.metrics.memory import MIB

import grid
import pytest
import torch
from needs import EVERY_N_LAYERS, marked, needs
from test_extension import config_of, settings_of
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

KIB = 1024
# What PyTorch's autocast casts on the CPU, and to what it promotes; all else that it knows there is computed in fp32.
# aten/src/ATen/autocast_mode.cpp, `TORCH_LIBRARY_IMPL(aten, AutocastCPU, m)`.
LOWERED = (
    *("conv1d", "conv2d", "conv3d", "bmm", "mm", "linalg_vecdot", "baddbmm", "addmm", "addbmm", "linear", "matmul"),
    *("_convolution.deprecated", "conv_tbc", "mkldnn_rnn_layer", "conv_transpose1d", "conv_transpose2d.input"),
    *("conv_transpose3d.input", "prelu", "scaled_dot_product_attention", "_native_multi_head_attention"),
    *("conv1d.padding", "conv2d.padding", "conv3d.padding", "_addmm_activation"),
)
PROMOTED = ("stack", "cat", "index_copy")

TECHNIQUES = ("bf16, accumulation", "checkpointing", "every other layer", "reentrant")


def on_the_cpu():
    known = {name.removeprefix("aten::") for name in of_the_cpu()}
    assert known > {*LOWERED, *PROMOTED}
    return Lists(LOWERED, known - {*LOWERED, *PROMOTED}, (), {}, PROMOTED)


def on_gpu(function, capability=(8, 0)):
    """The log of a function on fake tensors, as a GPU has it."""
    device = cuda_device(capability)
    tracker = Tracker(device)
    with device.operators(), FakeTensorMode(), tracker, tracker.logged() as log:
        function()
    return log


def taken(log):
    """The sizes that were taken, in order."""
    return [change for _, change in log.changes if change > 0]


def peak(log):
    return max(itertools.accumulate((change for _, change in log.changes), initial=0))


def kept(log):
    return sum(change for _, change in log.changes)


# Lists


def in_the_header():
    """The lists of PyTorch's own header, by the macro that has them."""
    text = (Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h").read_text(encoding="utf-8")
    found = {}
    for name, body in re.findall(r"#define AT_FORALL_(\w+)\(_\)((?:.*\\\n)+.*\n)", text):
        entries = re.findall(r"_\(([\w ,]+)\)", body)
        found[name] = {".".join(part.strip() for part in entry.split(",")) for entry in entries}
        found[name] |= set(re.findall(r'"(\w+\.\w+)"', body))
    return found


@needs("the lists are those of its header", torch="2.13")
def test_autocast_lists_are_those_of_pytorchs_header():
    header = in_the_header()
    cudnn = {"cudnn_convolution", "cudnn_convolution_transpose"}
    assert set(CUDA.lower_precision) == header["LOWER_PRECISION_FP"] | cudnn
    assert set(CUDA.float32) == header["FP32"]
    assert set(CUDA.float32_result) == header["FP32_SET_OPT_DTYPE"]
    assert set(CUDA.widest) == header["PROMOTE"]
    assert set(CUDA.float32_overload) == {name for name in header["DIFFERENT_REDISPATCH_SIGNATURE"] if "norm" in name}


def test_constants_of_the_allocator_are_those_of_pytorchs_header():
    text = (Path(torch.__file__).parent / "include" / "c10" / "core" / "AllocatorConfig.h").read_text(encoding="utf-8")
    found = {name: int(value) for name, value in re.findall(r"constexpr size_t (k\w+) = (\d+);", text)}
    names = {
        "kMinBlockSize": "BLOCK",
        "kSmallSize": "LEAST_REST",
        "kMinLargeAlloc": "OWN_SEGMENT",
        "kRoundLarge": "SEGMENT",
    }
    for name, own in names.items():
        assert getattr(cuda, own) == found[name]


def heights(trace):
    """What is held after each allocation, and whose that is. Two that go at once may go in either order."""
    held = itertools.accumulate(change for _, change in trace.step.changes)
    rows = zip(held, trace.step.changes, trace.step.places, strict=True)
    return [(height, place) for height, (_, change), place in rows if change > 0]


@pytest.mark.parametrize("technique", marked(TECHNIQUES, {"every other layer": EVERY_N_LAYERS}))
@pytest.mark.parametrize("model", ["GPT-2", "Llama"])
def test_with_the_cpus_own_lists_nothing_changes(model, technique):
    """The mechanism, against the kernels that it takes the place of."""
    settings = settings_of("checkpointing" if technique == "reentrant" else technique)
    settings = dataclasses.replace(settings, mixed_precision="bf16")
    if technique == "reentrant":
        settings = dataclasses.replace(settings, gradient_checkpointing_kwargs={"use_reentrant": True})
    settings, config = eager(settings, settings.gradient_accumulation_steps), config_of(model)
    config.num_hidden_layers = 2
    device = dataclasses.replace(CPU, operators=partial(autocast, on_the_cpu()))
    one, other = trace(settings, config), trace(settings, config, device)
    assert heights(one) == heights(other)
    assert one.peak == other.peak


def test_autocast_is_the_cpus_again_afterwards():
    names = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    on_gpu(lambda: None)
    assert sorted(torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")) == sorted(names)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.ones(2, 2, dtype=torch.bfloat16).exp().dtype == torch.bfloat16
        assert F.dropout(torch.ones(4), 0.5).dtype == torch.float32


# Hand counts. B rows, T tokens, C wide.


def weight(*shape):
    return torch.zeros(*shape, requires_grad=True)


def test_autocast_casts_a_weight_once_and_an_input_each_time():
    """Weight 256 x 128, input 64 x 128, bf16: 64 KiB for the weight, 16 for the input, 32 for the product."""

    def twice():
        parameter, tensor = weight(256, 128), torch.zeros(64, 128)
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(tensor, parameter)
            F.linear(tensor, parameter)
        with torch.autocast("cpu", torch.bfloat16):
            F.linear(tensor, parameter)

    sizes = [size // KIB for size in taken(on_gpu(twice))]
    assert sizes == [128, 32, *(64, 16, 32), *(16, 32), *(64, 16, 32)]


@needs("its autocast keeps copies so", torch="2.13")
def test_a_copy_made_without_a_gradient_serves_a_pass_with_one():
    """As PyTorch's own casts do, which are asked first."""

    def passes():
        parameter, tensor = weight(256, 128), torch.zeros(64, 128)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                F.linear(tensor, parameter)
            return F.linear(tensor, parameter).requires_grad

    assert passes()
    found = []
    log = on_gpu(lambda: found.append(passes()))
    assert found == [True]
    assert taken(log).count(64 * KIB) == 1


def test_of_a_weight_that_is_kept_for_backward_one_copy_is_left():
    left = []

    def product():
        parameter, tensor = weight(256, 128), torch.zeros(64, 128)
        with torch.autocast("cpu", torch.bfloat16):
            left.append(F.linear(tensor, parameter))

    # Parameter and result, the cast input for the weight's gradient; the input has none, so the cast weight is gone.
    assert kept(on_gpu(product)) == 0 + (128 + 32 + 16) * KIB


def test_layer_norm_is_in_fp32_under_autocast():
    """Of a bf16 input (64, 256) it keeps a copy in fp32, its result in fp32, and two numbers a row."""
    left = []

    def norm():
        tensor = torch.zeros(64, 256, dtype=torch.bfloat16, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            left.append(F.layer_norm(tensor, (256,)))

    sizes = taken(on_gpu(norm))
    assert sizes == [32 * KIB, 64 * KIB, 64 * KIB, 512, 512]


def test_layer_norm_in_half_precision_keeps_its_numbers_in_fp32():
    sizes = taken(on_gpu(lambda: F.layer_norm(torch.zeros(KIB, 256, dtype=torch.bfloat16), (256,))))
    assert sizes == [512 * KIB, 512 * KIB, 4 * KIB, 4 * KIB]


@pytest.mark.parametrize(
    "operator, dtype",
    [
        (lambda t: t.pow(3), torch.float32),
        (lambda t: t.softmax(-1), torch.float32),
        (lambda t: t.sum(-1), torch.float32),
        (lambda t: t.norm(), torch.float32),
        (lambda t: t.norm(2, -1), torch.float32),
        (lambda t: torch.rsqrt(t), torch.float32),
        (lambda t: torch.nn.functional.silu(t), torch.bfloat16),
        (lambda t: t @ t.T.float(), torch.bfloat16),
        (lambda t: torch.einsum("ij,kj->ik", t, t.float()), torch.bfloat16),
        (lambda t: torch.addcmul(t, t.float(), t), torch.float32),
        (lambda t: torch.cat([t, t.float()]), torch.float32),
        (lambda t: t.double().exp(), torch.float64),
        (lambda t: t.long().cumsum(-1), torch.int64),
    ],
)
def test_dtypes_under_autocast(operator, dtype):
    """https://docs.pytorch.org/docs/stable/amp.html#autocast-op-reference"""
    found = []

    def run():
        with torch.autocast("cpu", torch.bfloat16):
            found.append(operator(torch.zeros(64, 64, dtype=torch.bfloat16)).dtype)

    on_gpu(run)
    assert found == [dtype]


def test_dropout_keeps_a_byte_for_each_number():
    left = []

    def drop(p=0.1, train=True):
        left.append(F.dropout(weight(KIB, KIB), p, train))

    assert taken(on_gpu(drop)) == [4 * MIB, 4 * MIB, MIB]
    assert taken(on_gpu(partial(drop, 0.0))) == taken(on_gpu(partial(drop, 0.5, False))) == [4 * MIB]


def test_sizes_are_those_of_blocks():
    sizes = {0: 0, 1: 512, 512: 512, 513: 1024, MIB: MIB, 9 * MIB + 1: 9 * MIB + 512}
    # A segment of its own, a multiple of 2 MiB: what is left of it is split off if it is more than 1 MiB.
    sizes |= {12 * MIB: 12 * MIB, 12 * MIB + 1: 12 * MIB + 512, 13 * MIB - 512: 13 * MIB - 512, 13 * MIB: 14 * MIB}
    sizes |= {50257 * 768 * 4: 148 * MIB}
    assert {size: block(size) for size in sizes} == sizes


def test_workspaces(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert [workspaces(capability) / MIB for capability in ((7, 5), (8, 0), (9, 0), (12, 0))] == [16.25, 16.25, 64, 64]
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8:16:4")
    assert workspaces((9, 0)) == 2 * block((4096 * 8 + 16 * 4) * KIB)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "many")
    assert workspaces((9, 0)) == 64 * MIB


HALF, SINGLE = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    "capability, dtype, heads, width, mask, dropout, kernel",
    [
        ((8, 0), HALF, 4, 64, False, 0.0, FLASH),
        ((8, 0), HALF, 2, 64, False, 0.1, FLASH),
        ((8, 0), HALF, 4, 64, True, 0.0, EFFICIENT),
        ((8, 0), HALF, 4, 60, True, 0.0, MATH),
        ((8, 0), HALF, 4, 512, False, 0.0, EFFICIENT),
        ((8, 0), SINGLE, 4, 64, False, 0.0, EFFICIENT),
        ((8, 0), SINGLE, 4, 62, False, 0.0, MATH),
        # Fewer heads of keys than of queries: flash and math alone.
        ((8, 0), SINGLE, 2, 64, False, 0.0, MATH),
        ((8, 9), HALF, 4, 256, False, 0.0, FLASH),
        ((8, 9), HALF, 4, 256, False, 0.1, EFFICIENT),
        ((8, 9), HALF, 4, 208, False, 0.0, EFFICIENT),
        ((7, 5), torch.float16, 4, 64, False, 0.0, EFFICIENT),
        ((7, 5), torch.float16, 2, 64, False, 0.0, MATH),
        ((7, 5), HALF, 4, 64, False, 0.0, MATH),
        ((7, 5), SINGLE, 4, 62, False, 0.0, EFFICIENT),
        ((9, 0), HALF, 2, 128, False, 0.0, CUDNN),
        ((9, 0), HALF, 4, 256, False, 0.0, FLASH),
        ((9, 0), HALF, 4, 64, False, 0.1, FLASH),
        ((9, 0), SINGLE, 4, 64, False, 0.0, EFFICIENT),
        ((12, 0), HALF, 4, 64, False, 0.0, FLASH),
    ],
)
def test_the_kernel_of_attention(capability, dtype, heads, width, mask, dropout, kernel):
    query = torch.zeros(1, 4, 16, width, dtype=dtype)
    key = torch.zeros(1, heads, 16, width, dtype=dtype)
    mask = torch.zeros(1, 1, 16, 16, dtype=torch.bool) if mask else None
    assert attention_kernel(capability, query, key, key, mask, dropout, mask is None, True) == kernel


def attend(left, dtype, tokens=100, heads=4, mask=False, capability=(8, 0)):
    """Attention of 2 rows, 4 heads of 64, whose result is kept."""

    def run():
        query, key, value = (weight(2, n, tokens, 64).to(dtype) for n in (4, heads, heads))
        options = {"attn_mask": torch.ones(2, 1, tokens, tokens, dtype=torch.bool)} if mask else {"is_causal": True}
        left.append(F.scaled_dot_product_attention(query, key, value, **options, enable_gqa=heads < 4))

    return on_gpu(run, capability)


def test_flash_attention_keeps_its_result_a_number_a_row_and_its_seeds():
    inputs = [2 * 4 * 100 * 64 * size for size in (4, 2)] * 3
    result, rows = 2 * 4 * 100 * 64 * 2, block(2 * 4 * 100 * 4)
    assert sorted(taken(attend([], HALF))) == sorted([*inputs, result, rows, 512, 512])


def test_memory_efficient_attention_rounds_rows_up_to_32():
    one = 2 * 4 * 100 * 64 * 4
    assert sorted(taken(attend([], SINGLE))) == sorted([one] * 4 + [2 * 4 * 128 * 4, 512, 512])


def test_a_mask_is_made_numbers_and_padded():
    half, rows = 2 * 4 * 128 * 64 * 2, 2 * 4 * 128 * 4
    sizes = taken(attend([], HALF, tokens=128, mask=True))
    mask = 2 * 128 * 128
    assert sorted(sizes) == sorted([2 * half, half] * 3 + [mask, mask, 2 * mask, half, rows, 512, 512])


def test_shared_heads_in_fp32_keep_scores_of_all_pairs():
    left = []
    scores = 2 * 4 * 100 * 100 * 4
    assert kept(attend(left, SINGLE, heads=2)) > kept(attend(left, SINGLE)) + scores


def test_backward_of_flash_attention_adds_up_in_fp32():
    """2 rows, 4 heads, 100 tokens, rounded up to 128: 4 bytes a row and a number; fewer heads of keys are repeated."""
    query, key, shared = (torch.zeros(2, heads, 100, 64, dtype=HALF, device="meta") for heads in (4, 4, 2))
    gradient = query.transpose(1, 2).contiguous().transpose(1, 2)
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    rows = 2 * 4 * 128 * 4
    assert temporaries(backward, ((gradient, query, key), {}), None) == rows + rows * 64
    expanded = 2 * (2 * 100 * 4 * 64 * 2)
    assert temporaries(backward, ((gradient, query, shared), {}), None) == rows + rows * 64 + block(expanded // 2) * 2
    # Heads of 40 are rounded up to 64; a gradient in another order is copied.
    narrow = torch.zeros(2, 4, 100, 40, dtype=HALF, device="meta")
    copied = 2 * 4 * 100 * 40 * 2
    assert temporaries(backward, ((narrow, narrow, narrow), {}), None) == rows + rows * 64 + block(copied)


def test_backward_of_memory_efficient_attention_has_a_workspace():
    """2 rows, 4 heads, 256 tokens, heads of 64: 4 tiles of 64 x 64 numbers and their locks, and a number a row."""
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    rows, workspace = 2 * 4 * 256 * 4, block(2 * 4 * 4 * (64 * 64 * 4 + 16))
    half, single = (torch.zeros(2, 256, 4, 64, dtype=dtype, device="meta").transpose(1, 2) for dtype in (HALF, SINGLE))
    assert temporaries(backward, ((half, half), {}), None) == rows + workspace
    # In fp32 there is a product of output and gradient before it, and its sum twice; it is the larger one.
    assert temporaries(backward, ((single, single), {}), None) == 2 * 256 * 4 * 64 * 4 + 2 * rows
    # Of heads of 40, the workspace: its tiles are as wide as before.
    narrow = torch.zeros(2, 256, 4, 40, device="meta").transpose(1, 2)
    assert temporaries(backward, ((narrow, narrow), {}), None) == rows + workspace


def test_backward_of_a_large_embedding_sorts():
    backward = torch.ops.aten.embedding_dense_backward.default
    count, rows, width = 4096, 1000, 64
    parts = 409 + 1000
    expected = [8 * count] * 3 + [8 * rows] * 2 + [8, 8, 8 * parts, 4 * parts * width]
    for tokens, size in ((4096, sum(map(block, expected))), (3072, 0)):
        indices = torch.zeros(tokens, dtype=torch.long, device="meta")
        gradient = torch.zeros(tokens, width, device="meta")
        assert temporaries(backward, ((gradient, indices, rows, -1, False), {}), None) == size


def test_norms_of_many_gradients_take_a_number_a_chunk():
    tensors = [torch.zeros(10, device="meta"), torch.zeros(65536 * 300 + 1, device="meta")]
    assert temporaries(torch.ops.aten._foreach_norm.Scalar, ((tensors, 2), {}), None) == block(2 * 301 * 4)


SIZES = (MIB, 2 * MIB, 3 * MIB)


def stepped(**options):
    """The second step of AdamW on parameters of 4, 8 and 12 MiB, as a GPU has it."""
    device = cuda_device()
    tracker = Tracker(device)
    with device.operators(), FakeTensorMode(), tracker:
        parameters = [weight(size) for size in SIZES]
        optimizer = torch.optim.AdamW(parameters, **options)
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        held = tracker.held()
        with tracker.logged() as log:
            optimizer.step()
    return held, log


def test_adamw_takes_all_parameters_at_once():
    held, log = stepped()
    assert peak(log) == sum(SIZES) * 4
    # Parameters, gradients, two moments. The steps' counts are on the host.
    assert held == 4 * sum(SIZES) * 4


def test_adamw_one_by_one_and_fused():
    _, log = stepped(foreach=False)
    # The root of the largest one's second moment, what it is divided to, and that of the one before.
    assert peak(log) == (2 * SIZES[2] + SIZES[1]) * 4
    held, log = stepped(fused=True)
    assert peak(log) == 0
    # Here they are on the GPU, a block each.
    assert held == 4 * sum(SIZES) * 4 + 3 * 512


# Whole models.


@pytest.mark.breadth(4)
@pytest.mark.parametrize("technique", ["fp32", "bf16, accumulation", "checkpointing", "LoRA"])
@pytest.mark.parametrize("model", ["GPT-2", "Llama"])
def test_two_depths_give_the_whole_model(model, technique):
    # Rows of 60 tokens: no multiple of a block.
    config, settings = config_of(model), dataclasses.replace(settings_of(technique), block_size=60)
    extended = forecast(settings, config, device="cuda")
    whole = trace(eager(settings, settings.gradient_accumulation_steps), config, cuda_device())
    assert extended.traced_layers < whole.blocks
    assert extended.peak_mib * MIB == whole.peak
    # A step ends with what it began with, its old rows exchanged for new ones; its last loss goes behind it.
    assert sum(change for _, change in whole.step.changes) == cuda.BLOCK
    for owner, size in extended.owners.items():
        if owner != "activations":
            assert size == pytest.approx(whole.owners[f"{owner}_mib"], abs=1e-9), owner
    assert sum(extended.owners.values()) == pytest.approx(extended.peak_mib)


def test_a_forecast_says_what_it_is_for():
    config, settings = config_of("Llama"), settings_of("fp32")
    here, there = forecast(settings, config), forecast(settings, config, device="cuda")
    assert (here.device, here.note) == ("cpu", None)
    assert (there.device, there.note) == ("cuda", "forecast, not measured on CUDA")
    assert there.owners["parameters"] == here.owners["parameters"]
    assert dict(there.activations)[WORKSPACES] == 16.25
    hopper = forecast(settings, config, device="cuda", capability=(9, 0))
    assert hopper.peak_mib == there.peak_mib + 64 - 16.25


def test_places_add_up_to_the_activations():
    config, settings = config_of("Llama"), settings_of("checkpointing")
    found = forecast(settings, config, device="cuda")
    places = dict(found.activations)
    # At the peak, which is the loss's, there are no gradients yet.
    assert sum(places.values()) == pytest.approx(found.owners["activations"] + found.owners["gradients"])
    assert min(places.values()) > 0


# On a GPU.

ON_A_GPU = tuple(
    grid.Case(family, technique, rows=(("use_cpu", False), ("block_size", 512)))
    for family in ("gpt2", "llama")
    for technique in ("fp32", "bf16", "fp16", "bf16, accumulation, checkpointing", "adamw_torch_fused", "LoRA")
)
# Per cent: what is claimed of it, and has not been measured yet.
BOUND = 1.0


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_A_GPU, ids=str)
def test_the_forecast_is_what_a_gpu_measures(case):
    settings, config = case.inputs()
    measured = grid.measure(settings, config)
    found = forecast(settings, config)
    assert found.device == "cuda"
    print(grid.table([(case, found, measured)]))
    assert abs(grid.error(found, measured)) <= BOUND
