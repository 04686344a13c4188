"""What one forecast costs a fresh process, imports aside: `python tests/forecast/cost.py <flags of ablate.py>`."""

import json
import sys
import time
from unittest import mock

from rungwise.forecast import Forecast, forecast
from rungwise.forecast.tracker import Tracker
from rungwise.metrics.resident import peak_rss_bytes
from rungwise.model.config import load_config
from rungwise.settings.fields import Settings
from rungwise.settings.parse import parse

from transformers import PreTrainedConfig


def counted(settings: Settings, config: PreTrainedConfig) -> tuple[Forecast, dict[str, int]]:
    """A forecast, and how many operators and allocations were seen for it."""
    counts = {"operators": 0, "allocations": 0}
    dispatch, note = Tracker.__torch_dispatch__, Tracker._note

    def see(self, *args):
        counts["operators"] += 1
        return dispatch(self, *args)

    def take(self, number, change, place):
        counts["allocations"] += change > 0
        note(self, number, change, place)

    with mock.patch.object(Tracker, "__torch_dispatch__", see), mock.patch.object(Tracker, "_note", take):
        return forecast(settings, config), counts


def main() -> None:
    """Prints the figures as JSON."""
    settings, errors = parse(sys.argv[1:], {})
    assert errors == []
    config = load_config(settings)
    started = time.process_time()
    found, counts = counted(settings, config)
    seconds = time.process_time() - started
    print(
        json.dumps(
            {"seconds": seconds, "rss": peak_rss_bytes(), "peak_mib": found.peak_mib, "owners": found.owners, **counts}
        )
    )


if __name__ == "__main__":
    main()
