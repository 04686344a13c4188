"""One engine takes its untimed steps at once, and then as many as a turn has."""

from contextlib import contextmanager

from rungwise.bench.turns import READY, Turns

import torch

CPU = torch.device("cpu")


class Meter:
    """Notes in which steps it was on; done after two of them."""

    def __init__(self, told):
        self.told, self.windows = told, []

    @property
    def done(self):
        return len(self.windows) == 2

    @contextmanager
    def window(self):
        before = list(self.told)
        yield
        self.windows.append((before, list(self.told)))


def played(untimed, turns, meter=None):
    """What an engine tells that takes these turns, and itself. Each of its steps takes a second more."""
    told, now = [], [0.0]
    waiting = iter([*turns, 0])

    def wait():
        now[0] += 1000  # others have their turns
        return next(waiting)

    engine = Turns(CPU, untimed, wait, told.append, meter and meter(told), clock=lambda: now[0])
    engine.begin()
    for number in range(1, untimed + sum(turns) + 1):
        now[0] += number
        engine.step_done()
    return told, engine


def test_a_turn_is_timed_from_its_first_step_to_its_last():
    told, engine = played(3, [2, 1, 2])
    assert told == [READY, 4 + 5, 6, 7 + 8]
    assert engine.steps == 8


def test_without_a_turn_it_only_says_that_it_is_ready():
    assert played(3, [])[0] == [READY]


def test_memory_is_measured_in_untimed_steps_alone():
    _, engine = played(3, [2, 2], Meter)
    assert engine.meter.windows == [([], []), ([], [])]  # closed before anything was told
