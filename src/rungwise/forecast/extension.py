"""From two traces of small models to a deeper one of the same layers.

What is held at a moment in the first or the last layers, or around them, grows by the same bytes with each repetition
of the layers between. In these it goes from the one to the other in equal strides, and so is never higher than both.
So the peak is the highest of the moments that were seen, each extended by itself: in a deeper model it may be another.
"""

import itertools
from collections import defaultdict

from ..metrics.activation_rows import kind
from .depth import Pattern
from .trace import Trace
from .tracker import Log

BEGIN = "begin"


class Extension:
    """Two traces, of which the second has the pattern of layers once more than the first, and what lies beyond.

    Args:
        few: the first trace.
        more: the second.
        pattern: of their layers.
        edge: how often the pattern is there at the beginning, and at the end, before its moments are in equal strides.
        times: how often more than in the first the pattern is there in the model that is asked for.

    Attributes:
        alike: whether both traces have the same moments; if not, there is nothing to extend.
        parameters: how many numbers that model's parameters are.
        traced_layers: the layers of the second trace.
    """

    def __init__(self, few: Trace, more: Trace, pattern: Pattern, edge: int, times: int):
        self._few, self._more, self._times = few, more, times
        self._moments = [_moments(one, pattern, edge) for one in (few, more)]
        self.alike = self._moments[0].keys() == self._moments[1].keys()
        self.parameters = self._beyond(few.parameters, more.parameters)
        self.traced_layers = more.blocks

    def _beyond(self, few: float, more: float) -> float:
        return few + self._times * (more - few)

    def owner(self, name: str) -> float:
        """The MiB of parameters, gradients, optimizer_state or buffers."""
        return self._beyond(self._few.owners[f"{name}_mib"], self._more.owners[f"{name}_mib"])

    def building(self) -> int:
        """The bytes held at the highest moment until the model is prepared."""
        return self._beyond(*(max(_running(one.building, 0)) for one in (self._few, self._more)))

    def highest(self, rows: int) -> tuple[int, str]:
        """The bytes held at the highest moment of a step, with so many of further rows in it, and its name."""
        few, more = self._moments
        held = {name: self._beyond(few[name][0], more[name][0]) + rows for name in few}
        name = max(held, key=held.__getitem__)
        return held[name], name

    def places(self, moment: str) -> dict[str, int]:
        """The bytes of each place at this moment, without parameters, gradients, optimizer state and buffers."""
        few, more = (
            _places(one, moments[moment][1])
            for one, moments in zip((self._few, self._more), self._moments, strict=True)
        )
        names = few.keys() | more.keys()
        return {name: self._beyond(few.get(name, 0), more.get(name, 0)) for name in names}


def _moments(trace: Trace, pattern: Pattern, edge: int) -> dict[str, tuple[int, int]]:
    """The highest moment of each stretch, by its name: bytes held, and the index of the change that it is behind."""
    found: dict[str, tuple[int, int]] = {}
    held = _running(trace.step, trace.held)
    marks = [(0, BEGIN), *trace.step.marks, (len(held), "")]
    for (start, mark), (end, _) in itertools.pairwise(marks):
        name = _name(mark, trace.blocks, pattern, edge)
        if name is None or start == end:
            continue
        index = max(range(start, end), key=held.__getitem__)
        if name not in found or held[index] > found[name][0]:
            found[name] = (held[index], index)
    return found


def _running(log: Log, before: int) -> list[int]:
    """The bytes held behind each change."""
    return list(itertools.accumulate((change for _, change in log.changes), initial=before))[1:]


def _name(mark: str, blocks: int, pattern: Pattern, edge: int) -> str | None:
    """A stretch's name at any depth: layers count from the end if they are at it; None between."""
    words, _, number = mark.rpartition(" ")
    if not number.isdigit():
        return mark
    index = int(number)
    if index < pattern.head + edge * pattern.period:
        return mark
    return f"{words} {index - blocks}" if index >= blocks - pattern.tail - edge * pattern.period else None


def _places(trace: Trace, index: int) -> dict[str, int]:
    """The bytes of each place right behind a change."""
    found = defaultdict(int, trace.beside)
    log = trace.step
    for (_, change), storage, place in itertools.islice(
        zip(log.changes, log.storages, log.places, strict=True), index + 1
    ):
        if storage not in trace.gradients:
            found[kind(place)] += change
    return dict(found)
