"""Where a step's time goes: each operator in its class, classes that add up, and steps that never mix."""

import contextlib
import json
import time
from collections import Counter
from types import SimpleNamespace

from rungwise.loop import train
from rungwise.metrics import step_profile
from rungwise.metrics.step_classes import BACKWARD, CLASSES, DATA, RANGE, STEP, _classes, classify
from rungwise.metrics.step_profile import NONE_LEFT, StepProfile
from rungwise.metrics.throughput import StepMeter
from rungwise.model.model import CausalLMLoss
from rungwise.techniques.torch_compile import why_not_profiled

import pytest
import torch
from accelerate import Accelerator
from commands import ablate_here
from harness import TINY, NoMemory, tiny_settings
from needs import ROTARY
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

CPU = torch.device("cpu")
IDS = {"bos_token_id": None, "eos_token_id": None, "vocab_size": 64}
LAYERS = 2
KEYS = {"step_ms", *(f"{name}_ms" for name in CLASSES)}


def gpt2(attention):
    # Where attention drops, PyTorch has no flash kernel for a CPU.
    drops = dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), 0.0)
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": LAYERS, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(attn_implementation=attention, **sizes, **drops, **IDS))


def llama(attention):
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": LAYERS, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=16, attn_implementation=attention, **sizes, **IDS))


def profiled(monkeypatch, model, autocast=True, compiled=False):
    """The events of one profiled training step on the CPU with their classes, and the profile."""
    events = []
    monkeypatch.setattr(
        step_profile, "classify", lambda found, device: events.extend(found) or classify(found, device)
    )
    model.loss_function = CausalLMLoss()
    optimizer = torch.optim.AdamW(model.parameters())
    rows = torch.randint(IDS["vocab_size"], (3, 16))

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(rows, labels=rows, num_items_in_batch=torch.tensor(45)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    profile = StepProfile(CPU)
    profile.watch(model, lambda: True, compiled=compiled)
    step()
    with profile.window():
        step()
    host = sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns()))
    named = Counter((event.name(), name) for event, name in zip(host, _classes(host), strict=True))
    return named, profile


def of(named, operator):
    """How often an operator was seen, by class."""
    return {name: count for (event, name), count in named.items() if event == f"aten::{operator}"}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", [gpt2, pytest.param(llama, marks=ROTARY)])
def test_operators_land_in_their_classes(monkeypatch, family, attention, autocast):
    named, profile = profiled(monkeypatch, family(attention), autocast)
    projections = {gpt2: 4, llama: 7}[family]
    # One forward, two backward; the logits are a product, too. Autocast's addmm calls the one that multiplies.
    products = 3 * (projections * LAYERS + 1) + (projections * LAYERS if family is gpt2 and autocast else 0)
    assert sum(sum(of(named, name).values()) for name in ("mm", "addmm")) == products
    assert of(named, "mm").keys() == {"products"} and of(named, "addmm").keys() <= {"products"}
    if attention == "eager":
        assert of(named, "bmm") == {"attention": 6 * LAYERS}
        assert of(named, "_softmax") == of(named, "_softmax_backward_data") == {"attention": LAYERS}
    else:
        flash = "_scaled_dot_product_flash_attention_for_cpu"
        assert of(named, flash) == of(named, f"{flash}_backward") == {"attention": LAYERS}
        assert not of(named, "bmm")
    if family is gpt2:
        # Two norms a layer and a last one; NewGELU is pow, tanh, products and sums.
        assert of(named, "native_layer_norm") == of(named, "native_layer_norm_backward")
        assert of(named, "native_layer_norm") == {"normalisation": 2 * LAYERS + 1}
        assert of(named, "tanh") == of(named, "tanh_backward") == {"activation": LAYERS}
        # Forward, and once more in its derivative.
        assert of(named, "pow") == {"activation": 2 * LAYERS}
    else:
        assert of(named, "rsqrt") == {"normalisation": 2 * LAYERS + 1}
        assert of(named, "pow").keys() == {"normalisation"} and of(named, "mean").keys() == {"normalisation"}
        assert of(named, "silu") == of(named, "silu_backward") == {"activation": LAYERS}
        # Rotary positions belong to no class, the rotation of queries and keys to attention.
        assert of(named, "cos") == {"rest": 1} and of(named, "neg").keys() == {"attention"}
    for name in ("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward", "nll_loss_backward"):
        assert of(named, name) == {"loss": 1}
    # The logits are cast to fp32 for the loss; casts for products are theirs.
    assert named["ToCopyBackward0", "loss"] == autocast
    assert (named["ToCopyBackward0", "products"] > 0) == autocast
    parameters = sum(1 for _ in family(attention).parameters())
    assert of(named, "addcdiv_") == {"optimizer": parameters}
    assert of(named, "embedding") == {"rest": {gpt2: 2, llama: 1}[family]}
    found = profile.result()
    assert found.keys() == KEYS and found["fused_ms"] == 0
    assert all(found[f"{name}_ms"] > 0 for name in set(CLASSES) - {"fused", "data"})
    assert sum(found[f"{name}_ms"] for name in CLASSES) == pytest.approx(found["step_ms"])


