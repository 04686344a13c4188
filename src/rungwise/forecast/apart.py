"""A forecast in a process of its own, for one that is a rank: PyTorch has one process group in a process."""

import contextlib
import pickle
import subprocess
import sys

import torch
from transformers import PreTrainedConfig

from ..settings.fields import Settings
from ..techniques import cpu_matmul
from .peak import Forecast, NoForecast, forecast


def forecast_apart(settings: Settings, config: PreTrainedConfig) -> Forecast:
    """`forecast`, while this process keeps the process group that it has.

    Raises:
        NoForecast: as `forecast`, or the other process could not make one.
    """
    try:
        asked = pickle.dumps((settings, config, cpu_matmul.used(), torch.get_num_threads()))
    except Exception as error:
        # A config may be other people's code.
        raise NoForecast(f"{config.model_type} cannot be handed to another process: {error}") from error
    # Not by multiprocessing, which would run the script again that this process was started with.
    command = [sys.executable, "-m", __name__]
    done = subprocess.run(command, input=asked, capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise NoForecast(f"the process that was to make it ended: {words[-1]}")
    found = pickle.loads(done.stdout)
    if isinstance(found, NoForecast):
        raise found
    return found


def main() -> None:
    """Reads what is asked, and writes the forecast or why there is none."""
    # What models print is no part of the answer.
    with contextlib.redirect_stdout(sys.stderr):
        settings, config, kernels, threads = pickle.load(sys.stdin.buffer)
        # What products take is up to these.
        cpu_matmul.use(kernels)
        torch.set_num_threads(threads)
        try:
            found: Forecast | NoForecast = forecast(settings, config)
        except NoForecast as error:
            found = error
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
