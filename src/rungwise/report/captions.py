"""What a report says of its pictures: a title, and how to read each."""

from typing import NamedTuple

from .forecasts import TITLE as FORECAST


class Caption(NamedTuple):
    """Of one picture."""

    title: str
    reading: str


CAPTIONS = {
    "ladder.png": Caption(
        "Peak memory by owner, and step time",
        "A shorter bar is better; per cent are against the first rung, ≈ is a time that is not told apart from its, "
        "and whiskers go from the 10th to the 90th percentile.",
    ),
    "map.png": Caption(
        "Where each rung stands",
        "Lower left is better; arrows go from rung to rung, and a rung is on the frontier if its step is shorter, by "
        "more than the spreads, than that of every rung on it that takes less memory.",
    ),
    "forecast.png": Caption(
        FORECAST,
        "Of each pair of bars the filled one was measured and the outlined one forecast; the per cent say how far the "
        "forecast is off.",
    ),
    "activations.png": Caption(
        "Activations of one micro-batch, by module",
        "Each part is what the modules of one kind keep for backward, all layers together; behind a bar is its sum.",
    ),
    "loss.png": Caption(
        "Loss",
        "Above, rungs that learn the same lie on one another; below is how far each lies from the one named at the "
        "axis, where a step down the scale is a tenth, and exact zeros are counted in the legend.",
    ),
    "accumulation.png": Caption(
        "What accumulation saves and costs",
        "The solid line is memory (left), the dashed one time (right), each of rungs that differ in nothing else.",
    ),
    "memory_budget.png": Caption(
        "What the compiler's memory budget saves and costs",
        "The solid line is memory (left), the dashed one time (right); dotted are the eager rungs.",
    ),
    "memory_timeline.png": Caption(
        "Memory over one training step",
        "Memory rises in each forward pass and falls in each backward pass, once a micro-batch; a step is as wide as "
        "any other, and the dotted line is the first panel's highest point.",
    ),
    "profile.png": Caption(
        "One profiled step by class",
        "Each part is the time of one class of operators in a step under the profiler, and its share of that step.",
    ),
}
