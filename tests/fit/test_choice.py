"""The first candidate that fits, found among forecasts that a test makes up, by as few of them as that takes."""

from functools import cache

from rungwise.fit.advice import advice
from rungwise.fit.candidates import Question
from rungwise.fit.choice import Choice
from rungwise.fit.console import nothing_lines, table
from rungwise.forecast import Forecast, NoForecast

import pytest
from needs import EVERY_N_LAYERS, LOSS_IN_CHUNKS
from test_candidates import ask

HELD = {"parameters": 20.0, "gradients": 20.0, "optimizer_state": 40.0, "buffers": 0.0}


class Memory:
    """Forecasts by a formula: each row of a micro-batch takes 64 MiB, less for what is turned on."""

    def __init__(self, question):
        self.question, self.asked = question, []

    def __call__(self, candidate):
        self.asked.append(candidate)
        made = candidate.settings
        if made.num_processes > 1:
            raise NoForecast("of one process alone")
        a_row = 64.0 * made.block_size / 32
        for name, part in (("ckpt-every4", 0.8), ("ckpt-every2", 0.6), ("ckpt", 0.2), ("lce", 0.9)):
            if f"-{name}" in candidate.name:
                a_row *= part
                break
        held = HELD | ({"optimizer_state": 10.0} if "8bit" in candidate.name else {})
        held |= {"gradients": 1.0, "optimizer_state": 2.0} if "lora" in candidate.name else {}
        # Gradients are there beside the second micro-batch's activations.
        early = 0.0 if candidate.accumulation == 1 else held["gradients"]
        activations = a_row * made.micro_batch_size + early
        peak = sum(held.values()) + activations
        return Forecast("cpu", None, peak, 0.0, peak, held | {"activations": activations}, (), 3)


levels_of = cache(Question.levels)


def choose(free, further=False, **options):
    question = ask(**options)
    memory = Memory(question)
    choice = Choice(question.candidate, memory, question.counts(), free)
    levels = levels_of(question)
    choice.look(levels, further)
    return question, choice, memory, levels


def first_of_all(question, levels, free):
    """What trying every candidate in order finds."""
    memory = Memory(question)
    for level in levels:
        for count in question.counts():
            candidate = question.candidate(level, count)
            if memory(candidate).peak_mib <= free:
                return candidate.name
    return None


@pytest.mark.parametrize("free", [4000.0, 1104.0, 700.0, 300.0, 164.0, 140.0, 113.0, 100.0, 80.0, 60.0])
def test_it_is_the_first_of_all(free):
    question, choice, memory, levels = choose(free)
    wanted = first_of_all(question, levels, free)
    assert (choice.chosen.candidate.name if choice.chosen else None) == wanted
    assert len(memory.asked) == len({candidate.name for candidate in memory.asked}) == len(choice.rows)
    if wanted:
        assert choice.chosen.fits and choice.chosen.forecast.peak_mib <= free


@LOSS_IN_CHUNKS
@EVERY_N_LAYERS
def test_it_asks_for_few_forecasts():
    assert len(choose(4000.0)[2].asked) == 1
    # Of 1, 2, 4, 8, 16 micro-batches.
    _, choice, memory, _ = choose(300.0)
    assert choice.chosen.candidate.name == "bf16-accum8-fused" and len(memory.asked) <= 4
    # What is always held does not fit, by either optimizer.
    assert [len(choose(free)[2].asked) for free in (70.0, 40.0)] == [17, 2]


def test_rows_stand_in_order_and_the_first_that_fits_is_marked():
    question, choice, _, levels = choose(113.0)
    order = [(levels.index(row.candidate.level), row.candidate.accumulation) for row in choice.rows]
    assert order == sorted(order) and not any(row.fits for row in choice.rows[: choice.rows.index(choice.chosen)])
    lines = table(choice.rows, choice.chosen, exact=True)
    [marked] = [line for line in lines if line.startswith("*")]
    assert marked.split()[1] == choice.chosen.candidate.name and len(lines) == len(choice.rows) + 1
    assert question.candidate(levels[0], 1).name in lines[1]


def test_more_flops_are_promising_for_fewer_micro_batches():
    _, choice, memory, _ = choose(300.0, further=True)
    found = choice.promising()
    assert found[0] is choice.chosen
    counts, shares = zip(*((row.candidate.accumulation, row.candidate.level.share) for row in found), strict=True)
    assert [*counts] == sorted(counts, reverse=True) and len({*counts}) == len(counts) > 1
    assert [*shares] == sorted(shares) and all(row.fits and not row.candidate.level.changes for row in found)
    assert len(memory.asked) < 20


def test_where_nothing_fits_it_says_by_how_much_and_what_would():
    question, choice, memory, levels = choose(61.0)
    assert choice.chosen is None
    choice.look_for_least(levels)
    least = choice.least()
    smallest = min(
        (memory(question.candidate(level, 16)).peak_mib, question.candidate(level, 16).name) for level in levels
    )
    assert (least.forecast.peak_mib, least.candidate.name) == smallest
    found = {one.words: one.row for one in advice(question, choice)}
    lora, sharded = found["--use_peft (adapters alone are trained)"], found["--num_processes 2 (FSDP2)"]
    assert lora.fits and lora.forecast.peak_mib == pytest.approx(20 + 1 + 2 + 12.8 + 1)
    assert sharded.reason == "of one process alone"
    # Rows of 32 tokens are not made shorter.
    assert len(found) == 2
    lines = nothing_lines(choice, list(advice(question, choice)))
    over = f"{least.forecast.peak_mib - 61:,.1f} MiB more than there is"
    assert lines[0] == f"nothing fits: {least.candidate.name} takes least, {over}"
    assert lines[2] == "  --use_peft (adapters alone are trained): 36.8 MiB, fits"


def test_what_has_no_forecast_is_said_once():
    _, choice, _, _ = choose(300.0, processes=2)
    assert choice.chosen is None and choice.least() is None
    assert table(choice.rows, None, True) == [f"no forecast of {len(choice.rows)} candidates: of one process alone"]
    assert nothing_lines(choice, []) == ["nothing can be said of what fits"]
