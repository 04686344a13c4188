"""Result files of several runs to rungs that can be compared: medians over rounds, pairs that differ in one thing."""

import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..result_file import read_result
from ..settings.fields import FIELDS, NAMING
from .comparable import why_not_comparable
from .spread import Spread, disturbance
from .timelines import Timeline, read_timeline

OWNERS = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
# A rung's status is its worst round's.
WORST_FIRST = ("failed", "diverged", "out_of_memory", "skipped", "ok")


@dataclass
class RungResult:
    """One rung with the results of its rounds, at least one."""

    name: str
    rounds: list[dict[str, Any]]
    timeline: Timeline

    @cached_property
    def worst(self) -> dict[str, Any]:
        """The round that decides the rung's status."""
        return min(self.rounds, key=lambda result: WORST_FIRST.index(result["status"]))

    @property
    def status(self) -> str:
        return self.worst["status"]

    @property
    def reason(self) -> str | None:
        return self.worst["reason"]

    @property
    def settings(self) -> dict[str, Any]:
        return self.rounds[0]["settings"]

    @property
    def precision(self) -> str:
        """What its matrix products are computed in: no (fp32), bf16 or fp16."""
        return self.settings["precision"]

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def memory(self, name: str) -> float | None:
        """A memory figure in MiB, the largest of all rounds. Owners are those of that round, so that they add up."""
        return self._largest["memory"].get(name)

    @property
    def _largest(self) -> dict[str, Any]:
        """The round with the largest peak; the first one where none was measured."""
        return max(self.rounds, key=lambda result: result["memory"].get("peak_allocated_mib") or 0.0)

    @property
    def peak(self) -> float | None:
        """Peak memory in MiB, of a rung that ran to its end."""
        return self.memory("peak_allocated_mib") if self.ok else None

    @property
    def forecast(self) -> dict[str, Any]:
        """What that round's memory was to be, as in `result.json`. Older results do not tell."""
        return self._largest.get("forecast", {})

    @property
    def activations(self) -> dict[str, float]:
        """MiB that one micro-batch keeps for backward, by kind of module; empty where that is not known."""
        # Older results have no such group.
        return by_module(self.rounds[0].get("activations", {}).get("rows", []))

    @property
    def step_ms(self) -> Spread | None:
        """Wall time of an optimizer step: the median of all rounds, from the lowest p10 to the highest p90.

        It is disturbed if that of a round is, or if rounds differ as much as a disturbed round's steps do. None where
        rounds were made in environments that cannot be compared.
        """
        timed = [r["throughput"] for r in self.rounds if r["throughput"].get("step_ms_median")] if self.ok else []
        if not timed:
            return None
        environment = self.rounds[0]["environment"]
        if any(why_not_comparable(environment, result["environment"]) for result in self.rounds):
            return None
        median = statistics.median(speed["step_ms_median"] for speed in timed)
        low, high = min(speed["step_ms_p10"] for speed in timed), max(speed["step_ms_p90"] for speed in timed)
        why = next((speed["disturbed"] for speed in timed if speed.get("disturbed")), None)
        return Spread(median, low, high, why or disturbance(median, low, high), environment)

    def rate(self, name: str) -> float | None:
        """What was done a second, or its share of what the device can do: the median of all rounds that claim it."""
        rates = [r["throughput"][name] for r in self.rounds if r["throughput"].get(name)]
        return statistics.median(rates) if rates and self.ok else None

    @property
    def tokens_per_second(self) -> float | None:
        return self.rate("tokens_per_second")

    @property
    def profile(self) -> dict[str, Any]:
        """Where a step's time went, as in `result.json`, in the first round that knows. Older results do not."""
        found = [result["profile"] for result in self.rounds if result.get("profile")]
        return next((profile for profile in found if profile["step_ms"] is not None), found[0] if found else {})

    @property
    def lost(self) -> dict[str, str]:
        """Why a figure is not there, by its name, of those whose meters failed in some round. Older results do not."""
        return {name: why for result in self.rounds for name, why in result.get("not_measured", {}).items()}

    @property
    def compile_seconds(self) -> float | None:
        seconds = [r["compile"]["seconds"] for r in self.rounds if r["compile"].get("seconds") is not None]
        return statistics.median(seconds) if seconds else None

    @property
    def losses(self) -> list[float | None]:
        """The loss of each step. Rounds repeat the same numbers; the first is taken."""
        return self.rounds[0]["loss"].get("trajectory", [])

    @property
    def updates(self) -> list[float | None]:
        """The losses of the steps that changed the weights: all but those that fp16 skipped."""
        return self.rounds[0]["loss"].get("updates", [])

    @property
    def skipped_steps(self) -> int:
        """Steps that fp16 skipped."""
        return self.rounds[0]["amp"].get("skipped_steps", 0)

    @property
    def loss_scale(self) -> float | None:
        """fp16's scale at the last step."""
        return self.rounds[0]["amp"].get("loss_scale")

    @property
    def last_loss(self) -> float | None:
        return self.losses[-1] if self.losses and self.ok else None