def test_recomputed_operators_are_in_their_classes_too(monkeypatch):
    """Also where recomputing ends in the midst of a module, as a checkpoint does."""
    model = gpt2("eager")
    model.gradient_checkpointing_enable()
    named, profile = profiled(monkeypatch, model, autocast=False)
    assert of(named, "tanh") == {"activation": 2 * LAYERS} and of(named, "tanh_backward") == {"activation": LAYERS}
    assert of(named, "bmm") == {"attention": 8 * LAYERS}
    assert of(named, "native_layer_norm") == {"normalisation": 4 * LAYERS + 1}
    # The last product of a layer begins, and ends by an exception when it has kept what backward needs of it.
    assert sum(sum(of(named, name).values()) for name in ("mm", "addmm")) == 3 * (4 * LAYERS + 1) + 4 * LAYERS
    assert of(named, "addmm").keys() == of(named, "mm").keys() == {"products"}
    assert named["rungwise::products", "products"] == 8 * LAYERS + 1
    # What is added to the residual stream is in no class, forward and again: it runs in a node that waits for it.
    assert ("aten::add", "products") not in named and of(named, "add")["rest"] >= 3 * LAYERS
    assert sum(profile.result()[f"{name}_ms"] for name in CLASSES) == pytest.approx(profile.result()["step_ms"])


def test_a_module_that_ends_by_an_exception_ends_its_mark(monkeypatch):
    events = []
    monkeypatch.setattr(step_profile, "classify", lambda found, device: events.extend(found) or {})

    class StoppedNorm(torch.nn.Module):
        def forward(self, x):
            torch.neg(x)
            raise ZeroDivisionError

    model = StoppedNorm()
    profile = StepProfile(CPU)
    profile.watch(model, lambda: True)
    with profile.window():
        with contextlib.suppress(ZeroDivisionError):
            model(torch.ones(2))
        torch.ones(2).exp()
    host = sorted(events, key=lambda event: (event.start_ns(), -event.duration_ns()))
    found = {event.name(): name for event, name in zip(host, _classes(host), strict=True)}
    assert (found["aten::neg"], found["aten::exp"]) == ("normalisation", "rest")


@pytest.mark.breadth(2, of="compiled code")
def test_compiled_code_is_what_it_fuses_and_what_it_calls(monkeypatch):
    model = gpt2("sdpa")
    model.compile()
    named, profile = profiled(monkeypatch, model, compiled=True)
    assert of(named, "mm").keys() | of(named, "addmm").keys() == {"products"}
    assert of(named, "_scaled_dot_product_flash_attention_for_cpu_backward") == {"attention": LAYERS}
    found = profile.result()
    assert min(found[f"{name}_ms"] for name in ("fused", "products", "attention", "optimizer")) > 0
    assert found["normalisation_ms"] == found["activation_ms"] == 0
    assert sum(found[f"{name}_ms"] for name in CLASSES) == pytest.approx(found["step_ms"])


