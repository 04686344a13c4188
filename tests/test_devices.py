"""What is said and refused before a run: on devices that are not here, whose queries are stood in for; by FSDP2."""

from types import SimpleNamespace

from rungwise import environment
from rungwise.device import device_name, device_type, native_precision
from rungwise.run.configure import check
from rungwise.techniques import fsdp, torch_compile

import pytest
import torch
from harness import tiny_settings

FSDP = {"fsdp": True, "num_processes": 2}


@pytest.fixture
def accelerator(monkeypatch):
    """Has PyTorch say that this machine has two accelerators of one kind, or none."""

    def make(kind):
        device = None if kind is None else torch.device(kind, 0)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: device)
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
        return device

    return make


@pytest.mark.parametrize(
    "half, dtypes", [(True, ["fp32", "fp16", "bf16"]), (False, ["fp32"])], ids=["a GPU of today", "neither"]
)
def test_an_intel_gpu_is_asked_what_it_multiplies_and_how_it_is_called(monkeypatch, accelerator, half, dtypes):
    device = accelerator("xpu")
    known = SimpleNamespace(has_fp16=half, has_bfloat16_conversions=half)
    monkeypatch.setattr(torch.xpu, "get_device_properties", lambda device: known)
    monkeypatch.setattr(torch.xpu, "get_device_name", lambda device: "Intel(R) Data Center GPU Max 1550")
    assert native_precision(device) == dtypes
    assert environment.describe(device)["native_precision"] == dtypes
    assert device_name(device) == environment.machine()["device_name"] == "Intel(R) Data Center GPU Max 1550"
    assert environment.machine()["device_count"] == 2


@pytest.mark.parametrize("kind, used", [("cuda", "cuda"), ("xpu", "xpu"), ("mps", "cpu"), (None, "cpu")])
def test_the_device_of_a_run(accelerator, kind, used):
    accelerator(kind)
    assert device_type(tiny_settings(use_cpu=False)) == used
    assert device_type(tiny_settings()) == "cpu"


def test_a_mac_is_told_from_another_by_the_processor_that_trains(accelerator):
    """Its GPU is not used, so neither its name nor the number of such says anything about a figure."""
    accelerator("mps")
    assert environment.machine()["device_name"] == device_name(torch.device("cpu"))
    assert environment.machine()["device_count"] == 1


REMEDIES = {
    "cuda": "hide it by CUDA_VISIBLE_DEVICES=",
    "xpu": "PyTorch's build for CPUs alone, or use DDP, as in accelerate_configs/ddp_cpu.yaml",
    "mps": "it cannot be hidden; use DDP, as in accelerate_configs/ddp_cpu.yaml",
}


@pytest.mark.parametrize("kind", REMEDIES)
@pytest.mark.parametrize("use_cpu", [True, False])
def test_fsdp2_on_the_cpu_beside_an_accelerator(accelerator, kind, use_cpu):
    """A Mac's run is on the CPU whether the file says so or not; only what works on the machine is advised."""
    accelerator(kind)
    settings = tiny_settings(use_cpu=use_cpu, **FSDP)
    found = fsdp.validate(settings, device_type(settings))
    if use_cpu or kind == "mps":
        [problem] = found
        assert f"accelerator ({kind})" in problem and REMEDIES[kind] in problem
        assert ("CUDA_VISIBLE_DEVICES" in problem) == (kind == "cuda")
    else:
        assert found == []


def test_adafactor_is_not_given_shards(accelerator):
    accelerator(None)
    [problem] = fsdp.validate(tiny_settings("--optim", "adafactor", **FSDP), "cpu")
    assert "--optim adafactor under FSDP2: it cannot be given sharded parameters; use adamw_torch or sgd" in problem


def test_fsdp2_where_nothing_stands_in_its_way(accelerator):
    accelerator(None)
    assert fsdp.validate(tiny_settings(**FSDP), "cpu") == []


@pytest.mark.parametrize("kind", ["cuda", "xpu"])
def test_a_gpu_without_triton_is_refused_a_compiled_run(monkeypatch, kind):
    from torch.utils import _triton

    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    [problem] = torch_compile.validate(tiny_settings("--torch_compile"), kind)
    assert "needs Triton on this GPU" in problem
    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    assert torch_compile.validate(tiny_settings("--torch_compile"), kind) == []


@pytest.mark.parametrize("more", ["", "dynamo_config: {dynamo_backend: INDUCTOR}\n"], ids=["flag", "file"])
def test_sharding_is_compiled_by_blocks_alone(config, more):
    """Of the whole model FSDP2 breaks the graph at every block."""
    file = config("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n" + more)
    call = [
        "--config",
        file,
        "--dataset_name",
        "synthetic",
        "--report_to",
        "none",
        *([] if more else ["--torch_compile"]),
    ]
    two = {"WORLD_SIZE": "2"}
    [problem] = check(call, two)[1]
    assert "use --torch_compile_scope regional" in problem
    assert check([*call, "--torch_compile_scope", "regional"], two)[1] == []
    # With everything else that is wrong.
    assert len(check([*call, "--train_file", "none.txt"], two)[1]) >= 2
