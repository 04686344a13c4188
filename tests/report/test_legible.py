"""No word of a picture lies on another or leaves the page, whatever the rungs are called, however many there are."""

from rungwise.report.plots import PICTURES
from rungwise.report.run_plot import owners, step
from rungwise.report.rung_result import load
from rungwise.report.style import STYLE

import pytest
from drawn import collisions
from harness import ROOT
from matplotlib import rc_context
from matplotlib.figure import Figure
from results import forecast_beside, result, rung

STORED = ROOT / "tests" / "stored" / "ladder"
LONG = "bf16-accum16-checkpointed-every-2nd-block-offloaded-compiled-regionally-adamw-8bit-rung"
CLASSES = ("products", "attention", "fused", "loss", "normalisation", "activation", "optimizer", "data", "rest")


def timeline(n, micro_batches):
    points = [(0.0, 10.0 * n, "forward")]
    for micro in range(micro_batches):
        points += [(10.0 * micro + 4, 100.0 * n, "backward"), (10.0 * micro + 9, 20.0 * n, "forward")]
    return [*points[:-1], (*points[-1][:2], "optimizer"), (10.0 * micro_batches + 3, 10.0 * n, "optimizer")]


def made(n, name, scale, ms):
    """A rung with all that can be drawn of one, of nearly the same memory and time as its neighbours."""
    one = result(
        peak=scale * (1000 + 7 * (n % 5)), step_ms=ms * (1 + 0.02 * (n % 4)), spread=0.1 * ms, losses=[3.0] * 5
    )
    for owner in ("parameters", "gradients", "optimizer_state"):
        one["memory"][f"{owner}_mib"] *= scale
    one["memory"]["activations_mib"] = one["memory"]["peak_allocated_mib"] - 400 * scale
    one["forecast"] = {**forecast_beside(one["memory"], 1.01 * one["memory"]["peak_allocated_mib"]), "note": ""}
    one["profile"] = {"step_ms": ms, **{f"{c}_ms": ms / len(CLASSES) for c in CLASSES}}
    sizes = {f"model.layers.*.{'very_' * (n % 3) * 4}long_module_{k}": scale * 100 / (k + 1) for k in range(14)}
    rows = [{"module": m, "operator": "mul", "mib": mib, "tensors": 1} for m, mib in sizes.items()]
    one["activations"] = {"total_mib": sum(sizes.values()), "rows": rows, "recompute": None, "unknown": []}
    one["settings"]["gradient_accumulation_steps"] = n + 1
    if n % 6 == 4:
        one["throughput"]["disturbed"] = "p90 is 3 times p10"
    if n % 7 == 5:
        one |= {"status": "out_of_memory", "reason": "too large"}
    return rung(name, one, timeline=timeline(scale, 1 + n))


def over_budgets(count):
    """Compiled rungs of rising budgets, each disturbed or close to the next, and the eager one."""
    runs = [made(4 * (n % 2), f"budget-{n}-{LONG}", 1.0, 500.0) for n in range(count)]
    for n, one in enumerate(runs):
        one.settings.update(torch_compile=True, gradient_accumulation_steps=1, activation_memory_budget=n / count)
    eager = made(0, f"eager-{LONG}", 1.0, 501.0)
    runs[-1].settings["activation_memory_budget"] = 1.0
    return [eager, *runs]


EXTREMES = {
    "one long": [made(0, LONG, 1.0, 500.0)],
    "two tiny": [made(n, f"r{n}", 1e-4, 0.02) for n in range(2)],
    "six long": [made(n, f"{n}-{LONG}", 1.0, 500.0) for n in range(6)],
    "17 short and huge": [made(n, f"r{n}", 1e5, 3e6) for n in range(17)],
    "17 long": [made(n, f"{n}-{LONG}", 1.0, 500.0) for n in range(17)],
    "budgets": over_budgets(12),
}


@pytest.fixture(scope="module")
def ladders():
    return {"stored": load(STORED), **EXTREMES}


@pytest.mark.parametrize("ladder", ["stored", *EXTREMES])
def test_no_words_collide_in_a_ladders_pictures(ladders, ladder):
    drawn = 0
    with rc_context(STYLE):
        for name, picture in PICTURES.items():
            figure = picture(ladders[ladder])
            if figure is not None:
                drawn += 1
                assert not collisions(figure), name
    assert drawn >= (6 if len(ladders[ladder]) > 1 else 5)


@pytest.mark.parametrize("ladder", ["stored", *EXTREMES])
def test_no_words_collide_in_a_runs_pictures(ladders, ladder):
    with rc_context(STYLE):
        for picture in (owners, step):
            assert not collisions(picture(ladders[ladder][0])), picture.__name__


def test_words_that_collide_are_found():
    figure = Figure(dpi=STYLE["figure.dpi"])
    axes = figure.subplots()
    assert not collisions(figure)
    axes.text(0.5, 0.5, "one")
    axes.text(0.52, 0.5, "another")
    axes.text(0.9, 0.2, "a long line that leaves the page")
    assert collisions(figure) == [("a long line that leaves the page",), ("one", "another")]