def test_a_profile_leaves_nothing_in_the_model(monkeypatch):
    model = gpt2("eager")
    _, profile = profiled(monkeypatch, model)
    assert isinstance(model.loss_function, CausalLMLoss)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    profile.forget()
    with pytest.raises(ZeroDivisionError), profile.window():
        raise ZeroDivisionError
    assert isinstance(model.loss_function, CausalLMLoss) and profile.wanted
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def tiny_run(folder, *flags, config="fp32"):
    flags = ("--config", f"accelerate_configs/{config}.yaml", *TINY, "--max_steps", "6", *flags)
    return ablate_here(folder, *flags)


def test_a_run_profiles_the_step_between_memory_and_the_timed_ones(tmp_path, monkeypatch):
    """The memory meter has the profiler on in its step; in no timed step is it."""
    on, steps, ranges = [], [], []

    class Clocked(torch.profiler.record_function):
        """A range whose time is taken around it, too."""

        def __enter__(self):
            self.began = time.perf_counter()
            return super().__enter__()

        def __exit__(self, *error):
            super().__exit__(*error)
            ranges.extend([time.perf_counter() - self.began] if self.name == STEP else [])

    monkeypatch.setattr(step_profile, "record_function", Clocked)
    monkeypatch.setattr(
        "rungwise.loop._tokens_with_loss",
        lambda batch: on.append(torch.autograd._profiler_enabled()) or (batch["labels"][:, 1:] != -100).sum(),
    )
    monkeypatch.setattr("rungwise.run.reporter.Reporter.show", lambda self, step: steps.append(step))
    found = tiny_run(tmp_path / "run")["profile"]
    # Behind the steps come those that the forecast takes without storage.
    assert on[: len(steps)] == [False, True, True, False, False, False]
    assert [step.timed for step in steps] == [False] * 3 + [True] * 3
    assert found.keys() == KEYS
    assert sum(found[f"{name}_ms"] for name in CLASSES) == pytest.approx(found["step_ms"])
    assert 0 < found["data_ms"] < found["step_ms"]
    # The whole step and nothing beside it; the profiler's clock may differ from Python's by a thousandth.
    [around] = ranges
    assert 999 * steps[2].seconds < found["step_ms"] < 1001 * around and found["rest_ms"] > 0


def test_training_is_the_same_with_and_without(tmp_path):
    flags = ("--config_overrides", "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2,resid_pdrop=0.1")
    flags += ("--gradient_checkpointing", "--gradient_accumulation_steps", "2")
    runs = [tiny_run(tmp_path / steps, *flags, "--untimed_steps", steps) for steps in ("3", "2")]
    assert runs[0]["profile"]["step_ms"] > 0
    assert runs[1]["profile"] == {"step_ms": None, "reason": NONE_LEFT}
    assert runs[0]["loss"] == runs[1]["loss"] and runs[0]["evidence"] == runs[1]["evidence"]
    # Nor does it show in what a run is said to take of memory.
    owners = ("peak_allocated_mib", "activations_mib")
    assert [runs[0]["memory"][name] for name in owners] == [runs[1]["memory"][name] for name in owners]


def meter_of(profile, untimed=3, windows=1):
    class Memory(NoMemory):
        left = windows

        @property
        def done(self):
            return self.left <= 0

        def window(self):
            self.left -= 1
            return super().window()

    meter = StepMeter(CPU, Memory(), untimed)
    meter.profile = profile
    return meter


class FakeProfile:
    """Notes in which steps it was asked for; wanted until it has one."""

    def __init__(self, ready=1):
        self.ready, self.asked, self.kept = ready, [], []

    @property
    def wanted(self):
        return self.step >= self.ready and not self.kept

    def window(self):
        self.asked.append(self.step)
        self.kept.append(self.step)
        return NoMemory().window()

    def forget(self):
        self.kept.clear()


