"""A run's forecast beside its measured memory, as both stand in `result.json`."""

import time
from typing import Any

from torch import distributed
from transformers import PreTrainedConfig

from ..device import device_type
from ..result_file import THIS_RUN
from ..settings.fields import OWN, Settings
from .apart import forecast_apart
from .peak import NoForecast, forecast


def beside_measured(settings: Settings, config: PreTrainedConfig, memory: dict[str, float | None]) -> dict[str, Any]:
    """The forecast of a run that has ended, and how far it is from what was measured.

    Args:
        settings: the run's.
        config: the model's.
        memory: the run's, as in `result.json`.

    Returns:
        The MiB of peak and owners under the names that `memory` has for them, each beside its `_error_percent`:
        100 x (forecast / measured - 1), None where nothing was measured; what it is a forecast `of`, what it has to be
        called (`note`), and how long it took. Where there is none, `peak_allocated_mib` is None; `reason` says why.
    """
    started = time.perf_counter()
    try:
        if settings.origins.get("model_type") == OWN:
            raise NoForecast("the model is the script's own; those that build_model builds are traced")
        found = (forecast_apart if distributed.is_initialized() else forecast)(settings, config)
    except NoForecast as error:
        return {"peak_allocated_mib": None, "reason": str(error)}
    figures = {"peak_allocated": found.peak_mib, **found.owners}
    beside: dict[str, Any] = {}
    for name, size in figures.items():
        beside[f"{name}_mib"] = size
        beside[f"{name}_error_percent"] = _error_percent(size, memory.get(f"{name}_mib"))
    of = _subject(settings, found.device)
    return {**beside, "of": of, "note": found.note, "seconds": time.perf_counter() - started}


def _subject(settings: Settings, device: str) -> str:
    """Which run is traced in the place of one that is compiled, or that an accelerator without a forecast has.

    Of a run of several ranks it is one of them.
    """
    run = "the eager run" if settings.torch_compile else THIS_RUN
    run = f"a rank of {run}" if settings.num_processes > 1 else run
    return run if device_type(settings) == device else f"{run} on a CPU"


def _error_percent(size: float, measured: float | None) -> float | None:
    if size == measured:
        return 0.0
    return 100 * (size / measured - 1) if measured else None
