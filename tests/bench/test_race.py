"""Engines take turns, and one that fails costs only itself."""

import os
from pathlib import Path

from rungwise.bench import race as racing
from rungwise.bench.players import Failed
from rungwise.bench.race import CACHE, Lap, joined, race

import pytest

FIGURES = {"peak_mib": 1.0, "loss": 2.0, "threads": 2}


@pytest.fixture
def played(monkeypatch):
    """Every call of the players in its order; `fails` has those that fail."""
    monkeypatch.setattr(racing, "PAUSE", 0.0)
    calls, fails = [], set()

    class Player:
        def __init__(self, engine, flags, folder):
            self.engine, self.flags, self.folder = engine, flags, folder
            self._note("start", os.environ[CACHE])

        def _note(self, *call):
            calls.append((self.engine, *call))
            if (self.engine, call[0]) in fails:
                raise Failed("it broke")

        def ready(self):
            self._note("ready")

        def turn(self, steps):
            self._note("turn", steps)
            return 0.5 * steps

        def release(self):
            self._note("release")

        def figures(self):
            self._note("figures")
            return FIGURES

        def end(self):
            self._note("end")

    Player.calls, Player.fails = calls, fails
    return Player


def names(calls, kind):
    return "".join(engine for engine, what, *_ in calls if what == kind)


def test_each_engine_begins_a_round_in_turn(played):
    laps = race(dict.fromkeys("abc", ()), Path("x"), rounds=4, steps=3, start=played)
    assert names(played.calls, "turn") == "abc" + "bca" + "cab" + "abc"
    assert [lap.seconds for lap in laps] == [[1.5] * 4] * 3
    assert [(lap.peak_mib, lap.loss, lap.threads, lap.failed) for lap in laps] == [(1.0, 2.0, 2, None)] * 3
    assert names(played.calls, "end") == "abc"


def test_the_first_one_is_ready_before_the_others_start_and_none_ends_before_the_last_turn(played):
    race(dict.fromkeys("abc", ()), Path("x"), rounds=2, steps=1, start=played)
    begun = [call[:2] for call in played.calls][:6]
    assert begun == [("a", "start"), ("a", "ready"), ("b", "start"), ("c", "start"), ("b", "ready"), ("c", "ready")]
    kinds = [call[1] for call in played.calls]
    assert kinds.index("release") > max(n for n, kind in enumerate(kinds) if kind == "turn")
    assert kinds.index("figures") > max(n for n, kind in enumerate(kinds) if kind == "release")


def test_they_share_what_is_compiled_and_leave_the_environment_as_it_was(played, monkeypatch):
    for name in (None, "elsewhere"):
        monkeypatch.setenv(CACHE, name) if name else monkeypatch.delenv(CACHE, raising=False)
        race(dict.fromkeys("ab", ()), Path("x"), rounds=1, steps=1, start=played)
        assert os.environ.get(CACHE) == name
    one, same, other, again = (call[2] for call in played.calls if call[1] == "start")
    assert one == same != other == again != "elsewhere"
    assert not Path(one).exists() and not Path(other).exists()


def test_heats_are_one_lap_an_engine():
    first = [Lap("ours", [1.0, 2.0], 5.0, 3.0, 2), Lap("bare", [1.5], 5.0, 3.0, 2)]
    second = [Lap("ours", [4.0], 6.0, 3.0, 2), Lap("bare", failed="it broke")]
    ours, bare = joined([first, second])
    assert (ours.seconds, ours.peak_mib, ours.loss, ours.threads, ours.failed) == ([1.0, 2.0, 4.0], 6.0, 3.0, 2, None)
    assert (bare.seconds, bare.peak_mib, bare.failed) == ([], None, "it broke")
    # A heat of no turns, for its memory alone.
    [least] = joined([[Lap("ours", [], 5.0, 3.0, 2)]])
    assert (least.seconds, least.peak_mib) == ([], 5.0)


@pytest.mark.parametrize("where", ["ready", "turn", "release", "figures"])
def test_one_that_fails_is_out_and_the_others_go_on(played, where):
    played.fails.add(("b", where))
    a, b, c = race(dict.fromkeys("abc", ()), Path("x"), rounds=2, steps=1, start=played)
    assert b.failed == "it broke" and b.peak_mib is None
    assert all(lap.failed is None and len(lap.seconds) == 2 and lap.loss == 2.0 for lap in (a, c))
    assert sorted(names(played.calls, "end")) == ["a", "b", "c"]
