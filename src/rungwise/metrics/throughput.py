"""Time and tokens of optimizer steps."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ..device import synchronize
from ..report.spread import disturbance

# Fewer timed steps than this are not enough to claim a speed.
LEAST_TIMED_STEPS = 10


class Window(Protocol):
    """What `StepMeter` needs of the memory meter."""

    done: bool

    def peak_bytes(self) -> int | None: ...

    def window(self) -> AbstractContextManager[None]: ...


class Profile(Protocol):
    """What `StepMeter` needs of the step's profile."""

    wanted: bool

    def forget(self) -> None: ...

    def window(self) -> AbstractContextManager[None]: ...


@dataclass
class StepTime:
    """How long one optimizer step took, whether it counts, and the peak memory up to its end where it is known."""

    seconds: float = 0.0
    timed: bool = False
    peak_bytes: int | None = None


class StepMeter:
    """Times optimizer steps in three phases that never mix.

    First, steps under the memory meter, until it has seen a whole step; then untimed steps up to `untimed_steps`, one
    of them under the profiler; then the timed ones. fp16 can skip its first steps, which makes the first phase longer.
    A step in which something was compiled is never timed, and none whose profile is kept.
    """

    def __init__(
        self,
        device: torch.device,
        memory: Window,
        untimed_steps: int,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.device, self.memory, self.untimed_steps, self.clock = device, memory, untimed_steps, clock
        self.seen = 0
        # How often the compiler has been at work: a step in which it was is not timed.
        self.compilations: Callable[[], int] = lambda: 0
        self.profile: Profile | None = None
        # What is on in the step that is being taken.
        self._step = ExitStack()

    @contextmanager
    def step(self) -> Iterator[StepTime]:
        """Around one whole optimizer step, the wait for its data included."""
        with self._step:
            yield self.begin()
            self.end()

    def begin(self) -> StepTime:
        """Begins a step whose end is said by `end`; what is known of it then stands in what this returns."""
        metered = not self.memory.done
        timing = self._time = StepTime(timed=not metered and self.seen >= self.untimed_steps)
        self._profiled = not metered and not timing.timed and self.profile is not None and self.profile.wanted
        self._compilations = self.compilations()
        if metered or self._profiled:
            self._step.enter_context(self.memory.window() if metered else self.profile.window())
        synchronize(self.device)
        self._started = self.clock()
        return timing

    def end(self) -> None:
        """Ends the step that was begun."""
        synchronize(self.device)
        self._time.seconds = self.clock() - self._started
        self._step.close()
        self.seen += 1
        if self.compilations() != self._compilations:
            self._time.timed = False
            if self._profiled:
                self.profile.forget()
        if self.memory.done:
            self._time.peak_bytes = self.memory.peak_bytes()

    def drop(self) -> None:
        """Drops the step that was begun, if one was: something else came between. It counts for nothing."""
        self._step.__exit__(_Dropped, _Dropped(), None)


class _Dropped(Exception):
    """Tells what watches a step that it was none."""


def throughput(seconds: list[float], tokens: list[int]) -> dict[str, Any]:
    """The speed of the timed steps, keyed as in `result.json`.

    Args:
        seconds: wall time of each timed step.
        tokens: tokens of each timed step that carried a loss, over all processes.

    Returns:
        Rates and times are None where fewer than ten steps were timed. `disturbed` says why the times are not to be
        compared, and is None where they are.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("tokens_per_second", "step_ms_median", "step_ms_mean", "step_ms_p10", "step_ms_p90", "disturbed")
    )
    if len(seconds) >= LEAST_TIMED_STEPS:
        tenths = statistics.quantiles(seconds, n=10, method="inclusive")
        found["tokens_per_second"] = sum(tokens) / sum(seconds)
        median, mean = statistics.median(seconds), statistics.fmean(seconds)
        found["step_ms_median"], found["step_ms_mean"] = 1000 * median, 1000 * mean
        found["step_ms_p10"], found["step_ms_p90"] = 1000 * tenths[0], 1000 * tenths[-1]
        found["disturbed"] = disturbance(median, tenths[0], tenths[-1], mean)
    return found | {"timed_steps": len(seconds), "tokens": sum(tokens)}