@pytest.mark.parametrize(
    "untimed, windows, ready, compiles, asked, kept",
    [
        (3, 1, 1, (), [2], [2]),
        (3, 2, 1, (), [3], [3]),
        # Evidence is not there yet.
        (4, 1, 4, (), [4], [4]),
        # None left: after memory, after evidence, since something is compiled in each.
        (2, 2, 1, (), [], []),
        (3, 1, 4, (), [], []),
        (3, 1, 1, (2, 3), [2, 3], []),
        (3, 1, 1, (2,), [2, 3], [3]),
    ],
)
def test_the_first_untimed_step_after_memory_and_evidence(untimed, windows, ready, compiles, asked, kept):
    profile = FakeProfile(ready)
    meter = meter_of(profile, untimed, windows)
    compilations = [0]
    meter.compilations = lambda: compilations[0]
    for profile.step in range(1, 7):
        with meter.step() as timing:
            compilations[0] += profile.step in compiles
        assert not (timing.timed and profile.step in profile.asked)
    assert (profile.asked, profile.kept) == (asked, kept)


def test_a_step_without_an_update_is_no_profile():
    """fp16 skips what overflows: the optimizer does not step."""
    profile = StepProfile(CPU)
    assert not profile.wanted
    profile.watch(torch.nn.Linear(2, 2), lambda: True)
    with profile.window():
        torch.ones(2, 2) @ torch.ones(2, 2)
    assert profile.wanted and profile.result() == {"step_ms": None, "reason": NONE_LEFT}


def test_a_wait_for_data_shows_as_data():
    model = torch.nn.Module()
    model.table = torch.nn.Embedding(8, 8)

    def forward(input_ids, labels, num_items_in_batch):
        logits = model.table(input_ids)[:, :-1].flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
        return SimpleNamespace(loss=loss / num_items_in_batch)

    model.forward = forward
    ids = torch.arange(8).repeat(4, 1)

    def batches():
        while True:
            time.sleep(0.2)
            # Also what the loader computes is data.
            ids.float() @ ids.float().t()
            yield {"input_ids": ids.clone(), "labels": ids.clone()}

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    profile = StepProfile(CPU)
    profile.watch(model, lambda: True)
    meter = meter_of(profile)
    steps = train(Accelerator(cpu=True), model, optimizer, scheduler, batches(), meter, max_steps=4, max_grad_norm=1.0)
    assert len(list(steps)) == 4
    found = profile.result()
    # The profiler's clock may differ from that of the wait by a thousandth.
    assert 0.999 * 200 < found["data_ms"] < found["step_ms"] and found["loss_ms"] > 0
    assert found["products_ms"] == 0


def test_cuda_graphs_are_not_profiled(monkeypatch):
    modes = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
    compiled = [tiny_settings("--torch_compile", "--torch_compile_mode", mode) for mode in modes]
    assert [bool(why_not_profiled(settings, "cuda")) for settings in compiled] == [False, True, True, False]
    assert why_not_profiled(compiled[1], "cpu") == why_not_profiled(tiny_settings(), "cuda") == ""
    profile = StepProfile(CPU)
    profile.watch(torch.nn.Linear(2, 2), lambda: True, compiled=True, why_not=why_not_profiled(compiled[1], "cuda"))
    assert not profile.wanted and "CUDA graphs" in profile.result()["reason"]


def event(name, start, end, *, thread=1, device="CPU", scope=0, number=-1, forward=0, id=0, linked=0, note=False):
    """An event of a profile as Kineto has them; times in ms."""
    fields = {
        "name": name,
        "start_ns": int(start * 1e6),
        "end_ns": int(end * 1e6),
        "duration_ns": int((end - start) * 1e6),
        "start_thread_id": thread,
        "device_type": SimpleNamespace(name=device),
        "scope": scope,
        "sequence_nr": number,
        "fwd_thread_id": forward,
        "correlation_id": id,
        "linked_correlation_id": linked,
        "is_user_annotation": note,
        "is_async": False,
    }
    return SimpleNamespace(**{key: (lambda value=value: value) for key, value in fields.items()})


