"""What is turned on to make a run fit, in order of what it costs in time; each with the same global batch."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from .. import techniques
from ..errors import SettingsError
from ..ladder.ladder_file import Rung, typed
from ..model import model as models
from ..settings.cli import read_flags
from ..settings.fields import FIELDS, Settings
from ..settings.metadata import Way
from ..settings.parse import parse
from ..techniques.costs import Costs, costs, why_not
from .launch import Launch, launches
from .memory import Room

ACCUMULATION = "gradient_accumulation_steps"
# What is decided here, and what a forecast knows nothing of.
REFUSED = {
    "config": "it follows from precision and processes",
    "run_name": "candidates are named after what they turn on",
    "torch_compile": "the forecast is of eager runs; add it to the command that is printed",
}
# The groups of flags that decide what a step takes.
TRIED = ("config", "model", "data", "batch", "techniques")
OFF = Way({})


@dataclass(frozen=True)
class Level:
    """What is turned on beside accumulation.

    Attributes:
        flags: of the techniques.
        launch: how it is started.
        share: the FLOPs that it adds, as a share of the model's.
        changes: what it makes of training, where that is another training.
        reference: whether it is there to compare with alone.
    """

    flags: Mapping[str, Any]
    launch: Launch
    share: float = 0.0
    changes: tuple[str, ...] = ()
    reference: bool = False


@dataclass(frozen=True)
class Candidate:
    """A run that may fit: a level, and in how many micro-batches."""

    level: Level
    settings: Settings
    flags: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What it turns on, as a run of it is named, without the model's name."""
        return "-".join(part for part in _labels(self.settings) if part)

    @property
    def accumulation(self) -> int:
        return self.settings.gradient_accumulation_steps

    def rung(self) -> Rung:
        """The run as a person types it."""
        return Rung(self.name, tuple(typed(self.flags)), self.level.launch.launcher)

    def trial(self, **changes: Any) -> Rung:
        """The same memory and speed in a short run, with these flags: nothing is evaluated or saved."""
        kept = {name: value for name, value in self.flags.items() if FIELDS[name].metadata["group"] in TRIED}
        return Rung(self.name, tuple(typed({**kept, **changes})), self.level.launch.launcher)


class Question:
    """What is asked: a model, its batch, flags that every candidate has, processes and their room.

    Attributes:
        config: the model's.
        base: the settings with nothing turned on, in the room's precision.
        costs: what techniques cost.
        left_out: why what might have been tried is not.

    Raises:
        SettingsError: with all that is wrong with the flags and the model.
    """

    def __init__(self, given: Sequence[str], processes: int, room: Room) -> None:
        errors: list[str] = []
        self.given, _ = read_flags(given, errors, None)
        errors += [
            f"--{name} is not asked of fit.py: {why}; drop it" for name, why in REFUSED.items() if name in self.given
        ]
        if errors:
            raise SettingsError(errors)
        self.processes, self.room = processes, room
        self.precision = "no" if self.given.get("dtype", "float32") != "float32" else room.precision
        self._launches, self.left_out = launches(room.device, processes, self.precision)
        plain = self._launches[0]
        self.base, errors = self._settings({}, plain)
        loaded: list[PreTrainedConfig] = []

        def load(settings: Settings) -> PreTrainedConfig:
            loaded.append(models.load_config(settings))
            return loaded[-1]

        errors += models.validate(self.base, load, weights=False)
        errors += techniques.validate(self.base)
        errors += [] if errors else filter(None, [why_not(self.base, loaded[0])])
        if errors:
            raise SettingsError(errors)
        self.config = loaded[0]
        self.costs: Costs = costs(self.base, self.config)

    def counts(self, processes: int | None = None) -> list[int]:
        """The numbers of micro-batches that the global batch divides into, the fewest first; or the one given."""
        if ACCUMULATION in self.given:
            return [self.given[ACCUMULATION]]
        rows = self.base.global_batch_size // (processes or self.processes)
        return [count for count in range(1, rows + 1) if rows % count == 0]

    def candidate(self, level: Level, accumulation: int, **changes: Any) -> Candidate:
        """A level in so many micro-batches, with changes to what was given.

        Raises:
            SettingsError: these settings cannot be had together.
        """
        count = {} if accumulation == 1 else {ACCUMULATION: accumulation}
        flags = {**level.flags, **count, **changes}
        settings, errors = self._settings(flags, level.launch)
        if errors := errors + techniques.validate(settings):
            raise SettingsError(errors)
        return Candidate(level, settings, {**self._given(level.launch), **flags})

    def levels(self) -> list[Level]:
        """Sets of techniques that this model can be had with, those first that add the fewest FLOPs.

        What adds none and changes nothing is in all of them. Sharding adds none, but exchanges more than replicas do:
        among equals it comes later. What makes another training comes last.
        """
        axes = [
            self._axis(name) for name, field in FIELDS.items() if field.metadata["ways"] and name not in self.given
        ]
        found = []
        for launch in self._launches:
            for ways in itertools.product(*axes):
                flags = {name: value for way in ways for name, value in way.flags.items()}
                changes = tuple(way.changes for way in ways if way.changes)
                settings, errors = self._settings(flags, launch)
                if errors := errors or techniques.validate(settings):
                    self._leave_out(errors)
                    continue
                found.append(Level(flags, launch, self.costs.share(settings), changes))
        return sorted(found, key=lambda level: (len(level.changes), level.share, level.launch.sharded))

    def reference(self) -> Level:
        """Nothing turned on, in fp32: what the others are compared with."""
        return Level({}, launches(self.room.device, self.processes, "no")[0][0], reference=True)

    def advised(self) -> Iterator[Way]:
        """Ways that are named alone where nothing fits, and that this model can be had with."""
        for name, field in FIELDS.items():
            if name not in self.given:
                yield from (way for way in field.metadata["ways"] if not way.tried and self._share(way) is not None)

    def _axis(self, name: str) -> list[Way]:
        """The ways of one technique that differ in what they cost; and off, unless one costs nothing."""
        had = [(way, self._share(way)) for way in FIELDS[name].metadata["ways"] if way.tried]
        had = [(way, share) for way, share in had if share is not None]
        if free := [way for way, share in had if share == self._share(OFF) and not way.changes]:
            return free[-1:]
        # In a model of few layers every fourth one is every second one, too.
        return [OFF, *{share: way for way, share in reversed(had)}.values()]

    def _share(self, way: Way) -> float | None:
        """The FLOPs that a way adds, as a share; None if it cannot be had."""
        settings, errors = self._settings(way.flags, self._launches[0])
        reason = None if errors else why_not(settings, self.config)
        if errors := errors or techniques.validate(settings) or ([reason] if reason else []):
            self._leave_out(errors)
            return None
        return self.costs.share(settings)

    def _leave_out(self, errors: Sequence[str]) -> None:
        self.left_out += [error for error in errors if error not in self.left_out]

    def _settings(self, flags: Mapping[str, Any], launch: Launch) -> tuple[Settings, list[str]]:
        return parse(typed({**self._given(launch), **flags}), launch.environ(self.room.device))

    def _given(self, launch: Launch) -> dict[str, Any]:
        return {"config": launch.config, **self.given}


def _labels(settings: Settings) -> Iterator[str]:
    """The parts of a run's name that say what is turned on."""
    for field in FIELDS.values():
        if (field.metadata["label"] and field.metadata["group"] != "model") or field.name == "dtype":
            yield field.metadata["label"](settings)
