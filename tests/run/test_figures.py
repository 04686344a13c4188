"""Every figure of a run's summary against its steps, made-up and real, counted independently, and in its trackers."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rungwise.loop import Step
from rungwise.run.record import Record
from rungwise.run.run import Run
from rungwise.techniques import build_accelerator

import numpy as np
import pytest
from commands import ablate_here
from harness import TINY, tiny_settings, wandb_records
from hypothesis import given
from hypothesis import strategies as st

SETTINGS = tiny_settings()
BOUND = 1e-9


@dataclass
class Case:
    """A run's steps, those that an earlier process took first, and the rows of metrics that were made of them."""

    steps: list[Step]
    rows: list[dict[str, Any]]
    restored: int
    processes: int
    evaluations: list[dict[str, float]] = field(default_factory=list)

    def timed(self, name: str = "perf/step_ms") -> np.ndarray:
        """A metric of this process's timed steps."""
        pairs = list(zip(self.steps, self.rows, strict=True))[self.restored :]
        return np.array([row[name] for step, row in pairs if step.timed and name in row])

    def mean(self, name: str) -> float | None:
        """A rate over all timed steps: each step's, weighted by its time. None where steps have no such rate."""
        rates, ms = self.timed(name), self.timed()
        return float((rates * ms).sum() / ms.sum()) if len(rates) else None

    def percentile(self, q: float) -> float:
        return float(np.percentile(self.timed(), q))


def finite(value: Any) -> Any:
    return value if math.isfinite(value) else None


# Every key of a result's groups of figures, by an independent count. A figure that is in neither fails the test.
EXPECTED = {
    "loss/first": lambda case: finite(case.steps[0].loss),
    "loss/last": lambda case: finite(case.steps[-1].loss),
    "loss/trajectory": lambda case: [finite(step.loss) for step in case.steps],
    "loss/updates": lambda case: [finite(step.loss) for step in case.steps if not step.skipped],
    "loss/eval": lambda case: case.evaluations,
    "throughput/timed_steps": lambda case: len(case.timed()),
    "throughput/tokens": lambda case: sum(step.tokens for step in case.steps[case.restored :] if step.timed),
    "throughput/all_steps_seconds": lambda case: sum(step.seconds for step in case.steps[case.restored :]),
    "throughput/restored_steps": lambda case: case.restored,
    "amp/loss_scale": lambda case: case.steps[-1].loss_scale,
    "amp/skipped_steps": lambda case: sum(step.skipped for step in case.steps),
}
# None unless at least ten steps were timed.
CLAIMED = {
    "throughput/tokens_per_second": lambda case: EXPECTED["throughput/tokens"](case) / case.timed().sum() * 1000,
    "throughput/tokens_per_second_per_device": lambda case: case.mean("perf/tokens_per_second") / case.processes,
    "throughput/model_tflops": lambda case: case.mean("perf/model_tflops"),
    "throughput/utilization": lambda case: case.mean("perf/utilization"),
    "throughput/step_ms_median": lambda case: case.percentile(50),
    "throughput/step_ms_mean": lambda case: case.timed().sum() / len(case.timed()),
    "throughput/step_ms_p10": lambda case: case.percentile(10),
    "throughput/step_ms_p90": lambda case: case.percentile(90),
}
# Of an ordinary step and of the whole run: the run's lies between those of its steps.
BETWEEN = {
    **{name: f"perf/{name}" for name in ("tokens_per_second", "tokens_per_second_per_device", "model_tflops")},
    "utilization": "perf/utilization",
    **{f"step_ms_{name}": "perf/step_ms" for name in ("median", "mean", "p10", "p90")},
}


def hold(result: dict[str, Any], case: Case) -> None:
    """Holds each figure of a result that comes from steps against them."""
    groups = ("loss", "throughput", "amp")
    figures = {f"{group}/{key}": value for group in groups for key, value in result[group].items()}
    reason, claimed = figures.pop("throughput/disturbed"), len(case.timed()) >= 10
    for name, value in figures.items():
        expected = EXPECTED[name](case) if name in EXPECTED else CLAIMED[name](case) if claimed else None
        assert value == (pytest.approx(expected, rel=BOUND) if isinstance(expected, float) else expected), name
    always = {name for name in (*EXPECTED, *CLAIMED) if name.startswith("throughput/")}
    always |= {"loss/first", "loss/last", "loss/trajectory", "loss/updates"} if case.steps else set()
    assert always <= figures.keys()
    if not claimed:
        assert reason is None
        return
    for name, metric in BETWEEN.items():
        steps, value = case.timed(metric), figures[f"throughput/{name}"]
        if value is not None:
            assert steps.min() * (1 - BOUND) <= value <= steps.max() * (1 + BOUND), name
    wide = case.percentile(90) / case.percentile(10) / 2
    skewed = abs(case.timed().mean() / case.percentile(50) - 1) / 0.1
    # Not where it hangs on the last digit.
    if abs(wide - 1) > 1e-6 and abs(skewed - 1) > 1e-6:
        assert bool(reason) == (wide > 1 or skewed > 1), (reason, wide, skewed)


