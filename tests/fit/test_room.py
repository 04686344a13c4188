"""Sizes as people write them, GPUs by name, and what is left of either."""

from rungwise.fit import memory
from rungwise.fit.gpus import GPUS, find_gpu
from rungwise.fit.memory import best, find_room, parse_size

import psutil
import pytest

SIZES = {"16GiB": 16384.0, "16 GiB": 16384.0, "1.5GiB": 1536.0, "512MiB": 512.0, "1TiB": 2**20, "16GB": 16e9 / 2**20}


@pytest.mark.parametrize("text", SIZES)
def test_a_size_has_a_unit(text):
    errors = []
    assert parse_size("--memory", text, errors) == SIZES[text] and errors == []


@pytest.mark.parametrize("text", ["16", "GiB", "16G", "16gib", "16Gib", "-1GiB", "1e3MiB", "1,5GiB", "", "nan GiB"])
def test_what_may_be_meant_otherwise_is_refused(text):
    errors = []
    assert parse_size("--memory", text, errors) is None
    [error] = errors
    assert error.startswith(f"--memory {text!r}: write a number and a unit, as 16GiB")


def test_a_gpu_has_less_than_it_is_sold_by_and_a_source():
    for name, gpu in GPUS.items():
        sold = [int(part.removesuffix("GB")) for part in name.split("-") if part.endswith("GB")]
        assert all(0.97 * size < gpu.gib < size for size in sold), name
        assert gpu.source.count("/") == 1, name
    fp16 = [name for name, gpu in GPUS.items() if gpu.precision == "fp16"]
    assert fp16 == ["T4", "V100-16GB", "V100-32GB"]


def test_a_gpu_is_known_however_it_is_written():
    errors = []
    assert find_gpu("a100 80gb", errors) is GPUS["A100-80GB"] and find_gpu("rtx_3090", errors) is GPUS["RTX3090"]
    assert errors == []
    assert find_gpu("A100", errors) is find_gpu("H20", errors) is None
    assert "(did you mean A100-40GB or A100-80GB?)" in errors[0] and "known are T4, " in errors[0]
    assert "(did you mean H200?)" in errors[1]


def test_of_a_gpu_the_reserve_is_taken_off():
    room = find_room(None, "T4", None, 2, [])
    assert (room.device, room.precision, room.capability) == ("cuda", "fp16", (7, 5))
    # Each process has a GPU of its own.
    assert room.mib == 14.56 * 1024 and room.free == room.mib - 1024
    part = find_room("10GiB", "T4", "0MiB", 1, [])
    assert part.free == part.mib == 10240 and part.words == "--memory 10GiB, T4, as PyTorch reports it"


def test_processes_share_a_cpus_memory(monkeypatch):
    monkeypatch.setattr(memory, "measured_accelerator", lambda: None)
    room = find_room("8GiB", None, "512MiB", 4, [])
    assert (room.device, room.here, room.mib, room.free) == ("cpu", True, 2048, 1536)
    available = psutil.virtual_memory().available / 2**20
    assert find_room("auto", None, None, 1, []).mib == pytest.approx(available, rel=0.2)


WRONG = {
    "nothing": ((None, None, None), "--memory is required"),
    "a GPU's memory is known": (("auto", "T4", None), "--memory auto is this machine's"),
    "more than it has": (("16GiB", "T4", None), "more than the 14.56 GiB that PyTorch reports of --gpu T4"),
    "nothing left": (("1GiB", "T4", "1GiB"), "--reserve leaves nothing of 1,024 MiB"),
    "a reserve without a unit": (("2GiB", None, "1"), "--reserve '1': write a number and a unit"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_questions(case):
    (size, gpu, reserve), words = WRONG[case]
    errors = []
    find_room(size, gpu, reserve, 1, errors)
    [error] = errors
    assert words in error


def test_what_costs_nothing_where_it_is_in_hardware():
    assert [best(native) for native in (["fp32", "fp16", "bf16"], ["fp32", "fp16"], ["fp32"])] == [
        "bf16",
        "fp16",
        "no",
    ]
