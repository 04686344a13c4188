"""Turns: engines that train in processes of their own take their steps one engine after another."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch

from ..device import synchronize
from ..metrics.memory import MemoryMeter

# Told once the untimed steps are done.
READY = "ready"


class Turns:
    """What holds one engine back between its turns, and times each of them.

    An engine calls `begin` before its first step and `step_done` after each. It takes its untimed steps at once, in
    one of which its memory is measured, and then as many steps a turn as it is given.

    Attributes:
        steps: that were done.
    """

    def __init__(
        self,
        device: torch.device,
        untimed: int,
        wait: Callable[[], int],
        tell: Callable[[Any], None],
        meter: MemoryMeter | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        """Args:
        device: that is waited for where the clock is read.
        untimed: steps before the first turn.
        wait: for the next turn; returns its steps, 0 when there is none any more.
        tell: is given `READY`, then the seconds of each turn.
        meter: of an engine that measures no memory itself.
        clock: the time in seconds.
        """
        self.device, self.untimed, self.wait, self.tell = device, untimed, wait, tell
        self.meter, self.clock = meter, clock
        self.steps = self._left = 0
        self._began = 0.0
        self._window = ExitStack()

    def begin(self) -> None:
        """Before the first step."""
        self._open()

    def step_done(self) -> None:
        """After each step. Where a turn ends, comes back when the next one begins, or when there is none any more."""
        self._window.close()
        self.steps += 1
        if self.steps < self.untimed:
            self._open()
        elif self.steps == self.untimed:
            self._next(READY)
        else:
            self._left -= 1
            if self._left == 0:
                synchronize(self.device)
                self._next(self.clock() - self._began)

    def _open(self) -> None:
        """Has the memory of the step that begins now measured, until the meter has seen a whole one."""
        if self.meter and not self.meter.done:
            self._window.enter_context(self.meter.window())

    def _next(self, word: Any) -> None:
        self.tell(word)
        self._left = self.wait()
        synchronize(self.device)
        self._began = self.clock()
