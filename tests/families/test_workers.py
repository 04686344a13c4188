"""Many arguments in a few processes, of which none takes the others with it."""

import os
import signal
import threading
import time

from rungwise.families import workers
from rungwise.families.workers import Lost, each

# Seconds; longer than any machine needs for what is not to wait for it.
LONG = 600


def behave(argument):
    """In a worker: as the argument asks."""
    if argument == "die":
        os._exit(7)
    if argument == "raise":
        raise ValueError("nobody reads this")
    if argument == "hang":
        time.sleep(LONG)
    if argument == "linger":
        threading.Thread(target=time.sleep, args=(LONG,)).start()
    return argument, os.getpid()


def test_an_argument_that_ends_its_process_or_hangs_costs_only_itself():
    """The others are done while it hangs; no time goes by before."""
    arguments, found = ["a", "die", "b", "hang", "c", "raise", "d"], {}
    clock = lambda: 3 if len(found) == len(arguments) - 1 else 0  # noqa: E731
    found.update(each(behave, arguments, processes=2, seconds=3, clock=clock))
    assert list(found)[-1] == "hang" and found.keys() == set(arguments)
    assert found["die"] == Lost("its process ended with exit code 7")
    assert found["raise"] == Lost("its process ended with exit code 1")
    assert found["hang"] == Lost("not finished after 3 s")
    assert all(found[name][0] == name for name in "abcd")


def test_a_process_serves_many_arguments():
    found = [result for _, result in each(behave, "abcdef", processes=1, seconds=1, clock=lambda: 0)]
    assert [argument for argument, _ in found] == list("abcdef")
    assert len({process for _, process in found}) == 1 and found[0][1] != os.getpid()


def test_threads_that_a_process_has_left_behind_hold_up_nobody(monkeypatch):
    """The process is not waited for until they end, which would leave it the exit code 0: it is made to leave."""
    monkeypatch.setattr(workers, "LEAVING", 0.5)
    started, start = [], workers._start
    monkeypatch.setattr(workers, "_start", lambda function: started.append(start(function)) or started[-1])
    found = each(behave, ["linger"], processes=1, seconds=1, clock=lambda: 0)
    assert [result[0] for _, result in found] == ["linger"]
    assert [worker.process.exitcode for worker in started] == [-signal.SIGKILL]
