"""What `ablate.py` is held to beside the other engines: bounds on ratios, each decided within its spread."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..report.checks import Check
from ..report.measures import verdict
from .figures import ENGINES, Rung

# The least of another engine's tokens a second: the bare loop's take 1% more of the time at most.
OF_BARE = 1 / 1.01
OF_TRAINER = 1.0
# The same of a Trainer that was asked for nothing, where bf16 products are faster than fp32's and where they are not.
OF_DEFAULTS = {True: 1.7, False: 1.1}
# The most of such a Trainer's peak.
LEAST_MEMORY = 0.12
# How far losses in fp32 may lie apart after the last step, relative to them.
SAME_LOSS = 1e-5
# MiB: a tenth is shown.
ROUNDING = 0.05


@dataclass(frozen=True)
class Bench:
    """All that was measured.

    Attributes:
        rungs: with the three engines on each, but for the bare loop where it lacks a technique. The first is in fp32;
            the last is the fastest, and has the Trainer's defaults beside it.
        least: the rung of the least memory, by `ablate.py` alone.
        gflops: of a square product in fp32 and in bf16.
        environment: as `environment.machine` has it.
        heats: how often each engine was started on a rung.
        rounds: that each had in a heat.
        steps: of a round.
        seconds: that all of it took.
    """

    rungs: list[Rung]
    least: Rung
    gflops: dict[str, float]
    environment: dict[str, Any]
    heats: int
    rounds: int
    steps: int
    seconds: float

    @property
    def bf16_pays(self) -> bool:
        """Whether products are faster in bf16: what was measured says so, not what the processor has."""
        return bf16_pays(self.gflops)

    def as_dict(self) -> dict[str, Any]:
        """As it stands in `bench.json`."""
        return {"schema": 1, **asdict(self), "checks": [asdict(check) for check in run_checks(self)]}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Bench":
        """As `as_dict` has it; the checks are made anew."""
        own = {name: value for name, value in content.items() if name not in ("schema", "checks")}
        rungs = [Rung.from_dict(rung) for rung in own["rungs"]]
        return cls(**{**own, "rungs": rungs, "least": Rung.from_dict(own["least"])})


def bf16_pays(gflops: dict[str, float]) -> bool:
    """Whether a square product is faster in bf16 than in fp32."""
    return gflops["bf16"] > gflops["fp32"]


def run_checks(bench: Bench) -> list[Check]:
    """Every check, with its figure and its bound. One whose engine has no figures fails."""
    checks = [*_same_losses(bench.rungs[0])]
    for rung in bench.rungs:
        if "bare" in rung.laps:
            checks.append(_speed(rung, "bare", OF_BARE, "at least 1/1.01"))
        checks.append(_speed(rung, "trainer", OF_TRAINER, "at least 1"))
        checks.append(_memory(rung))
    rates = " and ".join(f"{name} {rate:,.0f}" for name, rate in bench.gflops.items())
    least = OF_DEFAULTS[bench.bf16_pays]
    bound = f"at least {least}: bf16 products {'pay' if bench.bf16_pays else 'do not pay'} here ({rates} GFLOP/s)"
    return [*checks, _speed(bench.rungs[-1], "trainer_default", least, bound), _least_memory(bench)]


def _same_losses(rung: Rung) -> Iterator[Check]:
    for engine in ("bare", "trainer"):
        claim, bound = f"in fp32 the loss of {ENGINES[engine]} after the last step", f"to {SAME_LOSS:.0e}"
        ours, other = rung.lap("ours"), rung.lap(engine)
        if ours is None or other is None:
            yield _missing(claim, rung, engine, bound)
            continue
        distance = abs(ours.loss / other.loss - 1)
        text = f"{ours.loss:.6f} beside {other.loss:.6f}, {distance:.1e} apart"
        yield Check(claim, (rung.name,), verdict(distance <= SAME_LOSS), text, bound)


def _speed(rung: Rung, engine: str, least: float, bound: str) -> Check:
    """Passes where the spread over rounds reaches the bound. A machine that was disturbed decides nothing."""
    claim = f"tokens/s in times those of {ENGINES[engine]}"
    times = rung.speed("ours", engine)
    if times is None:
        return _missing(claim, rung, engine, bound)
    if times.disturbed:
        return Check(claim, (rung.name,), "SKIP", f"{times}; disturbed: {times.disturbed}", bound)
    passed = times.high >= least
    text = f"{times}, within the spread" if passed and times.median < least else str(times)
    return Check(claim, (rung.name,), verdict(passed), text, bound)


def _memory(rung: Rung) -> Check:
    claim, bound = f"no more memory than {ENGINES['trainer']}", "to a tenth of a MiB"
    ours, other = rung.lap("ours"), rung.lap("trainer")
    if ours is None or other is None:
        return _missing(claim, rung, "trainer", bound)
    text = f"{ours.peak_mib:,.1f} beside {other.peak_mib:,.1f} MiB"
    return Check(claim, (rung.name,), verdict(ours.peak_mib < other.peak_mib + ROUNDING), text, bound)


def _least_memory(bench: Bench) -> Check:
    claim, bound = f"least memory, of the peak of {ENGINES['trainer_default']}", f"at most {LEAST_MEMORY:.0%}"
    ours, other = bench.least.lap("ours"), bench.rungs[-1].lap("trainer_default")
    if ours is None or other is None:
        missing, engine = (bench.least, "ours") if ours is None else (bench.rungs[-1], "trainer_default")
        return _missing(claim, missing, engine, bound)
    share = ours.peak_mib / other.peak_mib
    text = f"{ours.peak_mib:,.1f} of {other.peak_mib:,.1f} MiB, {share:.1%}"
    return Check(claim, (bench.least.name,), verdict(share <= LEAST_MEMORY), text, bound)


def _missing(claim: str, rung: Rung, engine: str, bound: str) -> Check:
    """Fails a claim, since one of its two engines has no figures."""
    whys = [f"{ENGINES[lap.engine]}: {lap.failed}" for lap in rung.laps.values() if lap.failed]
    return Check(claim, (rung.name,), "FAIL", "; ".join(whys) or f"{ENGINES[engine]} has no figures", bound)