def test_on_a_cpu_operators_count_with_their_own_time():
    """Marks and nodes are Python's; loss and optimizer are whole, products included; other threads wait or help."""
    chunked = "_linear_cross_entropy_batch_chunked"
    events = [
        event(STEP, 0, 100, scope=RANGE),
        event(DATA, 1, 8, scope=RANGE),
        event("aten::stack", 2, 4),
        event("rungwise::attention", 10, 20, scope=RANGE),
        event("aten::matmul", 11, 17, number=4),
        event("aten::bmm", 12, 16, number=4),
        event("aten::bmm", 18, 19, number=5),
        event("aten::bmm", 21, 24, number=6),
        event(f"torch_nn::{chunked}", 25, 35, number=7),
        event("aten::mm", 26, 30),
        event("aten::add", 10, 90, thread=9),
        event(f"{chunked}Backward", 40, 50, scope=BACKWARD, number=7, forward=1),
        event("aten::mul_", 41, 44),
        event("Torch-Compiled Region: 0/0", 50, 59),
        event("## Call CompiledFxGraph f5bf", 51, 58),
        event("aten::addmm", 52, 55),
        event("aten::_scaled_dot_product_flash_attention_for_cpu", 55, 57),
        event("Optimizer.step#Muon.step", 60, 70, scope=RANGE),
        event("aten::mm", 61, 66),
        event("aten::_foreach_mul_", 71, 73),
    ]
    found = {name: ms for name, ms in classify(events[::-1], "cpu").items() if ms}
    known = {"data": 7, "attention": 6 + 1 + 2, "products": 3 + 3, "loss": 10 + 3, "fused": 4, "optimizer": 12}
    assert found == {"step": 100, **known, "rest": 100 - sum(known.values())}


def test_on_an_accelerator_kernels_count_for_what_launched_them():
    """Backward runs in a thread of its own there. Times of the host do not count, but the wait for data."""
    step = Counter()
    events = [
        event(STEP, 0, 100, scope=RANGE),
        event(DATA, 1, 8, scope=RANGE),
        event("rungwise::attention", 10, 20, scope=RANGE),
        event("aten::bmm", 11, 12, number=4, id=1),
        event("aten::mul", 13, 14, number=5, id=2),
        event("aten::mul", 21, 22, number=6, id=3),
        event("cudaLaunchKernel", 11.5, 11.6, thread=777, linked=1),
        event("autograd::engine::evaluate_function: MulBackward0", 30, 40, thread=2, number=5, forward=1),
        event("MulBackward0", 31, 39, thread=2, scope=BACKWARD, number=5, forward=1),
        event("aten::mul", 32, 33, thread=2, id=4),
        event("Optimizer.step#AdamW.step", 50, 60, scope=RANGE),
        event("aten::_foreach_add_", 51, 52, id=5),
        event("a gemm", 15, 45, device="CUDA", linked=1),
        event("an elementwise kernel", 45, 47, device="CUDA", linked=2),
        event("an elementwise kernel", 47, 48, device="CUDA", linked=3),
        event("an elementwise kernel", 48, 53, device="CUDA", linked=4),
        event("multi_tensor_apply", 60, 64, device="CUDA", linked=5),
        event("ncclDevKernel_AllReduce", 50, 90, device="CUDA", linked=4),
        event("rungwise::attention", 15, 47, device="CUDA", linked=1, note=True),
    ]
    found = classify(events, "cuda")
    step.update({name: ms for name, ms in found.items() if ms})
    assert step == {"step": 100, "data": 7, "attention": 30 + 2 + 5, "optimizer": 4, "rest": 100 - 7 - 37 - 4}
    assert classify([e for e in events if "Optimizer" not in e.name()], "cuda") == {}


def test_the_kinds_of_the_profilers_events_are_what_they_are_taken_for():
    from torch.profiler import ProfilerActivity, profile, record_function

    a = torch.ones(2, requires_grad=True)
    with profile(activities=[ProfilerActivity.CPU]) as profiler, record_function("mine"):
        (a * a).sum().backward()
    scopes = {e.name(): e.scope() for e in profiler.profiler.kineto_results.events()}
    assert (scopes["mine"], scopes["MulBackward0"], scopes["aten::mul"]) == (RANGE, BACKWARD, 0)


def test_profiles_are_json(tmp_path):
    folder = tmp_path / "run"
    tiny_run(folder)
    written = json.loads((folder / "result.json").read_text(encoding="utf-8"))["profile"]
    assert all(isinstance(ms, float) and ms >= 0 for ms in written.values())
