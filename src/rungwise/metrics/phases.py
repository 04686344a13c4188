"""The phases of one optimizer step: when each begins, and what is held over time in it."""

import itertools
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accelerate import Accelerator

from .around import Around

# When a phase begins, in ns since the epoch, as the allocators' own times are; and its name.
Begins = list[tuple[int, str]]
# In ms since the step began, the bytes that are held, in which phase.
Timeline = list[tuple[float, int, str]]


@contextmanager
def phases(accelerator: Accelerator | None) -> Iterator[Begins]:
    """Around one optimizer step; yields when its phases begin, and as its last entry, once it has ended, the end.

    A forward pass begins with the step, its wait for data included, and behind the backward pass of the micro-batch
    before; a backward pass as the accelerator is asked for it. Behind the last one comes the optimizer's phase:
    clipping, the step, and freeing gradients. Without an accelerator nothing is known of phases, and nothing yielded.

    On a device that computes behind the host's back these are the host's times, in which its allocator works, too.
    """
    if accelerator is None:
        yield []
        return
    begins = [(time.time_ns(), "forward")]

    def backward(method: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        begins.append((time.time_ns(), "backward"))
        method(*args, **kwargs)
        begins.append((time.time_ns(), "forward"))

    around = Around(accelerator, "backward", backward)
    try:
        yield begins
    finally:
        around.remove()
    if len(begins) > 1:
        begins[-1] = (begins[-1][0], "optimizer")
    begins.append((time.time_ns(), ""))


def over_time(changes: list[tuple[int, int]], held: list[int], begins: Begins, most: int) -> Timeline:
    """What is held over one step, with a point where each phase begins and one where the step ends.

    Args:
        changes: what the allocator did, (ns, bytes), in order; at least one.
        held: the bytes before the first change and after each.
        begins: as `phases` yields it; where it is empty, all is of the phase "".
        most: points, about; of those between two beginnings the highest are kept.
    """
    times = [when for when, _ in changes]
    begins = begins or [(times[0], ""), (times[-1], "")]
    *starts, (end, _) = begins
    edges = [0, *(bisect_left(times, when) for when, _ in starts[1:]), len(times)]
    points: list[tuple[int, int, str]] = []
    for (start, phase), (i, j) in zip(starts, itertools.pairwise(edges), strict=True):
        points.append((start, held[i], phase))
        inside = list(zip(times[i:j], held[i + 1 : j + 1], strict=True))
        points += [(when, size, phase) for when, size in envelope(inside, max(1, most // len(starts)))]
    points.append((max(end, times[-1]), held[-1], starts[-1][1]))
    return [((when - starts[0][0]) / 1e6, size, phase) for when, size, phase in points]


def envelope(points: list[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """At most `most` of the points in order: of each stretch the highest, so that no peak is lost."""
    if len(points) <= most:
        return points
    edges = [round(n * len(points) / most) for n in range(most + 1)]
    return [max(points[i:j], key=lambda point: point[1]) for i, j in itertools.pairwise(edges)]