@st.composite
def made_steps(draw: st.DrawFn) -> list[Step]:
    number = st.floats(0.01, 10, allow_subnormal=False)
    fp16, even = draw(st.booleans()), draw(st.booleans())
    step = st.builds(
        Step,
        number=st.just(1),
        loss=number | st.just(math.inf) | st.just(math.nan),
        grad_norm=number,
        learning_rate=number,
        tokens=st.integers(1, 10**6),
        seconds=st.floats(0.9, 1.1) if even else number,
        timed=st.sampled_from([True, True, True, False]),
        loss_scale=st.floats(1, 2**16) if fp16 else st.none(),
        skipped=st.booleans() if fp16 else st.just(False),
        peak_bytes=st.none() | st.integers(1, 2**40),
    )
    count = draw(st.integers(0, 3) | st.integers(12, 30))
    return draw(st.lists(step, min_size=count, max_size=count))


@given(st.data())
def test_every_figure_of_a_summary_is_that_of_its_steps(data):
    steps = data.draw(made_steps())
    restored = data.draw(st.integers(0, len(steps)))
    processes, rows = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 64))
    settings = dataclasses.replace(SETTINGS, num_processes=processes, global_batch_size=rows)
    record = Record(settings, restored_steps=restored, row_flops=data.draw(st.none() | st.integers(1, 10**15)))
    record.matmul_flops_per_second = data.draw(st.floats(1e9, 1e15))
    record.memory, record.compile = {"peak_allocated_mib": 3.5}, {"seconds": 8.5, "cache": "fresh"}
    metrics = [record.add(step) for step in steps]
    tokens = 0
    for number, (step, row) in enumerate(zip(steps, metrics, strict=True), 1):
        tokens += step.tokens
        assert row["train/tokens"] == tokens
        speeds = {name for name in row if name.startswith("perf/")}
        assert bool(speeds) == step.timed
        if step.timed:
            assert row["perf/step_ms"] == pytest.approx(1000 * step.seconds)
            assert row["perf/tokens_per_second"] == pytest.approx(step.tokens / step.seconds)
            # What a product costs was measured by this process, maybe elsewhere.
            assert ("perf/utilization" in row) == (record.row_flops is not None and number > restored)
        if step.timed and record.row_flops:
            assert row["perf/model_tflops"] == pytest.approx(record.row_flops * rows / step.seconds / 1e12)
        if "perf/utilization" in row:
            flops = 1e12 * row["perf/model_tflops"] / processes
            assert row["perf/utilization"] == pytest.approx(flops / record.matmul_flops_per_second)
    result = record.as_dict()
    hold(result, Case(steps, metrics, restored, processes))
    summary = record.summary()
    assert (summary["memory/peak_allocated_mib"], summary["compile/seconds"]) == (3.5, 8.5)
    assert summary == in_summary(result)


def in_summary(result: dict[str, Any]) -> dict[str, Any]:
    """What a tracker's summary has to say, read off result.json."""
    same = ("memory", "forecast", "compile", "amp", "profile")
    names = {"throughput": "perf", **{name: name for name in same}}
    figures = {f"{names[group]}/{key}": value for group in names for key, value in result[group].items()}
    losses = {f"loss/{key}": result["loss"][key] for key in ("first", "last") if key in result["loss"]}
    if held_out := result["loss"].get("eval"):
        losses["loss/held_out"] = held_out[-1]["loss"]
    kept = {"activations/total_mib": result["activations"]["total_mib"]} if result["activations"] else {}
    return {"status": result["status"], "reason": result["reason"], **losses, **figures, **kept}


class Kept:
    """Keeps what a real run gives to its record."""

    def __init__(self, folder: Path, *flags: str):
        self.steps, self.rows, self.restored = [], [], 0
        add = Record.add

        def keep(record: Record, step: Step) -> dict[str, Any]:
            self.steps.append(step)
            self.restored = record.restored_steps
            self.rows.append(add(record, step))
            return self.rows[-1]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Record, "add", keep)
            config = ["--config", "accelerate_configs/fp32.yaml", *TINY, "--report_to", "wandb"]
            self.result = ablate_here(folder, *config, "--max_steps", "14", *flags)
        [self.tracked] = (folder / "wandb").glob("offline-run-*")

    @property
    def case(self) -> Case:
        return Case(self.steps, self.rows, self.restored, 1, self.result["loss"].get("eval", []))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Kept(tmp_path_factory.mktemp("whole"), "--checkpointing_steps", "12", "--eval_steps", "7")


