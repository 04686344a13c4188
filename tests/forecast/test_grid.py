"""The forecast against the measured peak, over a grid, with the table of errors as its output."""

import itertools

from rungwise.forecast import Forecast, forecast
from rungwise.techniques import cpu_matmul

import pytest
from grid import CASES, OWNERS, error, measure, table

# Per cent.
BOUND = 0.2
FOUND: list[tuple[object, Forecast, dict[str, float]]] = []


@pytest.fixture(scope="module", autouse=True)
def _table(request):
    # The forecast is of PyTorch's kernels.
    before = cpu_matmul.used()
    cpu_matmul.use(())
    yield
    cpu_matmul.use(before)
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(table(FOUND))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_forecast_is_what_is_measured(case):
    found, measured = forecast(*case.inputs()), measure(*case.inputs())
    FOUND.append((case, found, measured))
    for owner, size in itertools.islice(found.owners.items(), len(OWNERS) - 1):
        assert size == pytest.approx(measured[f"{owner}_mib"], rel=1e-12), owner
    assert abs(error(found, measured)) <= BOUND


def test_the_grid_is_large_enough():
    assert len(set(CASES)) == len(CASES) >= 40
