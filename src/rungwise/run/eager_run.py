"""A compiled run beside a finished eager one: after how many steps compiling has paid for itself."""

from pathlib import Path
from typing import Any

from ..report.rung_result import RungResult, break_even, differing
from ..result_file import read_result
from ..settings.fields import Settings


def validate(settings: Settings) -> list[str]:
    """Why the eager run that was named cannot be compared with."""
    if not settings.eager_run:
        return []
    eager = read_result(Path(settings.eager_run))
    if eager is None:
        return [f"--eager_run {settings.eager_run}: no result.json there; give the folder of a finished run"]
    if eager["status"] != "ok":
        return [f"--eager_run {settings.eager_run}: that run is {eager['status']}; give one that is ok"]
    if eager["settings"].get("torch_compile"):
        return [f"--eager_run {settings.eager_run}: that run was compiled; give one without --torch_compile"]
    own = settings.as_dict() | {"max_steps": eager["settings"].get("max_steps")}
    others = differing(own, eager["settings"], "torch_compile") - {"torch_compile"}
    return [
        f"--eager_run {settings.eager_run}: {name} is {eager['settings'].get(name)} there and {own.get(name)} here; "
        "compare runs that differ in compiling alone"
        for name in sorted(others)
    ]


def compare(compiled: dict[str, Any], folder: str) -> dict[str, Any]:
    """Holds a compiled run's result against the eager run in a folder, if both ran in one environment.

    Returns:
        `against` (its name), `steps` (None where there is no such step) and `verdict` (the same in words).
    """
    eager = read_result(Path(folder))
    attention = [result["evidence"].get("attn_implementation") for result in (eager, compiled)]
    if attention[0] != attention[1]:
        verdict = f"not known: attn_implementation is {attention[0] or 'not recorded'} there and {attention[1]} here"
        return {"against": eager["name"], "steps": None, "verdict": verdict}
    speeds = [RungResult("", [result], []).step_ms for result in (eager, compiled)]
    steps, verdict = break_even(compiled["compile"]["seconds"], *speeds)
    return {"against": eager["name"], "steps": steps, "verdict": verdict}