def by_module(rows: list[dict[str, Any]]) -> dict[str, float]:
    """MiB of each kind of module over all its operators, the largest first, of rows as in `result.json`."""
    sizes: dict[str, float] = {}
    for row in rows:
        sizes[row["module"]] = sizes.get(row["module"], 0.0) + row["mib"]
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def load(folder: Path) -> list[RungResult]:
    """The rungs in a ladder's folder: those of its `ladder.json` in their order, or without it all, by date.

    Reads `<rung>/round-N/result.json`, and beside them the memory of one step over time.
    """
    found: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    rounds = [path.parent for path in folder.glob("*/round-*/result.json") if path.parent.name[6:].isdigit()]
    for path in sorted(rounds, key=lambda path: int(path.name[6:])):
        result = read_result(path)
        if result is not None:
            found.setdefault(path.parent.name, []).append((path, result))
    rungs = {
        name: RungResult(name, [result for _, result in runs], read_timeline(runs[0][0]))
        for name, runs in found.items()
    }
    listed = _listed(folder / "ladder.json")
    if listed:
        return [rungs[name] for name in listed if name in rungs]
    return sorted(rungs.values(), key=lambda rung: rung.rounds[0]["environment"].get("date", "9999"))


def _listed(path: Path) -> list[str]:
    """The names of the rungs in `ladder.json`, or none."""
    try:
        return [name for name in json.loads(path.read_text(encoding="utf-8"))["order"] if isinstance(name, str)]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return []


def reference(rungs: list[RungResult]) -> RungResult | None:
    """The rung whose loss the others are compared with: the first in fp32 that ran to its end."""
    return next((rung for rung in rungs if rung.ok and rung.precision == "no"), None)


def pairs(
    rungs: list[RungResult], setting: str, accept: Callable[[Any, Any], bool]
) -> Iterator[tuple[RungResult, RungResult]]:
    """Pairs of rungs that differ in one setting alone, whose two values `accept(before, after)` takes."""
    for before in rungs:
        for after in rungs:
            if before is not after and before.settings and after.settings:
                values = before.settings.get(setting), after.settings.get(setting)
                if differing(before.settings, after.settings, setting) == {setting} and accept(*values):
                    yield before, after


def eager_and_compiled(rungs: list[RungResult]) -> Iterator[tuple[RungResult, RungResult]]:
    """Pairs of an eager rung and a compiled one that differ in compiling, and how, alone."""
    return pairs(rungs, "torch_compile", lambda before, after: after is True)


def differing(before: dict[str, Any], after: dict[str, Any], setting: str) -> set[str]:
    """The settings that two rungs differ in, less those that name them or only go with `setting`, if that differs."""
    names = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    beside = {n for n, f in FIELDS.items() if any(need.beside == setting for need in f.metadata["needs"])}
    return names - set(NAMING) - (beside if setting in names else set())


def distances(a: RungResult, b: RungResult) -> tuple[float, float]:
    """How far two loss trajectories lie apart, relative to `a`: at step 1, and on average.

    At step 1 the weights and the rows are equal. On average after equal numbers of updates: a step that fp16 skipped
    taught nothing.
    """
    first, each = _relative(a.losses[:1], b.losses[:1]), _relative(a.updates, b.updates)
    return (first[0], statistics.fmean(each)) if first and each else (float("inf"), float("inf"))


def _relative(a: list[float | None], b: list[float | None]) -> list[float]:
    pairs_of_losses = ((x, y) for x, y in zip(a, b, strict=False) if x is not None and y is not None)
    return [abs(y - x) / abs(x) if x else abs(y) for x, y in pairs_of_losses]


def break_even(compile_seconds: float, eager: Spread | None, compiled: Spread | None) -> tuple[int | None, str]:
    """The step at which the time spent compiling has paid for itself, and the same in words.

    With S seconds spent compiling, and medians of e and c seconds a step, S + n c = n e at n = S / (e - c).
    """
    if eager is None or compiled is None:
        return None, "not known: too few timed steps"
    if why := compiled.undecided(eager):
        return None, f"not known: {why}"
    if compiled.median > eager.median:
        return None, "never: slower"
    steps = math.ceil(1000 * compile_seconds / (eager.median - compiled.median))
    return steps, f"after {steps:,} steps"
