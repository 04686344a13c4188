"""What would fit where no candidate does: by how much less, and what it makes of the run."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..errors import SettingsError
from ..ladder.ladder_file import typed
from .candidates import Candidate, Question
from .choice import Choice, Row
from .launch import launches

# Halves of the block, and doubled numbers of processes, that are tried at most.
HALVES, DOUBLES, SHORTEST = 5, 9, 32


@dataclass(frozen=True)
class Advice:
    """A change to what was asked, in words, and the candidate that it makes of the one with the lowest peak."""

    words: str
    row: Row


def advice(question: Question, choice: Choice) -> Iterator[Advice]:
    """What might be changed, each with its forecast: as little as fits, or the most that was tried."""
    least = choice.least()
    if least is None:
        return
    level, count = least.candidate.level, least.candidate.accumulation
    for way in question.advised():
        words = f"{' '.join(typed(way.flags))} ({way.changes})"
        yield from _last([(words, lambda way=way: question.candidate(level, count, **way.flags))], choice)
    blocks = [question.base.block_size >> halves for halves in range(1, HALVES + 1)]
    yield from _last(
        [
            (f"--block_size {block}", lambda block=block: question.candidate(level, count, block_size=block))
            for block in blocks
            if block >= SHORTEST
        ],
        choice,
    )
    rows = question.base.global_batch_size
    ranks = [question.processes << doubles for doubles in range(1, DOUBLES + 1)]
    yield from _last(
        [
            (f"--num_processes {count} (FSDP2)", lambda count=count: _sharded(question, least.candidate, count))
            for count in ranks
            if rows % count == 0
        ],
        choice,
    )


def _last(tries: list, choice: Choice) -> Iterator[Advice]:
    """The first try that fits, or the last one that can be had; or the first of which there is no forecast."""
    found = None
    for words, make in tries:
        try:
            found = Advice(words, choice.see(make()))
        except SettingsError:
            continue
        if found.row.fits or found.row.forecast is None:
            break
    if found is not None:
        yield found


def _sharded(question: Question, least: Candidate, processes: int) -> Candidate:
    """What takes least, over so many processes, with as many micro-batches as there are rows to each.

    Raises:
        SettingsError: it cannot be had.
    """
    ways, left_out = launches(question.room.device, processes, question.precision)
    if not ways[-1].sharded:
        raise SettingsError(left_out)
    level = replace(least.level, launch=ways[-1])
    return question.candidate(level, question.counts(processes)[-1])
