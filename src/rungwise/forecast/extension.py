"""From two traces of small models to a deeper one of the same layers.

What is held at a moment in the first or the last layers, or around them, grows by the same bytes with each repetition
of the layers between. In these it goes from the one to the other in equal strides, and so is never higher than both.
So the peak is the highest of the moments that were seen, each extended by itself: in a deeper model it may be another
than in either trace, since what is held at one moment may grow faster than what is held at the next.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from ..metrics.activation_rows import kind
from .depth import Pattern
from .scratch import Product
from .trace import Trace
from .tracker import Log

BEGIN = "begin"


@dataclass(frozen=True)
class Moment:
    """A moment of a step that both traces have.

    Attributes:
        held: the bytes held then, in the model that is asked for, without what a product takes beside its output.
        stretch: the name of its stretch of the step.
        changes: the index, in each trace, of the change that it is right behind.
        place: of that change, without numbers.
        product: the half-precision product that is computed then.
    """

    held: int
    stretch: str
    changes: tuple[int, int]
    place: str
    product: Product | None


class Extension:
    """Two traces, of which the second has the pattern of layers once more than the first, and what lies beyond.

    Args:
        few: the first trace.
        more: the second.
        pattern: of their layers.
        edge: how often the pattern is there at the beginning, and at the end, before its moments are in equal strides.
        times: how often more than in the first the pattern is there in the model that is asked for.

    Attributes:
        alike: whether both traces have the same stretches; if not, there is nothing to extend.
        parameters: how many numbers that model's parameters are.
        traced_layers: the layers of the second trace.
    """

    def __init__(self, few: Trace, more: Trace, pattern: Pattern, edge: int, times: int):
        self._few, self._more, self._times = few, more, times
        self._stretches = [_stretches(one, pattern, edge) for one in (few, more)]
        self.alike = self._stretches[0].keys() == self._stretches[1].keys()
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

    def moments(self) -> Iterator[Moment]:
        """The moments of a step at which something is taken: one of them is the highest."""
        few, more = self._stretches
        for name in few:
            for one, other in _pairs(few[name], more[name]):
                product = self._more.step.products.get(other.index)
                held, changes = self._beyond(one.held, other.held), (one.index, other.index)
                yield Moment(held, name, changes, other.kind[1], product)

    def places(self, moment: Moment) -> dict[str, int]:
        """The bytes of each place at this moment, without parameters, gradients, optimizer state and buffers."""
        few, more = (_places(one, index) for one, index in zip((self._few, self._more), moment.changes, strict=True))
        names = few.keys() | more.keys()
        return {name: self._beyond(few.get(name, 0), more.get(name, 0)) for name in names}


class _Taking(NamedTuple):
    """A change, in one trace, that takes memory or marks a product: its index, and the bytes held behind it.

    In a trace of another depth it is known by the bytes taken, and by the place without numbers.
    """

    index: int
    held: int
    kind: tuple[int, str]


def _stretches(trace: Trace, pattern: Pattern, edge: int) -> dict[str, list[_Taking]]:
    """What takes memory in each stretch that any depth has, by the stretch's name."""
    found: defaultdict[str, list[_Taking]] = defaultdict(list)
    log, held = trace.step, _running(trace.step, trace.held)
    marks = [(0, BEGIN), *log.marks, (len(held), "")]
    for (start, mark), (end, _) in itertools.pairwise(marks):
        if (name := _name(mark, trace.blocks, pattern, edge)) is None:
            continue
        for index in range(start, end):
            if (taken := log.changes[index][1]) > 0 or index in log.products:
                found[name].append(_Taking(index, held[index], (taken, kind(log.places[index]))))
    return found


def _pairs(few: list[_Taking], more: list[_Taking]) -> Iterator[tuple[_Taking, _Taking]]:
    """The same moment in both, for each: as counted from the stretch's beginning, and from its end.

    Where both are alike that is all of them. What is done for each layer in one stretch, as gradients are clipped, is
    done more often in the deeper one. Of what is left of both between, the highest moments are taken for the same.
    """
    first, last = _alike(few, more), _alike(few[::-1], more[::-1])
    yield from zip(few[:first], more[:first], strict=True)
    if first == len(few) == len(more):
        return
    yield from zip(few[len(few) - last :], more[len(more) - last :], strict=True)
    between = [one[first : len(one) - last] for one in (few, more)]
    if all(between):
        yield tuple(max(one, key=lambda taking: taking.held) for one in between)


def _alike(few: list[_Taking], more: list[_Taking]) -> int:
    """How many of the first are of one kind."""
    kinds = ((one.kind, other.kind) for one, other in zip(few, more, strict=False))
    return next((n for n, (one, other) in enumerate(kinds) if one != other), min(len(few), len(more)))


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