@pytest.fixture(scope="module")
def resumed(tmp_path_factory, whole):
    checkpoint = str(Path(whole.result["settings"]["output_dir"]) / "checkpoint-12")
    flags = ["--resume_from_checkpoint", checkpoint, "--eval_steps", "7", "--max_steps", "16"]
    return Kept(tmp_path_factory.mktemp("resumed"), *flags)


def test_a_real_run_is_that_of_its_steps(whole):
    hold(whole.result, whole.case)
    speed, memory = whole.result["throughput"], whole.result["memory"]
    assert speed["timed_steps"] == 11 and speed["model_tflops"] > 0 and whole.result["loss"]["eval"]
    # 2 layers, 32 wide, 128 words, 32 tokens a row, 16 rows.
    flops = 16 * 3 * (2 * 32 * (12 * 32 * 32 * 2 + 32 * 128) + 4 * 32 * 32 * 32 * 2)
    assert speed["model_tflops"] == pytest.approx(flops / speed["step_ms_mean"] * 1000 / 1e12)
    owners = ("parameters", "gradients", "optimizer_state", "buffers", "activations")
    assert memory["peak_allocated_mib"] == pytest.approx(sum(memory[f"{owner}_mib"] for owner in owners))
    assert memory["peak_allocated_mib"] == max(row.get("memory/peak_allocated_mib", 0) for row in whole.rows)
    assert memory.keys() == {"peak_allocated_mib", "peak_rss_mib", *(f"{owner}_mib" for owner in owners)}


def test_a_process_claims_speed_for_its_own_steps(whole, resumed):
    """12 of the 16 steps were an earlier process's: their losses are the run's, their speed is not."""
    hold(resumed.result, resumed.case)
    speed = resumed.result["throughput"]
    assert (speed["restored_steps"], len(resumed.result["loss"]["trajectory"])) == (12, 16)
    assert speed["timed_steps"] < 10 and speed["tokens_per_second"] is None and speed["utilization"] is None
    assert speed["all_steps_seconds"] < sum(step.seconds for step in resumed.steps)
    assert resumed.result["loss"]["trajectory"][:12] == whole.result["loss"]["trajectory"][:12]


@pytest.mark.parametrize("run", ["whole", "resumed"])
def test_wandbs_summary_is_result_json_key_by_key(run, request):
    """What stands under the name of a figure is the run's, or nothing: W&B keeps no key without a value."""
    kept = request.getfixturevalue(run)
    summary = json.loads(wandb_records(kept.tracked, "--summary"))["summary"]
    expected = {name: value for name, value in in_summary(kept.result).items() if value is not None}
    assert summary.keys() >= {"perf/timed_steps", "memory/peak_allocated_mib", "loss/last", "status"}
    # A table is a file.
    assert summary.pop("activations/by_module")["nrows"] == len(kept.result["activations"]["rows"])
    # Beside the run's figures W&B keeps its own, and the pictures; of a step's nothing is the run's.
    for name in [name for name in summary if name[0] == "_" or name.split("/")[0] == "pictures"]:
        summary.pop(name)
    assert summary.pop("train/tokens") == kept.rows[-1]["train/tokens"]
    assert summary.keys() == expected.keys()
    for name, value in expected.items():
        assert summary[name] == (pytest.approx(value) if isinstance(value, float) else value), name


def test_a_tracker_without_a_summary_has_it_as_a_last_row(tmp_path):
    """Under names of its own, so that it is no point on the curves."""
    settings = dataclasses.replace(SETTINGS, report_to="tensorboard", output_dir=str(tmp_path))
    with Run(settings) as run:
        run.start(build_accelerator(settings))
        for number in range(1, 16):
            run.log(Step(number, 2.0 + number, 1.0, 1e-3, 100 + number, 0.5 + number / 99, True, None, False, 2**20))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / settings.run_name))
    events.Reload()
    last = {name: events.Scalars(name)[-1] for name in events.Tags()["scalars"] if name.startswith("summary/")}
    figures = in_summary(json.loads((tmp_path / "result.json").read_text(encoding="utf-8")))
    numbers = {f"summary/{name}": value for name, value in figures.items() if isinstance(value, int | float)}
    assert "summary/perf/tokens_per_second" in numbers and last.keys() == numbers.keys()
    for name, value in numbers.items():
        assert (last[name].step, last[name].value) == (15, pytest.approx(value, rel=1e-6)), name
    assert len(events.Scalars("train/loss")) == 15
