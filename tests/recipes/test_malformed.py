"""Malformed and contradictory inputs, in numbers: each is refused in words, and nothing is left behind."""

import contextlib
import json
import re
import shutil
import signal
import sys

import rungwise
from rungwise import tracking
from rungwise.ladder import ladder
from rungwise.report import plots
from rungwise.run.saved_checkpoints import STEPS

import ablate
import ladder as recipe
import malformed as bad
import pytest
from commands import TINY as ANY_BYTE
from commands import ablate_here, clone, run
from conftest import SEED
from harness import LINES
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from results import result

# Seconds for one call, which takes some milliseconds; who takes so long hangs.
HANGS = 120


class Accepted(BaseException):
    """A call that nothing is wrong with: here it would begin."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder that looks like a clone, in which nothing may come to be."""
    return clone(tmp_path_factory.mktemp("clone"))


@pytest.fixture
def call(home, monkeypatch, capfd):
    """Calls a recipe's `main`. Returns its exit code, None where it would begin, and what it said."""
    monkeypatch.chdir(home)
    monkeypatch.setattr("wandb.init", lambda *_, **__: pytest.fail("W&B was started"))
    monkeypatch.setattr(tracking, "build_tracker", lambda *_, **__: pytest.fail("a tracker was started"))

    def begin(*_):
        raise Accepted

    monkeypatch.setattr(rungwise, "Run", begin)
    monkeypatch.setattr(ladder, "run_rung", begin)
    before = present(home)

    def run(main, *argv):
        capfd.readouterr()
        with ended_in(HANGS):
            try:
                code = main(*argv)
            except Accepted:
                code = None
            except SystemExit as stopped:
                code = stopped.code
        left = present(home) - before
        shutil.rmtree(home / "runs", ignore_errors=True)
        assert not left
        return code, "".join(capfd.readouterr())

    return run


def present(folder):
    return set(folder.rglob("*"))


