"""What `make quick`, `make test` and `make test-all` take of the tests."""

import re

import pytest
import selection
from harness import ROOT

CASES = """
import pytest

@pytest.mark.breadth(3)
@pytest.mark.parametrize("case", range(20))
def test_breadth(case):
    pass

def test_one():
    pass

def test_other():
    pass
"""
SHARED = """
import pytest

@pytest.mark.breadth(2, of="what takes long")
@pytest.mark.parametrize("case", range(3))
def test_shared_{name}(case):
    pass
"""


@pytest.fixture
def taken(pytester):
    """The tests that a run with these flags takes of some files, in its order, and what it printed."""
    pytester.makeini("[pytest]\nmarkers = breadth(kept): many")
    pytester.makepyfile(test_a="def test_first():\n    pass\n", test_b=CASES)

    def run(*flags):
        done = pytester.inline_run("-p", "selection", "-p", "no:hypothesispytest", *flags)
        names = [item.nodeid for item in done.getcalls("pytest_itemcollected")[0].item.session.items]
        return names, done

    return run


def test_a_sample_is_taken_again_by_its_seed(taken):
    seen = [taken("--sample", seed)[0] for seed in ("7", "7", "8")]
    assert [len([name for name in names if "breadth" in name]) for names in seen] == [3, 3, 3]
    assert seen[0] == seen[1] != seen[2]
    # What is not marked is in each.
    assert all(len(names) == 6 for names in seen)


def test_the_seed_of_a_sample_is_said(pytester, taken, capsys):
    names, _ = taken()
    [seed] = re.findall(r"--sample (\d+) takes it again", capsys.readouterr().out)
    assert taken("--sample", seed)[0] == names


def test_workers_take_one_sample(pytester, taken):
    taken("--sample", "7")
    done = pytester.runpytest_inprocess("-p", "selection", "-p", "no:hypothesispytest", "--numprocesses", "2", "-q")
    done.assert_outcomes(passed=6)


def test_tests_of_several_files_are_one_kind(pytester, taken):
    pytester.makepyfile(**{f"test_{name}": SHARED.format(name=name) for name in "cd"})
    samples = [[name for name in taken("--sample", str(seed))[0] if "shared" in name] for seed in range(20)]
    assert {len(names) for names in samples} == {2}
    assert {name[:9] for names in samples for name in names} == {"test_c.py", "test_d.py"}
    assert len([name for name in taken("--all")[0] if "shared" in name]) == 6


def test_every_case_is_taken_with_all_and_where_one_is_named(taken):
    assert len(taken("--all")[0]) == 23
    assert taken("test_b.py::test_breadth[13]", "--sample", "1")[0] == ["test_b.py::test_breadth[13]"]


def test_the_inner_loop_has_one_case_of_each_and_nothing_that_takes_long(taken, monkeypatch):
    monkeypatch.setattr(selection, "NOT_QUICK", ("test_a.py", "test_b.py::test_one"))
    names, _ = taken("--quick")
    assert len(names) == 2 and names[0].startswith("test_b.py::test_breadth[") and names[1] == "test_b.py::test_other"


def test_the_longest_files_come_first(taken, monkeypatch):
    monkeypatch.setattr(selection, "SECONDS", {"test_b.py": 9})
    names, _ = taken("--all")
    assert names[-1] == "test_a.py::test_first"


@pytest.mark.parametrize("name", [*selection.SECONDS, *selection.NOT_QUICK])
def test_what_is_named_is_there(name):
    file, _, function = name.partition("::")
    text = (ROOT / "tests" / file).read_text(encoding="utf-8")
    assert f"def {function}(" in text if function else text
