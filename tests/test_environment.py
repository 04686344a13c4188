"""Switches that change speed, or what float32 means, are recorded, and refused where a label would be false."""

import contextlib

from rungwise import float32
from rungwise.environment import describe
from rungwise.run.configure import check
from rungwise.techniques import build_accelerator
from rungwise.techniques.seen import InactiveTechnique

import pytest
import torch
from harness import TINY, tiny_settings, train_tiny

CPU = torch.device("cpu")
FP32 = ["--config", "accelerate_configs/fp32.yaml", *TINY]
BF16 = ["--config", "accelerate_configs/bf16.yaml", *TINY]


@contextlib.contextmanager
def switched(on, off):
    on()
    try:
        yield
    finally:
        off()


def sdpa(name, enabled):
    getattr(torch.backends.cuda, f"enable_{name}_sdp")(enabled)


# What a person, a library or a container sets: how to set it and to take it back, and the entry that must show it.
SWITCHES = {
    "deterministic algorithms": (
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.use_deterministic_algorithms(False),
        ("deterministic_algorithms", True),
    ),
    "cudnn.benchmark": (
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
        lambda: setattr(torch.backends.cudnn, "benchmark", False),
        ("cudnn_benchmark", True),
    ),
    "cudnn.deterministic": (
        lambda: setattr(torch.backends.cudnn, "deterministic", True),
        lambda: setattr(torch.backends.cudnn, "deterministic", False),
        ("cudnn_deterministic", True),
    ),
    "fp16 accumulation": (
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True),
        lambda: setattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", False),
        ("fp16_accumulation", True),
    ),
    "no flash": (
        lambda: sdpa("flash", False),
        lambda: sdpa("flash", True),
        ("sdpa_backends", ["mem_efficient", "math", "cudnn"]),
    ),
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_recorded(name):
    on, off, (entry, value) = SWITCHES[name]
    before = describe(CPU)
    with switched(on, off):
        assert describe(CPU)[entry] == value != before[entry]
    assert describe(CPU)[entry] == before[entry]


def test_a_variable_is_recorded(monkeypatch):
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    assert describe(CPU)["variables"]["CUDA_LAUNCH_BLOCKING"] == "1"


@contextlib.contextmanager
def matmul_precision(value):
    with switched(lambda: torch.set_float32_matmul_precision(value), _plain_precision):
        yield


def _plain_precision():
    torch.set_float32_matmul_precision("highest")
    for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
        backend.fp32_precision = "none"


@contextlib.contextmanager
def backend_precision(backend, value):
    with switched(lambda: setattr(backend.matmul, "fp32_precision", value), _plain_precision):
        yield


# Device, what has fp32 products computed in another format, that format, and what the refusal names.
CULPRITS = {
    "high": ("cuda", lambda: matmul_precision("high"), "tf32", "torch.backends.cuda.matmul.fp32_precision tf32"),
    "medium": ("cpu", lambda: matmul_precision("medium"), "bf16", "torch.backends.mkldnn.matmul.fp32_precision bf16"),
    "cuda tf32": (
        "cuda",
        lambda: backend_precision(torch.backends.cuda, "tf32"),
        "tf32",
        "set_float32_matmul_precision",
    ),
    "cpu bf16": (
        "cpu",
        lambda: backend_precision(torch.backends.mkldnn, "bf16"),
        "bf16",
        "set_float32_matmul_precision",
    ),
    "NVIDIA_TF32_OVERRIDE=1": ("cuda", contextlib.nullcontext, "tf32", "NVIDIA_TF32_OVERRIDE=1 has"),
    "ONEDNN_DEFAULT_FPMATH_MODE=BF16": ("cpu", contextlib.nullcontext, "bf16", "ONEDNN_DEFAULT_FPMATH_MODE=BF16 has"),
    "DNNL_DEFAULT_FPMATH_MODE=ANY": ("cpu", contextlib.nullcontext, "bf16", "DNNL_DEFAULT_FPMATH_MODE=ANY has"),
    "ONEDNN_DEFAULT_FPMATH_MODE=tf32": ("cpu", contextlib.nullcontext, "tf32", "ONEDNN_DEFAULT_FPMATH_MODE=tf32 has"),
}