@contextlib.contextmanager
def ended_in(seconds):
    def hangs(*_):
        pytest.fail(f"still busy after {seconds} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(count):
    """So many inputs, the same each time; another SEED gives others."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]
    chosen = settings(max_examples=count, database=None, print_blob=True, suppress_health_check=checks)
    return lambda test: seed(SEED)(chosen(test))


def climb(monkeypatch, *argv):
    """`python recipes/ladder.py` with these arguments."""
    monkeypatch.setattr(sys, "argv", ["ladder.py", *argv])
    return recipe.main()


def is_refused(code, said, *named):
    assert code == 2, (code, said[-2000:])
    assert re.match(r"\d+ problems? with this call:|usage: ", said) and "Traceback" not in said
    for name in named:
        assert name in said, (name, said[-2000:])


@tried(850)
@given(call_=bad.bad_flags())
def test_a_flag_that_cannot_be(call, call_):
    argv, named = call_
    is_refused(*call(ablate.main, argv), *named)


@tried(100)
@given(idle=bad.idle_flags())
def test_a_flag_that_would_not_act(call, idle):
    flags, name = idle
    is_refused(*call(ablate.main, [*bad.GOOD, *flags]), f"--{name} has no effect")


@tried(300)
@given(content=bad.bad_files())
def test_an_accelerate_file_that_cannot_be(call, tmp_path, content):
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    code, said = call(ablate.main, ["--config", str(path), *bad.TINY])
    # Accumulation that the batch does not divide by is a fault of the two together.
    is_refused(code, said, "--global_batch_size" if "--global_batch_size" in said else str(path))


@tried(250)
@given(content=bad.bad_ladders())
def test_a_ladder_file_that_cannot_be(call, monkeypatch, tmp_path, content):
    path = tmp_path / "rungs.yaml"
    path.write_bytes(content)
    code, said = call(
        climb, monkeypatch, "--ladder", str(path), "--config_overrides", bad.TINY[1], "--block_size", "32"
    )
    is_refused(code, said)
    assert str(path) in said or "--" in said or "none-such.yaml" in said, said


@tried(120)
@given(fault=bad.bad_flags())
def test_a_flag_for_every_rung_that_cannot_be(call, monkeypatch, fault):
    argv, named = fault
    code, said = call(climb, monkeypatch, *argv[len(bad.GOOD) :])
    # What its own parser refuses is said first, and alone.
    is_refused(code, said, *(["--output_dir"] if "ladder.py: error" in said else named))


@pytest.mark.parametrize("times", ["0", "-1", "1.5", "", "²"])
def test_turns_that_cannot_be(call, monkeypatch, times):
    is_refused(*call(climb, monkeypatch, f"--repeats={times}"), f"argument --repeats: {times}: must be a whole number")


@tried(120)
@given(text=bad.bad_texts(), flag=st.sampled_from(["train_file", "dataset_name", "validation_file"]))
def test_a_text_that_cannot_be_read(call, tmp_path, text, flag):
    suffix, content = text
    path = tmp_path / f"data{suffix}"
    path.write_bytes(content)
    flags = ["--config", bad.FP32, *ANY_BYTE, "--report_to", "none"]
    flags += ["--eval_steps", "2", "--train_file", LINES] if flag == "validation_file" else []
    is_refused(*call(ablate.main, [*flags, f"--{flag}", str(path)]), str(path))


@tried(120)
@given(content=bad.damaged(result(), ("status", "settings", "throughput", "memory", "loss", "compile", "evidence")))
def test_a_result_to_compare_with_that_is_damaged(call, tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    flags = ["--torch_compile", "--eager_run", str(tmp_path)]
    is_refused(*call(ablate.main, [*bad.GOOD, *flags]), f"--eager_run {tmp_path}")


@tried(120)
@given(content=bad.damaged(result()))
def test_a_ladder_to_report_of_that_is_damaged(call, monkeypatch, tmp_path, content):
    monkeypatch.setattr(plots, "draw", lambda *_: [])
    folder = tmp_path / "rungs"
    (folder / "a" / "round-1").mkdir(parents=True, exist_ok=True)
    (folder / "a" / "round-1" / "result.json").write_bytes(content)
    code, said = call(climb, monkeypatch, "--report_only", str(folder))
    # What is lacking may be nothing that a report needs.
    if code not in (0, 1):
        is_refused(code, said, str(folder))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint as a run leaves it, and what stands in its notes."""
    folder = tmp_path_factory.mktemp("checkpoints")
    ablate_here(folder, *bad.GOOD, "--max_steps", "3", "--untimed_steps", "2", "--checkpointing_steps", "2")
    notes = folder / "checkpoint-2" / STEPS
    return notes, json.loads(notes.read_text(encoding="utf-8"))


@tried(120)
@given(data=st.data())
def test_a_checkpoint_to_go_on_from_that_is_damaged(call, checkpoint, data):
    path, whole = checkpoint
    parts = ("settings", "steps", "files", "data", "evaluations", "scheduler", "tracked")
    path.write_bytes(data.draw(bad.damaged(whole, parts)))
    flags = ["--max_steps", "4", "--untimed_steps", "2", "--resume_from_checkpoint", str(path.parent)]
    code, said = call(ablate.main, [*bad.GOOD, *flags])
    # What the scheduler is told shows when it is loaded, by a run that fails in words.
    if code is not None:
        is_refused(code, said, str(path.parent))


PROCESSES = {
    "a flag": (["recipes/ablate.py", *bad.GOOD, "--max_steps=x"], "--max_steps: must be a whole number"),
    "a file": (["recipes/ablate.py", "--config", "LAUGHS"], "LAUGHS: over 10,000 values"),
    "a ladder": (["recipes/ladder.py", "--ladder", "LAUGHS"], "--ladder LAUGHS: over 10,000 values"),
    "a ladder's folder": (["recipes/ladder.py", "--output_dir="], "argument --output_dir: needs a value"),
}


@pytest.mark.parametrize("case", PROCESSES)
def test_the_same_by_a_process_of_its_own(case, tmp_path):
    command, words = PROCESSES[case]
    (clone(tmp_path) / "LAUGHS").write_bytes(max(bad.BROKEN_YAML[-5:], key=lambda text: text.count(b"*")))
    before = present(tmp_path)
    done = run(tmp_path, sys.executable, *command, timeout=HANGS)
    is_refused(done.returncode, done.stderr, words)
    assert present(tmp_path) == before
