"""The memory meter against tensors of known size and against an independent count."""

import subprocess
import sys
from contextlib import nullcontext

from rungwise.metrics import allocations, memory, resident
from rungwise.metrics.memory import MIB, MemoryMeter, optimizer_state_bytes, tensor_bytes
from rungwise.metrics.resident import peak_rss_bytes
from rungwise.model.model import build_model, load_config
from rungwise.techniques import build_optimizer, gradient_checkpointing

import pytest
import torch
from commands import ablate_here
from harness import MODEL, tiny_settings
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM

SYNTHETIC = ["--dataset_name", "synthetic", "--block_size", "32", "--report_to", "none"]
CPU = torch.device("cpu")


def test_tied_and_shared_tensors_count_once():
    a = torch.zeros(1000)
    assert tensor_bytes(iter([a, a, a[10:20], torch.zeros(3)])) == 4000 + 12


def test_tensors_of_known_size():
    """A model of one matrix, trained by hand: each peak is a sum that can be written down."""
    n = 2**20
    meter = MemoryMeter(CPU)
    with meter.building():
        weight = torch.nn.Parameter(torch.zeros(n))
        model = torch.nn.ParameterList([weight])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        torch.empty(5 * n)  # gone at once, and so only in the building's own peak
    assert meter.peak_bytes() == (1 + 5) * 4 * n
    meter.watch(model, optimizer)
    for _ in range(2):
        with meter.window():
            weight.grad = torch.ones(n)
            held = torch.empty(7 * n)
            optimizer.step()
            optimizer.zero_grad()
            del held
    assert meter.done
    figures = meter.result()
    # The parameter, its momentum, its gradient and the 7 n that were held.
    scalars = meter.peak_bytes() - (1 + 1 + 1 + 7) * 4 * n
    assert 0 <= scalars < 64
    assert figures["parameters_mib"] == figures["gradients_mib"] == figures["optimizer_state_mib"] == 4 * n / MIB
    assert figures["buffers_mib"] == 0
    assert figures["activations_mib"] == (7 * 4 * n + scalars) / MIB


def test_the_meter_waits_for_the_optimizer_state():
    """A step that fp16 skipped leaves no state; a peak without it would be a third of the truth."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    meter = MemoryMeter(CPU)
    meter.watch(model, optimizer)
    for _ in range(3):
        with meter.window():
            pass
    assert not meter.done and meter.result()["peak_allocated_mib"] is None
    for expected in (False, True):
        with meter.window():
            model(torch.zeros(4, 8)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert meter.done is expected


def test_the_meter_waits_for_a_step_that_is_not_skipped():
    """One without its optimizer's step, as fp16's or a window's without a loss, is no whole step."""
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    meter = MemoryMeter(CPU)
    with meter.building():
        pass
    meter.watch(model, optimizer)
    for skipped, done in ((False, False), (True, False), (True, False), (False, True)):
        with meter.window():
            model(torch.randn(2, 4)).sum().backward()
            if not skipped:
                optimizer.step()
            optimizer.zero_grad()
        assert meter.done is done


def _steps(model, optimizer, batch, count, meter=None):
    for _ in range(count):
        with meter.window() if meter else nullcontext():
            loss = model(**batch, num_items_in_batch=torch.tensor(batch["labels"].numel())).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            del loss


