"""Holds claims against the rungs that can decide them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .claims import PAIR_CLAIMS, RUNG_CLAIMS, PairClaim
from .measures import Finding
from .rung_result import RungResult, pairs

VERDICTS = ("PASS", "FAIL", "SKIP")


@dataclass(frozen=True)
class Check:
    """One claim, the rungs it compares, and how it came out: PASS, FAIL, or SKIP with the reason."""

    claim: str
    rungs: tuple[str, ...]
    verdict: str
    measured: str
    bound: str


def tally(checks: Iterable[Check]) -> str:
    """How many checks came out how."""
    verdicts = [check.verdict for check in checks]
    return ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in VERDICTS)


def run_checks(rungs: list[RungResult]) -> list[Check]:
    """Every check that these rungs can be asked, and for each that they cannot, why."""
    known = [rung for rung in rungs if rung.settings]
    told = [claim for claim in PAIR_CLAIMS if claim.among is None or any(claim.among(rung) for rung in known)]
    of_pairs = [check for claim in told for check in _of_pairs(claim, known)]
    of_rungs = [
        Check(claim.name, (rung.name,), *claim.measure(rung, claim.bound))
        for claim in RUNG_CLAIMS
        for rung in rungs
        if claim.among(rung)
    ]
    return of_pairs + of_rungs


def _of_pairs(claim: PairClaim, rungs: list[RungResult]) -> Iterator[Check]:
    compared = list(pairs(rungs, claim.setting, claim.accept))
    if not compared:
        why = f"no two rungs differ in {claim.setting} alone in the way that this asks for"
        yield Check(claim.name, (), "SKIP", why, "")
    for before, after in compared:
        broken = next((rung for rung in (before, after) if not rung.ok), None)
        if broken:
            found = Finding("SKIP", f"{broken.name}: {broken.status}", "")
        else:
            found = claim.measure(before, after, claim.bound)
            why = next(filter(None, (reason(before) for reason in claim.not_asked)), "")
            if why and found.verdict != "SKIP":
                found = Finding("SKIP", f"{found.measured}; not asked, since {why}", found.bound)
        yield Check(claim.name, (before.name, after.name), *found)
