"""The forecast against the measured peak, over a grid, with the table of errors as its output."""

import itertools
import json
import subprocess
import sys

import pytest
from grid import CASES, OWNERS
from harness import ENVIRONMENT, ROOT
from needs import EVERY_N_LAYERS, LOSS_IN_CHUNKS, NO_IDLE_DRAWS, OLMO2, marked
from selection import taken

# Per cent.
BOUND = 0.2
WANTING = {"every 2nd layer": EVERY_N_LAYERS, "chunked loss": LOSS_IN_CHUNKS, "opt": NO_IDLE_DRAWS, "olmo2": OLMO2}


@pytest.fixture(scope="module")
def found(request, tmp_path_factory):
    """Of each case that this run takes, what the grid's own command found."""
    names = [str(params["case"]) for params in taken(request, "test_the_forecast_is_what_is_measured")]
    file = tmp_path_factory.mktemp("grid") / "grid.json"
    command = [sys.executable, str(ROOT / "tests" / "forecast" / "grid.py"), str(file), *names]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(done.stdout)
    cases = json.loads(file.read_text(encoding="utf-8"))
    assert list(cases) == names
    return cases


@pytest.mark.breadth(16)
@pytest.mark.parametrize("case", marked(CASES, WANTING), ids=str)
def test_the_forecast_is_what_is_measured(case, found):
    one = found[str(case)]
    for owner, size in itertools.islice(one["owners"].items(), len(OWNERS) - 1):
        assert size == pytest.approx(one["measured"][f"{owner}_mib"], rel=1e-12), owner
    assert abs(one["error"]) <= BOUND


def test_no_case_is_there_twice():
    assert len(set(map(str, CASES))) == len(CASES)
