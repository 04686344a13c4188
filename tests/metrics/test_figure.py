"""A figure is lost with its meter, and with nothing else."""

from contextlib import contextmanager

from rungwise.metrics.figure import Figure

import pytest


@contextmanager
def meter(said, before=False, after=False):
    """A meter's context that says when it is entered and left, and fails where it is told to."""
    if before:
        raise AttributeError("moved")
    said.append("in")
    try:
        yield 7
    finally:
        said.append("out")
    if after:
        raise AttributeError("moved")


LOST = "its meter failed (AttributeError: moved)"


def test_what_a_whole_meter_gives_is_had():
    figure, said = Figure(), []
    with figure.around(lambda: meter(said)) as value:
        assert value == 7
    assert figure.attempt(divmod, 7, 2) == (3, 1) and figure.hook(max)(1, 2) == 2
    assert said == ["in", "out"] and figure.lost is None


@pytest.mark.parametrize("failing, left, value", [("before", [], None), ("after", ["in", "out"], 7)])
def test_a_failing_context_lets_what_is_inside_run(failing, left, value):
    figure, said = Figure(), []
    with figure.around(lambda: meter(said, **{failing: True})) as given:
        ran = True
    assert ran and (given, said, figure.lost) == (value, left, LOST)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), MemoryError()])
def test_what_is_raised_inside_is_no_fault_of_the_meter(error):
    figure, said = Figure(), []
    with pytest.raises(type(error)) as raised, figure.around(lambda: meter(said)):
        raise error
    assert raised.value is error and said == ["in", "out"] and figure.lost is None


def test_what_is_lost_is_not_tried_again_and_keeps_its_first_reason():
    figure, said = Figure(), []

    def fail(word):
        said.append(word)
        raise AttributeError(word)

    hook = figure.hook(fail)
    assert [hook("moved"), hook("again"), figure.attempt(fail, "again")] == [None] * 3
    with figure.around(lambda: meter(said)) as value:
        assert value is None
    assert said == ["moved"] and figure.lost == LOST


def test_a_context_that_was_entered_is_left_though_the_figure_is_lost_inside():
    figure, said = Figure(), []
    with figure.around(lambda: meter(said)):
        figure.attempt(lambda: {}["gone"])
    assert said == ["in", "out"] and figure.lost == "its meter failed (KeyError: 'gone')"


def test_an_interruption_of_a_meter_is_no_failure():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Figure().attempt(interrupted)
