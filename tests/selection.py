"""Which tests a run takes and in what order: all that `make quick`, `make test` and `make test-all` differ in."""

import random
from collections import defaultdict
from typing import Any

import pytest

# Seconds that the longest files take. They come first, so that no worker is left with one at the end.
SECONDS: dict[str, int] = {
    "ladder/test_ladder_command.py": 70,
    "recipes/test_launch.py": 70,
    "run/test_faults.py": 65,
    "recipes/test_commands.py": 60,
    "techniques/test_torch_compile.py": 60,
    "techniques/test_distributed.py": 45,
    "forecast/test_sharded.py": 45,
    "forecast/test_extension.py": 45,
    "recipes/test_malformed.py": 32,
    "families/test_families.py": 30,
    "trainer/test_callback.py": 25,
    "bench/test_engines.py": 25,
    "forecast/test_grid.py": 25,
    "test_secrets.py": 22,
    "run/test_faults_wandb.py": 20,
    "forecast/test_cuda.py": 20,
    "metrics/test_activations.py": 20,
    "fit/test_fit.py": 18,
    "report/test_legible.py": 17,
    "trainer/test_rung.py": 17,
    "metrics/test_step_profile.py": 15,
    "run/test_faults_training.py": 15,
    "techniques/test_optimizer.py": 14,
    "run/test_faults_disk.py": 12,
    "recipes/test_adapt.py": 11,
    "trainer/test_ranks.py": 10,
    "run/test_resuming.py": 10,
    "techniques/test_linear_cross_entropy.py": 10,
}
# `make quick` leaves out what starts processes, what compiles, and what trains for longest: a file, or tests of one.
NOT_QUICK: tuple[str, ...] = (
    "bench/test_bench_command.py",
    "bench/test_engines.py",
    "data/test_evaluation.py",
    "families/test_families.py",
    "families/test_workers.py",
    "fit/test_fit.py",
    "forecast/test_cost.py",
    "forecast/test_cuda.py",
    "forecast/test_extension.py",
    "forecast/test_grid.py",
    "forecast/test_sharded.py",
    "ladder/test_damaged_ladder.py",
    "ladder/test_ladder_command.py",
    "ladder/test_launcher.py",
    "metrics/test_activations.py",
    "metrics/test_memory.py",
    "metrics/test_step_profile.py",
    "recipes/test_adapt.py",
    "recipes/test_commands.py",
    "recipes/test_fsdp_memory.py",
    "recipes/test_launch.py",
    "recipes/test_malformed.py",
    "run/test_checkpoint.py",
    "run/test_ends.py",
    "run/test_faults.py",
    "run/test_faults_disk.py",
    "run/test_faults_training.py",
    "run/test_faults_wandb.py",
    "run/test_figures.py",
    "run/test_forecast.py",
    "run/test_resuming.py",
    "settings/test_light.py",
    "techniques/test_cpu_matmul.py",
    "techniques/test_distributed.py",
    "techniques/test_linear_cross_entropy.py",
    "techniques/test_lora.py",
    "techniques/test_optimizer.py",
    "techniques/test_torch_compile.py",
    "test_devices.py",
    "test_imports.py",
    "test_secrets.py",
    "test_threads.py",
    "tracking/test_tracking.py",
    "trainer/test_callback.py",
    "trainer/test_ranks.py",
    "trainer/test_rung.py",
    "trainer/test_trl.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--quick", action="store_true", help="one case of each breadth, and nothing that takes long")
    group.addoption("--all", action="store_true", dest="whole", help="every case of each breadth, not a sample")
    group.addoption("--sample", type=int, metavar="SEED", help="the sample that an earlier run took, by its seed")


def pytest_configure(config: pytest.Config) -> None:
    # A worker of pytest-xdist takes the sample of the process that started it.
    if hasattr(config, "workerinput"):
        config.option.sample = config.workerinput["sample"]
    if config.option.sample is None:
        config.option.sample = random.SystemRandom().randrange(10**6)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["sample"] = node.config.option.sample


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    breadths = defaultdict(list)
    for item in items:
        if marker := item.get_closest_marker("breadth"):
            kind = marker.kwargs.get("of", _name(item))
            breadths[kind, 1 if config.option.quick else marker.args[0]].append(item)
    left_out = {item for item in items if config.option.quick and _covers(NOT_QUICK, item)}
    named = any("[" in argument for argument in config.args)
    if not (config.option.whole or named):
        for (name, kept), cases in breadths.items():
            chosen = random.Random(f"{config.option.sample} {name}").sample(cases, min(kept, len(cases)))
            left_out |= set(cases) - set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = sorted((item for item in items if item not in left_out), key=lambda item: -SECONDS.get(_file(item), 0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.option.whole:
        again = f"--sample {config.option.sample} takes it again, --all takes every case"
        terminalreporter.write_line(f"Of tests marked breadth a sample: {again}.")


def taken(request: pytest.FixtureRequest, test: str) -> list[dict[str, Any]]:
    """The parameters of each case of a test that this run takes and does not skip: for what is made once for all."""
    items = [item for item in request.session.items if item.originalname == test]
    return [
        item.callspec.params for item in items if not any(mark.args[0] for mark in item.iter_markers(name="skipif"))
    ]


def _file(item: pytest.Item) -> str:
    """Its file below tests/."""
    return item.nodeid.partition("::")[0].removeprefix("tests/")


def _name(item: pytest.Item) -> str:
    """Its file and function, without the case."""
    return item.nodeid.removeprefix("tests/").partition("[")[0]


def _covers(names: tuple[str, ...], item: pytest.Item) -> bool:
    return any(name in (_file(item), _name(item)) for name in names)
