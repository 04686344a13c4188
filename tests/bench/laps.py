"""Laps made by hand, for what compares them."""

from rungwise.bench.checks import Bench
from rungwise.bench.figures import Rung
from rungwise.bench.race import Lap

ENVIRONMENT = {
    "torch": "2.13",
    "transformers": "5",
    "accelerate": "1",
    "device_name": "a CPU",
    "threads": 2,
    "date": "2026-01-01T00:00:00+00:00",
}
NO_AMX, AMX = {"fp32": 340.0, "bf16": 180.0}, {"fp32": 254.0, "bf16": 1265.0}
STEADY = (1.0, 1.0, 1.0, 1.0, 1.0)


def lap(engine, seconds=STEADY, peak=100.0, loss=3.0, threads=2, failed=None):
    """One engine's lap, or that of one that failed."""
    if failed:
        return Lap(engine, failed=failed)
    return Lap(engine, list(seconds), peak, loss, threads)


def rung(*laps, name="fp32", tokens=1000):
    """A rung of these laps, those that are not given as steady as can be."""
    made = {engine: lap(engine) for engine in ("ours", "bare", "trainer")} | {each.engine: each for each in laps}
    return Rung(name, f"--config {name}.yaml", tokens, made)


def bench(*laps, gflops=NO_AMX, least=10.0, fastest=0.8):
    """A bench of two rungs, of which the first one has these laps."""
    fast = rung(lap("ours", [fastest] * 5), lap("bare", [fastest] * 5), lap("trainer_default"), name="fastest")
    smallest = Rung("smallest", "--config small.yaml", 1000, {"ours": lap("ours", [], peak=least)})
    return Bench([rung(*laps), fast], smallest, gflops, ENVIRONMENT, heats=1, rounds=5, steps=2, seconds=61.0)
