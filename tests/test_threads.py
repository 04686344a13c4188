"""A number of threads that a person chose is kept; the launcher's stand-in for none is not."""

import json

from rungwise import threads

import psutil
import pytest
import torch
from commands import ALL_CORES, LAUNCH, run

LAUNCHED = {"ACCELERATE_MIXED_PRECISION": "no", "OMP_NUM_THREADS": "1"}
SHARED = "all cores, shared among this machine's processes"


class Parent:
    """A process above this one, with the environment and the command line that it was started with."""

    def __init__(self, environ, *words):
        self._environ, self._words = environ, ["python", *words]

    def environ(self):
        return self._environ

    def cmdline(self):
        return self._words


class Unreadable:
    def environ(self):
        raise psutil.AccessDenied


@pytest.fixture
def chosen(monkeypatch):
    """The number of threads that is set, if any, and its origin, below these processes."""

    def choose(environ, *parents):
        for name in ("OMP_NUM_THREADS", "LOCAL_WORLD_SIZE", *threads.LAUNCHED):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        numbers = []
        monkeypatch.setattr(threads, "_shared", False)
        monkeypatch.setattr(torch, "set_num_threads", numbers.append)
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda pid: range(8), raising=False)
        monkeypatch.setattr(psutil.Process, "parents", lambda self: list(parents))
        threads.share_cores()
        return (numbers or [None])[0], threads.origin()

    return choose


def test_without_a_choice_the_cores_are_shared(chosen):
    assert chosen(LAUNCHED, Parent({}, "accelerate", "launch", "ablate.py")) == (8, SHARED)
    torchrun = {"TORCHELASTIC_RUN_ID": "none", "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "4"}
    assert chosen(torchrun, Parent({}, "torchrun")) == (2, SHARED)
    assert chosen({**torchrun, "LOCAL_WORLD_SIZE": "9"}, Parent({}, "torchrun")) == (1, SHARED)
    # A process in between has the launcher's variables, too.
    assert chosen(LAUNCHED, Parent(LAUNCHED, "sh"), Parent({}, "accelerate")) == (8, SHARED)


def test_a_persons_choice_is_kept(chosen):
    person = {"OMP_NUM_THREADS": "1"}
    assert chosen(LAUNCHED, Parent(person, "accelerate", "launch")) == (None, "OMP_NUM_THREADS")
    assert chosen(LAUNCHED, Parent(LAUNCHED, "sh"), Parent(person, "accelerate")) == (None, "OMP_NUM_THREADS")
    assert chosen(person, Parent(person, "bash")) == (None, "OMP_NUM_THREADS")
    for words in (["--num_cpu_threads_per_process", "1"], ["--num-cpu-threads-per-process=1"]):
        found = chosen(LAUNCHED, Parent({}, "accelerate", "launch", *words, "ablate.py"))
        assert found == (None, "--num_cpu_threads_per_process")


def test_where_it_cannot_be_told_nothing_is_changed(chosen):
    for parents in ([], [Unreadable()], [Parent(LAUNCHED, "sh")]):
        assert chosen(LAUNCHED, *parents) == (None, "OMP_NUM_THREADS")


def test_what_others_choose_has_their_name(chosen):
    assert chosen({}) == (None, "PyTorch")
    assert chosen({**LAUNCHED, "OMP_NUM_THREADS": "4"}, Parent({}, "accelerate")) == (None, "the launcher")


@pytest.mark.parametrize("person, origin", [(ALL_CORES, SHARED), ({"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS")])
def test_under_the_real_launcher(person, origin, tmp_path):
    script = tmp_path / "say.py"
    script.write_text(
        "import json, torch\nfrom rungwise import threads\nthreads.share_cores()\n"
        "print(json.dumps([torch.get_num_threads(), threads.origin()]))\n",
        encoding="utf-8",
    )
    done = run(tmp_path, *LAUNCH, "--num_processes", "1", str(script), environment=person)
    number, found = json.loads(done.stdout.splitlines()[-1])
    assert found == origin, done.stderr
    if origin != SHARED:
        assert number == 1
    elif hasattr(threads.os, "sched_getaffinity"):
        assert number == len(threads.os.sched_getaffinity(0))
