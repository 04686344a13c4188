"""What must be equal in two environments before their speeds are compared: one rule for ladder, report and run."""

from collections.abc import Mapping
from typing import Any

# These change neither how fast a run is nor what its figures mean, or were measured and come out a little different
# each time. The number of processes is a setting.
INCIDENTAL = ("date", "git_commit", "threads_origin", "local_processes", "kernel_gflops", "matmul_gflops")


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The entries of two environments that differ and matter, each with both of its values.

    Cores are shared among the processes of a machine, so that threads are compared where there are as many processes;
    the kernels of products, where both compute in the same precision.
    """
    apart = {
        name: (before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if name not in INCIDENTAL and before.get(name) != after.get(name)
    }
    if before.get("local_processes") != after.get("local_processes"):
        apart.pop("threads", None)
    if _same_kernels(before.get("matmul_kernels"), after.get("matmul_kernels")):
        apart.pop("matmul_kernels", None)
    return apart


def _same_kernels(before: Mapping[str, str] | None, after: Mapping[str, str] | None) -> bool:
    """Whether no precision is computed by other kernels; what an older result does not say may be anything."""
    if before is None or after is None:
        return not before and not after
    return all(before[precision] == after[precision] for precision in before.keys() & after.keys())


def why_not_comparable(
    before: Mapping[str, Any], after: Mapping[str, Any], places: tuple[str, str] = ("there", "here")
) -> str:
    """The same in words: what it is in the first place and in the second. Empty if the two can be compared."""
    there, here = places
    return "; ".join(
        f"{name} {'are' if name.endswith('s') else 'is'} {_value(a)} {there} and {_value(b)} {here}"
        for name, (a, b) in differences(before, after).items()
    )


def _value(value: Any) -> str:
    return "not recorded" if value is None else str(value)