@pytest.mark.parametrize("name", CULPRITS)
def test_an_fp32_run_that_would_not_compute_in_fp32_is_refused(name, monkeypatch):
    """And recorded as what it is, where fp32 products have no part in the label."""
    device, context, found, words = CULPRITS[name]
    monkeypatch.setattr("rungwise.techniques.device_type", lambda settings: device)
    assert check(FP32)[1] == []
    assert float32.products(device) == "ieee"
    variable, _, value = name.partition("=")
    if value:
        monkeypatch.setenv(variable, value)
    with context():
        assert float32.products(device) == found
        [problem] = check(FP32)[1]
        assert check(BF16)[1] == []
        if value and device == "cpu":
            assert describe(CPU)["variables"][variable] == value and describe(CPU)["float32_products"] == found
    assert words in problem and f"computed in {found}; " in problem
    assert ("unset it" if value else "set_float32_matmul_precision('highest')") in problem


def test_the_variable_of_nvidias_containers_is_named(monkeypatch):
    """PyTorch reads it once, as it is imported, and turns its switch; whoever turns that back is not refused."""
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")
    assert float32.validate(tiny_settings(), "cuda") == []
    with matmul_precision("high"):
        [problem] = float32.validate(tiny_settings(), "cuda")
    assert "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 has fp32 matrix products computed in tf32; unset it" in problem


def test_what_forbids_tf32_goes_before_what_allows_it(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with matmul_precision("high"):
        assert float32.validate(tiny_settings(), "cuda") == []


@contextlib.contextmanager
def asked_for_tf32(monkeypatch, capability=(8, 0)):
    """A machine with a GPU of this capability, as far as it is asked before a run."""
    monkeypatch.setattr("rungwise.techniques.device_type", lambda settings: "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    yield [*FP32, "--tf32"]
    float32.set_tf32(False)


def test_tf32_by_its_flag_is_a_setting_and_no_part_of_the_environment(monkeypatch):
    with asked_for_tf32(monkeypatch) as call:
        assert check(call)[1] == [] and float32.products("cuda") == "ieee"
        float32.set_tf32(True)
        assert float32.products("cuda") == "tf32" and float32.products("cuda", with_flag=False) == "ieee"
        assert check(FP32)[1] == []
        float32.set_tf32(False)
        assert float32.products("cuda") == "ieee"


def test_tf32_that_cannot_act_is_refused(monkeypatch):
    assert check([*FP32, "--tf32"])[1] == [
        "--tf32 acts on NVIDIA GPUs alone, and this run is on another device; leave it out"
    ]
    with asked_for_tf32(monkeypatch, (7, 5)) as call:
        assert "compute capability 8.0" in check(call)[1][0]
    with asked_for_tf32(monkeypatch) as call:
        monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
        assert "NVIDIA_TF32_OVERRIDE=0 forbids it; unset it" in check(call)[1][0]


def test_a_label_of_tf32_without_the_thing_is_missed():
    trained = train_tiny(tiny_settings("--max_steps", "4"), claims={"tf32": True})
    with pytest.raises(InactiveTechnique, match="tf32 was asked for, fp32 products are in ieee"):
        trained.proof.verify(trained.steps[-1])


def test_what_is_switched_while_a_run_is_built_is_found_after_its_first_step():
    """A line of a person's own recipe, or of a library."""
    with matmul_precision("medium"):
        trained = train_tiny(tiny_settings("--max_steps", "4"))
        with pytest.raises(InactiveTechnique, match=r"fp32 was asked for, and .* computed in bf16"):
            trained.proof.verify(trained.steps[-1])


def test_convolutions_of_a_run_are_fp32():
    """By PyTorch's default they are not on a GPU, in which models with convolutions compute, too."""
    torch.backends.cudnn.allow_tf32 = True
    assert describe(CPU)["float32_convolutions"] == "tf32"
    build_accelerator(tiny_settings())
    assert describe(CPU)["float32_convolutions"] == "ieee"


def test_the_attention_that_a_model_resolved_to_is_evidence():
    for flags, attention in ((["--attn_implementation", "eager"], "eager"), ([], "sdpa")):
        trained = train_tiny(tiny_settings("--max_steps", "4", *flags))
        assert trained.evidence["attn_implementation"] == attention


def test_another_attention_than_the_one_asked_for_is_refused(monkeypatch):
    trained = train_tiny(tiny_settings("--max_steps", "4"), claims={"attn_implementation": "eager"})
    with pytest.raises(InactiveTechnique, match="eager attention was asked for, the model has sdpa"):
        trained.proof.verify(trained.steps[-1])
    adjust = "transformers.PreTrainedModel._check_and_adjust_attn_implementation"
    monkeypatch.setattr(adjust, lambda self, asked, *rest, **options: "sdpa")
    [problem] = check([*FP32, "--attn_implementation", "eager"])[1]
    assert "--attn_implementation eager: Transformers takes sdpa in its place" in problem
