"""Why a run ended is on the disk before anything that takes time, whoever ends the process meanwhile."""

import dataclasses
import json
import os
import pkgutil
import signal
import threading
from pathlib import Path

from rungwise.errors import SettingsError
from rungwise.run import rank_errors as ranks
from rungwise.run import run as run_module
from rungwise.run.refusal import exit_on_errors
from rungwise.run.run import Run
from rungwise.techniques import build_accelerator

import pytest
from harness import HANGS, tiny_settings


@pytest.fixture
def settings(tmp_path):
    return tiny_settings("--max_steps", "4", "--output_dir", str(tmp_path / "run"))


@pytest.fixture
def two(settings):
    """As one of two ranks knows it; the process group is not the question here."""
    return dataclasses.replace(settings, num_processes=2)


def result_of(settings):
    return json.loads((Path(settings.output_dir) / "result.json").read_text(encoding="utf-8"))


def at(monkeypatch, target, action):
    """Does something more whenever a function is called."""
    owner, name = target.rsplit(".", 1)
    original = pkgutil.resolve_name(target)

    def acted(*args, **kwargs):
        action()
        return original(*args, **kwargs)

    monkeypatch.setattr(pkgutil.resolve_name(owner), name, acted)


# Everything that the end of a run waits for.
MAIN = [
    "rungwise.metrics.memory.MemoryMeter.result",
    "rungwise.run.console.Progress.close",
    "traceback.format_exception",
    "rungwise.tracking.Tracker.summary",
    "rungwise.tracking.Tracker.finish",
    "rungwise.run.console.summary_block",
]
WRITING = {"0": "rungwise.run.run.Record.write", "1": "rungwise.run.rank_errors.write_reason"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "rank, point", [*(("0", point) for point in (*MAIN, WRITING["0"])), ("1", WRITING["1"]), ("1", MAIN[2])]
)
def test_a_launcher_that_ends_a_failing_rank_does_not_take_its_reason(two, monkeypatch, rank, point, number):
    """And in whatever a signal arrives, the reason is there already."""
    reason = f"{'rank 1: ' if rank == '1' else ''}ZeroDivisionError: division by zero"
    there = []

    def ended():
        os.kill(os.getpid(), number)
        there.append(result_of(two)["reason"])

    main = Run(two)
    main.__enter__()
    main.signals.__exit__()
    monkeypatch.setenv("RANK", rank)
    with Run(two) as run:
        run.start(build_accelerator(two))
        at(monkeypatch, point, ended)
        raise ZeroDivisionError("division by zero")
    assert run.exit_code == 1
    assert result_of(two)["reason"] == reason
    written = there[1:] if point == WRITING["0"] else there
    assert there and (point == WRITING["1"] or set(written) == {reason})


@pytest.mark.parametrize("point", [*MAIN[3:], WRITING["0"]])
def test_a_finished_run_that_is_asked_to_end_is_still_finished(two, monkeypatch, point):
    with Run(two) as run:
        run.start(build_accelerator(two))
        at(monkeypatch, point, lambda: os.kill(os.getpid(), signal.SIGTERM))
    assert (run.exit_code, result_of(two)["status"]) == (0, "ok")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_anything_is_trained(settings, monkeypatch, number):
    """While the run takes its folder: there is no block yet that it could be raised in."""
    at(monkeypatch, "rungwise.run.record.Record.write", lambda: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as caught, Run(settings):
        pytest.fail("it has begun")
    assert caught.value.code == 128 + number and signal.getsignal(number) is before
    assert result_of(settings)["reason"].endswith("ed after 0 steps")


def test_ctrl_c_does_not_wait_for_a_tracker(settings, monkeypatch):
    """All is written by then, and what is left may be a slow connection."""
    with pytest.raises(KeyboardInterrupt), Run(settings) as run:
        run.start(build_accelerator(settings))
        at(monkeypatch, "rungwise.tracking.Tracker.finish", lambda: os.kill(os.getpid(), signal.SIGINT))
    assert result_of(settings)["status"] == "ok"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_waits_where_no_exception_reaches_it_says_why_it_is_ended(two, monkeypatch, rank):
    """As in a collective: the main thread comes back to Python only when the reason has been read."""
    main = Run(two)
    main.__enter__()
    main.signals.__exit__()
    monkeypatch.setenv("RANK", rank)
    back, release = os.pipe()
    masked, written, seen = threading.Event(), threading.Event(), []
    write = run_module.write_reason
    monkeypatch.setattr(run_module, "write_reason", lambda *args: (write(*args), written.set()))

    def from_outside():
        masked.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        written.wait(HANGS)
        seen.append(result_of(two)["reason"])
        os.write(release, b".")

    with Run(two):
        # The signal is taken by the other thread, so that it does not interrupt the call.
        outside = threading.Thread(target=from_outside)
        outside.start()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        masked.set()
        os.read(back, 1)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    outside.join()
    reason = f"{'rank 1: ' if rank == '1' else ''}terminated after 0 steps; asked to from outside, or another rank"
    assert seen[0].startswith(reason) and result_of(two)["reason"].startswith(reason)


def test_who_failed_is_heard_before_who_was_left_alone(two, monkeypatch, capsys):
    with Run(two):
        for rank, error in (("1", RuntimeError("[gloo] Connection closed by peer")), ("2", ValueError("on rank 2"))):
            monkeypatch.setenv("RANK", rank)
            with Run(two):
                raise error
        monkeypatch.setenv("RANK", "0")
        raise RuntimeError("[gloo] Connection closed by peer")
    assert result_of(two)["reason"] == "rank 2: ValueError: on rank 2"
    assert "rank 1: another rank ended without a word" in capsys.readouterr().err


def refused(monkeypatch, capsys, rank, error_file):
    """What a refused rank prints."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", error_file)
    with pytest.raises(SystemExit) as caught, exit_on_errors():
        at(monkeypatch, "rungwise.run.refusal.speaker", lambda: os.kill(os.getpid(), signal.SIGTERM))
        raise SettingsError(["--train_file book.txt: no such file"])
    assert caught.value.code == 2
    return capsys.readouterr().err


TEXT = "1 problem with this call:\n  - --train_file book.txt: no such file"


def test_a_refusal_of_any_rank_reaches_its_launcher_and_the_main_process(two, monkeypatch, capsys, tmp_path):
    """Even if it is ended while it says so. The launcher prints what the first rank to fail has told it."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    files = [tmp_path / f"attempt_0/{rank}/error.json" for rank in range(2)]
    for file in files:
        file.parent.mkdir(parents=True)
    assert refused(monkeypatch, capsys, "1", str(files[1])) == ""
    failure = ProcessFailure(local_rank=1, pid=1, exitcode=2, error_file=str(files[1]))
    assert "rank 1: 1 problem with this call:" in str(ChildFailedError("ablate.py", {1: failure}))
    # The main process was not refused; its launcher ends it.
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(files[0]))
    with Run(two):
        os.kill(os.getpid(), signal.SIGTERM)
    assert result_of(two)["reason"] == f"rank 1: {TEXT}"


def test_a_refusal_is_printed_by_the_main_process_and_by_all_where_no_launcher_listens(monkeypatch, capsys, tmp_path):
    assert refused(monkeypatch, capsys, "0", str(tmp_path / "error.json")) == f"{TEXT}\n"
    assert refused(monkeypatch, capsys, "1", "") == f"rank 1: {TEXT}\n"
    assert ranks.read_rank_error(tmp_path) is None