def _batch(rows=16, length=32):
    ids = torch.randint(128, (rows, length), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("flags", [[], ["--gradient_checkpointing"]])
def test_agrees_with_mem_tracker_and_with_one_unbroken_profile(flags):
    """Eager, wide enough that what the two count differently (32-byte rounding, scalars) is under 1%."""
    wide = MODEL.replace("n_embd=32", "n_embd=128").replace("n_layer=2", "n_layer=4")
    settings = tiny_settings("--config_overrides", wide, *flags)
    batch = _batch()

    meter = MemoryMeter(CPU)
    with meter.building():
        model = build_model(settings)
        gradient_checkpointing.apply(model, settings, CPU)
        optimizer = build_optimizer(model, settings)
    model.train()
    meter.watch(model, optimizer)
    _steps(model, optimizer, batch, 2, meter)
    measured = meter.peak_bytes()
    owners = meter.result()
    assert owners["parameters_mib"] * MIB == sum(p.numel() * 4 for p in model.parameters())
    assert owners["gradients_mib"] == owners["parameters_mib"]
    assert owners["optimizer_state_mib"] * MIB == optimizer_state_bytes(optimizer)
    # Two moments, and a step count in each parameter's state.
    expected = 2 * owners["parameters_mib"] * MIB + 4 * len(list(model.parameters()))
    assert owners["optimizer_state_mib"] * MIB == expected
    assert owners["activations_mib"] > 0

    del model, optimizer
    tracker = MemTracker()
    model = build_model(settings)
    gradient_checkpointing.apply(model, settings, CPU)
    optimizer = build_optimizer(model, settings)
    model.train()
    tracker.track_external(model, optimizer)
    with tracker:
        _steps(model, optimizer, batch, 1)
        tracker.reset_mod_stats()
        _steps(model, optimizer, batch, 1)
    counted = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    assert measured == pytest.approx(counted, rel=0.01)

    del model, optimizer
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        model = build_model(settings)
        gradient_checkpointing.apply(model, settings, CPU)
        optimizer = build_optimizer(model, settings)
        model.train()
        _steps(model, optimizer, batch, 2)
    held = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    assert measured == pytest.approx(peak, rel=0.01)


def test_resident_size_is_larger_than_what_is_held():
    held = torch.ones(2**22)
    assert peak_rss_bytes() > held.nbytes


def test_resident_size_is_not_that_of_the_process_that_started_this_one():
    """A launcher may be the larger of the two: here it has loaded PyTorch, and what it starts has not."""
    command = f"import runpy; print(runpy.run_path({resident.__file__!r})['peak_rss_bytes']())"
    child = int(subprocess.run([sys.executable, "-c", command], capture_output=True, check=True).stdout)
    assert child < 100 * MIB < 200 * MIB < peak_rss_bytes()


@pytest.mark.gpu
def test_cuda_counts_its_own_peak():
    device = torch.device("cuda")
    meter = MemoryMeter(device)
    with meter.building():
        model = torch.nn.Linear(1024, 1024, bias=False, device=device)
        optimizer = torch.optim.AdamW(model.parameters())
    meter.watch(model, optimizer)
    for _ in range(2):
        with meter.window():
            model(torch.zeros(4, 1024, device=device)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    figures = meter.result()
    assert figures["parameters_mib"] == figures["gradients_mib"] == 4
    assert figures["optimizer_state_mib"] == pytest.approx(8, abs=0.01)
    assert 16 <= figures["peak_allocated_mib"] <= figures["peak_reserved_mib"]


def test_a_loaded_model_weighs_what_one_made_anew_does(tmp_path):
    """Transformers loads weights in threads, which the profiler sees in part. Held to 1%, as the meter is."""
    config = load_config(tiny_settings("--config_overrides", "n_embd=256,n_layer=4,vocab_size=2048,n_positions=32"))
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path / "model")
    peaks = {}
    for name in ("model_name_or_path", "config_name"):
        flags = ["--config", "accelerate_configs/fp32_cpu.yaml", f"--{name}", str(tmp_path / "model"), *SYNTHETIC]
        memory = ablate_here(tmp_path / name, *flags, "--max_steps", "4")["memory"]
        assert memory["activations_mib"] > 0
        peaks[name] = memory["peak_allocated_mib"]
    assert peaks["model_name_or_path"] == pytest.approx(peaks["config_name"], rel=0.01)


class FakeAllocator:
    """An accelerator's allocator by its counters alone, as `torch.accelerator` gives them."""

    def __init__(self, patch):
        self.held = self.peak = self.reserved = self.peak_reserved = self.retries = 0
        replaced = {
            "empty_cache": lambda: self._reserve(self.held),
            "reset_peak_memory_stats": self._reset,
            "max_memory_allocated": lambda: self.peak,
            "max_memory_reserved": lambda: self.peak_reserved,
            "memory_allocated": lambda: self.held,
            "memory_stats": lambda: {"num_alloc_retries": self.retries},
            "synchronize": lambda: None,
        }
        for name, function in replaced.items():
            patch.setattr(torch.accelerator, name, function)
        patch.setattr(allocations, "_cuda_allocations", lambda: nullcontext([(0, 10**12)]))

    def _reset(self):
        self.peak, self.peak_reserved = self.held, self.reserved

    def _reserve(self, reserved):
        self.reserved = reserved
        self.peak_reserved = max(self.peak_reserved, reserved)

    def keep(self, size):
        self.held += size
        self.spike(0)

    def spike(self, size):
        """What is taken and given back at once; the allocator keeps it reserved, after one failure."""
        self.peak = max(self.peak, self.held + size)
        self._reserve(max(self.reserved, self.held + size))
        self.retries += size > 0


class RealAllocator:
    """The CPU's."""

    def keep(self, size):
        pass

    def spike(self, size):
        torch.empty(size, dtype=torch.uint8)


@pytest.mark.parametrize("device", ["cpu", "cuda", "xpu"])
@pytest.mark.parametrize("in_building, in_step", [(500, 300), (200, 700)])
def test_only_the_phases_of_the_meter_count_on_every_device(device, in_building, in_step, monkeypatch):
    """Building and the first whole step. Not what compiles before that step, nor what evaluates or saves after it."""
    unit = 2**20
    allocator = RealAllocator() if device == "cpu" else FakeAllocator(monkeypatch)
    meter = MemoryMeter(torch.device(device))
    allocator.spike(2000 * unit)
    with meter.building():
        model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(unit // 4))])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        allocator.keep(unit)
        allocator.spike(in_building * unit)
    meter.watch(model, optimizer)

    def step(size):
        with meter.window():
            model[0].grad = torch.ones(unit // 4)
            allocator.spike(size)
            optimizer.step()
            optimizer.zero_grad()

    step(3000 * unit)  # compiles and tries kernels
    allocator.keep(unit)  # the optimizer's state
    allocator.spike(2000 * unit)  # loads a checkpoint
    step(in_step * unit)
    assert meter.done
    closed = meter.result()
    # The parameter is there in building; in the step also its momentum and, on the CPU, the gradient.
    expected = max(1 + in_building, 2 + (device == "cpu") + in_step)
    assert closed["peak_allocated_mib"] == pytest.approx(expected, abs=0.01)
    if device != "cpu":
        assert closed["peak_reserved_mib"] == expected and closed["alloc_retries"] == 2
    allocator.spike(5000 * unit)
    monkeypatch.setattr(memory, "peak_rss_bytes", lambda: 2**50)
    assert meter.result() == closed
    assert meter.peak_bytes() == closed["peak_allocated_mib"] * MIB
