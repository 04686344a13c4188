"""What the CPU's allocator is said to do, against tensors of known size at addresses that were used before."""

from rungwise.metrics import allocations as module
from rungwise.metrics.allocations import allocations
from rungwise.metrics.memory import MemoryMeter

import torch

CPU = torch.device("cpu")
# So large that the system maps it, and maps the next one to the same place. Nothing is written into it.
MAPPED = 64 * 2**20
LARGE, SMALL = 200_000, 16_384


def block(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8)


def where_another_was() -> list[torch.Tensor]:
    """A tensor at the address of one that went while no profiler was at work."""
    for _ in range(100):
        with allocations(CPU):
            first = block(MAPPED)
        address = first.data_ptr()
        del first
        second = block(MAPPED)
        if second.data_ptr() == address:
            return [second]
    raise AssertionError("no address was given out twice")


def test_what_was_there_before_is_not_given_back():
    """PyTorch knows its address, of one that it did not see going, and says that this one goes now."""
    before = where_another_was()
    with allocations(CPU) as changes:
        before.clear()
        torch.ones(5)
    assert [size for _, size in changes] == [20, -20]


def test_nothing_is_made_of_the_events_that_nobody_asks_for(monkeypatch):
    """PyTorch's own tables of them take longer than a tiny step."""
    made = []
    monkeypatch.setattr(torch.autograd.profiler.profile, "_parse_kineto_results", lambda *_, **__: made.append(1))
    with allocations(CPU) as changes:
        torch.ones(5)
    assert len(changes) == 2 and not made


def test_what_is_said_to_be_held_is_given_back():
    with allocations(CPU) as changes:
        kept = [block(SMALL), block(LARGE)]
    assert [size for _, size in changes] == [SMALL, LARGE]
    with allocations(CPU, kept=[kept[0].untyped_storage()]) as changes:
        kept.clear()
    assert [size for _, size in changes] == [-SMALL]


def test_what_is_there_in_the_end_can_be_given_back_the_next_time():
    held = {}
    with allocations(CPU, held):
        blocks = [block(SMALL), block(LARGE)]
    assert held == {tensor.data_ptr(): len(tensor) for tensor in blocks}
    with allocations(CPU, held) as changes:
        blocks.pop()
    assert [size for _, size in changes] == [-LARGE] and held == {blocks[0].data_ptr(): SMALL}


def test_what_another_thread_gave_back_is_gone_once_its_address_is_taken_again():
    events = [(1, 0xA, 10), (2, 0xB, 7), (3, 0xA, 30), (4, 0xA, -30), (5, 0xC, -99)]
    assert [*module._changes(events, {})] == [(1, 10), (2, 7), (3, -10), (3, 30), (4, -30)]
    assert [*module._changes(events, {0xC: 8})][-1] == (5, -8)


def test_a_peak_does_not_hang_on_addresses():
    """What a step frees of the steps before is no part of what it holds."""
    n = 2**16
    meter = MemoryMeter(CPU)
    with meter.building():
        weight = torch.nn.Parameter(torch.zeros(n))
        model = torch.nn.ParameterList([weight])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter.watch(model, optimizer)
    for number in range(2):
        before = where_another_was() if number else []
        with meter.window():
            before.clear()
            weight.grad = torch.ones(n)
            optimizer.step()
            optimizer.zero_grad()
    assert 0 <= meter.peak_bytes() - 3 * 4 * n < 64
