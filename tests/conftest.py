"""Every test starts without the user's caches, keys and launcher, and with Accelerate's singletons unset."""

import gc
import os
import tempfile
from pathlib import Path

gc.disable()  # nothing that is imported here is garbage
# Before anything of Hugging Face is imported, which reads these once.
_CACHE = tempfile.TemporaryDirectory(prefix="rungwise-tests-")
os.environ["HF_HOME"] = _CACHE.name
os.environ["HF_HUB_OFFLINE"] = "1"
for name in ("WANDB_API_KEY", "WANDB_MODE", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
    os.environ.pop(name)
# In models as small as the tests', threads do little but wait for one another, and where several do, they wait asleep.
# Here and in each process that a test starts, unless the test says otherwise.
os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
# Inductor believes the processor's flags: it would compile a program in each process to see whether they hold.
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
# W&B's own process has as long as it needs on a busy machine.
os.environ |= {"WANDB_INIT_TIMEOUT": "600", "WANDB_X_SERVICE_WAIT": "600"}
# No key of the person who runs the tests is ever used.
os.environ["NETRC"] = str(Path(_CACHE.name) / "netrc")

import rungwise  # noqa: E402, F401, I001 (sets what PyTorch reads when it is imported)
import datasets  # noqa: E402
import hypothesis  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402
from harness import ROOT  # noqa: E402
from rungwise.device import native_precision  # noqa: E402
from rungwise.techniques import product_kernels  # noqa: E402

gc.enable()
gc.freeze()
pytest_plugins = ["selection", "pytester"]
# Times on a busy machine say nothing about an input.
hypothesis.settings.register_profile(
    "rungwise", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("rungwise")

# What is drawn is the same each time; another number draws others.
SEED = int(os.environ.get("RUNGWISE_SEED", "15"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device, and torch finds none"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"drawn from RUNGWISE_SEED={SEED}")


@pytest.fixture(autouse=True)
def _fresh_state(monkeypatch: pytest.MonkeyPatch):
    datasets.disable_progress_bars()
    monkeypatch.chdir(ROOT)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture(autouse=True)
def _kernels_by_instructions(monkeypatch: pytest.MonkeyPatch):
    """What is faster on a busy machine is not to decide how a test comes out."""

    def rates(dtype: torch.dtype) -> dict[str, float]:
        native = {torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype] in native_precision(torch.device("cpu"))
        return {"pytorch": 1.0, "rungwise": 0.5 if native else 2.0}

    monkeypatch.setattr(product_kernels, "measure", rates)


@pytest.fixture
def config(tmp_path: Path):
    """Writes an Accelerate file and returns its path."""

    def write(text: str = "mixed_precision: 'no'\ndistributed_type: 'NO'\n", name: str = "config.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


@pytest.fixture(autouse=True)
def _no_forecasts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """A forecast takes as long as a tiny run: those tests have it that are about it."""
    if "forecast" not in request.path.name:
        monkeypatch.setattr("rungwise.run.reporter.Reporter.forecast", lambda *_: None)
