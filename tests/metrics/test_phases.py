"""The phases of a step against tensors of known size, and against clocks read where they begin and end."""

import time
from types import SimpleNamespace

from rungwise.metrics.memory import MemoryMeter
from rungwise.metrics.phases import envelope, over_time, phases

import pytest
import torch

UNIT = 2**20
CPU = torch.device("cpu")


class Passes:
    """Stands in for an accelerator whose backward pass takes two units, then gives back what forward kept."""

    def __init__(self):
        self.kept, self.inside = [], []

    def backward(self):
        begun = time.time_ns()
        self.kept.append(torch.empty(2 * UNIT, dtype=torch.uint8))
        del self.kept[-2]
        self.inside.append((begun, time.time_ns()))


def test_a_timeline_has_what_was_held_as_each_phase_began():
    """Two micro-batches of known sizes; the first window is the one that is left out."""
    weight = torch.nn.Parameter(torch.zeros(UNIT))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    accelerator = Passes()
    meter = MemoryMeter(CPU)
    with meter.building():
        pass
    meter.watch(torch.nn.ParameterList([weight]), optimizer, accelerator)
    for _ in range(2):
        accelerator.inside.clear()
        outside, before = [], time.time_ns()
        with meter.window():
            began = time.time_ns()
            for size in (3, 5):
                accelerator.kept.append(torch.empty(size * UNIT, dtype=torch.uint8))
                asked = time.time_ns()
                accelerator.backward()
                outside.append((asked, time.time_ns()))
            weight.grad = torch.ones(UNIT)  # four units
            optimizer.step()
            optimizer.zero_grad()
            accelerator.kept.clear()
    assert meter.done and "backward" not in vars(accelerator)
    points = meter.timeline
    begins = [n for n in range(len(points)) if n == 0 or points[n][2] != points[n - 1][2]]
    held = [(points[n][2], (points[n][1] - meter.held) / UNIT) for n in begins]
    assert held == [("forward", 0), ("backward", 3), ("forward", 2), ("backward", 7), ("optimizer", 4)]
    highest = [max(size for _, size, _ in points[i:j]) for i, j in zip(begins, [*begins[1:], None], strict=True)]
    assert [(size - meter.held) / UNIT for size in highest] == [3, 5, 7, 9, 8]
    assert points[-1][1] == meter.held
    # A phase begins between two looks at the clock; the step itself, from which it counts, between two others.
    for micro, ((asked, answered), (begun, ended)) in enumerate(zip(outside, accelerator.inside, strict=True)):
        backward, after = (points[begins[2 * micro + n]][0] for n in (1, 2))
        assert (asked - began) / 1e6 <= backward <= (begun - before) / 1e6
        assert (ended - began) / 1e6 <= after <= (answered - before) / 1e6
    times = [ms for ms, _, _ in points]
    assert times == sorted(times) and times[0] == 0


def test_without_an_accelerator_no_phase_is_known():
    with phases(None) as begins:
        pass
    assert begins == []
    assert over_time([(1000, 5), (3000, -5)], [7, 12, 7], [], 10) == [
        (0.0, 7, ""),
        (0.0, 12, ""),
        (0.002, 7, ""),
        (0.002, 7, ""),
    ]


def test_a_method_of_the_accelerators_own_is_put_back_and_an_error_comes_through():
    def own(loss, **_):
        raise ValueError(loss)

    accelerator = SimpleNamespace(backward=own)
    with pytest.raises(ValueError, match="too much"), phases(accelerator):
        accelerator.backward("too much")
    assert accelerator.backward is own


def test_of_many_changes_the_highest_of_each_phase_stay():
    changes = [(n, 1 if n % 2 else -1) for n in range(1, 2001)]
    held = [10, *(11 if n % 2 else 10 for n in range(1, 2001))]
    held[500] += 100  # behind the 500th change, in the first phase
    points = over_time(changes, held, [(0, "forward"), (1000, "backward"), (1500, "optimizer"), (3000, "")], 60)
    assert len(points) == 3 * (1 + 20) + 1
    assert [size for _, size, phase in points if size > 100] == [110]
    assert points[0] == (0.0, 10, "forward")
    assert points[21] == (1e-3, held[999], "backward") and points[42] == (1.5e-3, held[1499], "optimizer")
    assert points[-1] == (3e-3, held[-1], "optimizer")
    assert envelope([(0, 1), (1, 2)], 2) == [(0, 1), (1, 2)]
