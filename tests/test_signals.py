"""Signals as exceptions: which, when, and what they leave as it was."""

import os
import signal

from rungwise.signals import Signals, Terminated, exit_code

import pytest

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture(autouse=True)
def terminal():
    """A terminal whose end is heard, also where the tests themselves are run by `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", CODES)
def test_each_ends_by_its_own_exit_code_and_leaves_the_handlers_as_they_were(number):
    before = [signal.getsignal(n) for n in CODES]
    with pytest.raises((KeyboardInterrupt, Terminated)) as caught, Signals(hang_up=True):
        send(number)
    assert isinstance(caught.value, KeyboardInterrupt) == (number == signal.SIGINT)
    assert exit_code(caught.value) == CODES[number]
    assert [signal.getsignal(n) for n in CODES] == before


@pytest.mark.parametrize("number", CODES)
def test_they_wait_for_what_is_done_as_a_whole_and_come_no_more_after_the_end(number):
    done = []
    with Signals(hang_up=True) as signals:
        with pytest.raises((KeyboardInterrupt, Terminated)) as caught, signals.deferred():
            send(number)
            done.append("whole")
        assert done == ["whole"] and exit_code(caught.value) == CODES[number]
        signals.end()
        send(number)


def test_a_closed_terminal_is_left_to_who_handles_it():
    """`nohup` has SIGHUP ignored, and a run that a ladder starts is not told of the ladder's terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals(hang_up=True):
        send(signal.SIGHUP)
    told = []
    signal.signal(signal.SIGHUP, lambda *_: told.append("told"))
    with Signals():
        send(signal.SIGHUP)
    assert told == ["told"]
