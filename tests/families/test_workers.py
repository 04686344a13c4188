"""Many arguments in a few processes, of which none takes the others with it."""

import os
import threading
import time

from rungwise.families import workers
from rungwise.families.workers import Lost, each


def behave(argument):
    """In a worker: as the argument asks."""
    if argument == "die":
        os._exit(7)
    if argument == "raise":
        raise ValueError("nobody reads this")
    if argument == "hang":
        time.sleep(60)
    if argument == "linger":
        threading.Thread(target=time.sleep, args=(60,)).start()
    return argument, os.getpid()


def test_an_argument_that_ends_its_process_or_hangs_costs_only_itself():
    arguments = ["a", "die", "b", "hang", "c", "raise", "d"]
    found = dict(each(behave, arguments, processes=2, seconds=3))
    assert found.keys() == set(arguments)
    assert found["die"] == Lost("its process ended with exit code 7")
    assert found["raise"] == Lost("its process ended with exit code 1")
    assert found["hang"] == Lost("not finished after 3 s")
    assert all(found[name][0] == name for name in "abcd")


def test_a_process_serves_many_arguments():
    found = [result for _, result in each(behave, "abcdef", processes=1, seconds=30)]
    assert [argument for argument, _ in found] == list("abcdef")
    assert len({process for _, process in found}) == 1 and found[0][1] != os.getpid()


def test_threads_that_a_process_has_left_behind_hold_up_nobody(monkeypatch):
    monkeypatch.setattr(workers, "LEAVING", 0.5)
    started = time.monotonic()
    assert [result[0] for _, result in each(behave, ["linger"], processes=1, seconds=30)] == ["linger"]
    assert time.monotonic() - started < 30
