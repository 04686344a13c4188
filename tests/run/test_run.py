"""Whatever happens in a run: status, reason, exit code and files."""

import dataclasses
import json
import os
import pkgutil
import signal
import subprocess
import sys
from pathlib import Path

from rungwise.errors import SettingsError
from rungwise.loop import Diverged, Step
from rungwise.run.configure import configure
from rungwise.run.console import Progress, settings_block, summary_block
from rungwise.run.record import Record
from rungwise.run.run import Run
from rungwise.techniques import build_accelerator
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique
from rungwise.tracking import wandb_run

import pytest
import torch
import wandb
from harness import ENVIRONMENT, ROOT, TINY, packages, tiny_settings


@pytest.fixture
def settings(tmp_path):
    return tiny_settings("--max_steps", "4", "--output_dir", str(tmp_path / "run"))


def result_of(settings):
    return json.loads((Path(settings.output_dir) / "result.json").read_text(encoding="utf-8"))


def step(number=1, **changes):
    values = {
        "number": number,
        "loss": 2.0,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
        "tokens": 100,
        "seconds": 0.5,
        "timed": True,
        "loss_scale": None,
        "skipped": False,
        "peak_bytes": None,
    }
    return Step(**{**values, **changes})


ENDS = [
    (SettingsError(["no"]), "failed", "1 problem with this call", 2),
    (Diverged("the loss of step 3 is nan"), "diverged", "the loss of step 3 is nan", 1),
    (UnavailableTechnique("not with this model"), "skipped", "not with this model", 1),
    (InactiveTechnique("no graph was compiled"), "failed", "InactiveTechnique: no graph was compiled", 1),
    (MemoryError(), "out_of_memory", "out of memory before step 1", 1),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "out_of_memory", "Tried to allocate", 1),
    (
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9"),
        "out_of_memory",
        "add --g",
        1,
    ),
    (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero", 1),
    (KeyboardInterrupt(), "failed", "interrupted after 0 steps", 130),
]


@pytest.mark.parametrize("error, status, reason, code", ENDS, ids=[type(end[0]).__name__ for end in ENDS])
@pytest.mark.parametrize("started", [True, False])
def test_every_end_has_its_status_reason_and_code(settings, capsys, error, status, reason, code, started):
    with Run(settings) as run:
        if started:
            run.start(build_accelerator(settings))
        raise error
    result = result_of(settings)
    assert (result["status"], run.exit_code) == (status, code)
    assert reason in result["reason"]
    output = capsys.readouterr()
    assert f"fp32: {status} - " in output.out
    # A traceback is for faults that nobody foresaw.
    assert ("Traceback" in output.err) == (status == "failed" and code == 1)


def test_a_real_allocation_that_fails_is_out_of_memory(settings):
    with Run(settings) as run:
        run.start(build_accelerator(settings))
        torch.empty(2**60)
    assert result_of(settings)["status"] == "out_of_memory"
    assert run.exit_code == 1


POINTS = {
    "the record": "rungwise.run.record.Record.add",
    "the file": "rungwise.run.files.plain",
    "the tracker": "rungwise.tracking.Tracker.log",
    "the terminal": "rungwise.run.console.Progress.show",
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("point", POINTS)
def test_a_signal_never_tears_a_step(settings, monkeypatch, point, number):
    """Wherever in the keeping of a step it arrives, the step then stands in every place."""
    target = POINTS[point]
    owner, name = target.rsplit(".", 1)
    original = pkgutil.resolve_name(target)

    def interrupted(*args, **kwargs):
        os.kill(os.getpid(), number)
        return original(*args, **kwargs)

    with Run(settings) as run:
        run.start(build_accelerator(settings))
        run.log(step(2))
        monkeypatch.setattr(pkgutil.resolve_name(owner), name, interrupted)
        run.log(step(3))
        run.log(step(4))
    assert run.exit_code == 128 + number
    assert len(result_of(settings)["loss"]["trajectory"]) == 2
    assert (Path(settings.output_dir) / "metrics.jsonl").read_text().count("\n") == 2


def test_sigterm_ends_the_run_in_order(settings):
    before = signal.getsignal(signal.SIGTERM)
    with Run(settings) as run:
        os.kill(os.getpid(), signal.SIGTERM)
    assert (run.exit_code, result_of(settings)["reason"]) == (143, "terminated after 0 steps")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_killed_process_leaves_a_failed_row(settings):
    run = Run(settings)
    run.__enter__()
    result = result_of(settings)
    assert result["status"] == "failed" and "killed" in result["reason"]
    assert result["settings"]["seed"] == 0 and result["schema"] == 1


def test_all_fp16_steps_skipped_is_no_success(settings):
    with Run(settings) as run:
        run.record.steps = [step(loss_scale=2.0, skipped=True)] * 3
    assert run.exit_code == 1
    assert result_of(settings)["status"] == "diverged"


def test_a_run_that_learnt_from_no_token_names_the_labels(settings, capsys):
    with Run(settings) as run:
        run.start(build_accelerator(settings))
        for number in (1, 2, 3):
            run.log(step(number, tokens=0, skipped=True, loss=float("nan"), timed=False))
    result = result_of(settings)
    assert (result["status"], run.exit_code) == ("failed", 1)
    assert result["reason"].startswith("no token of 3 steps carries a loss: every label is -100; check the labels")
    assert result["loss"]["trajectory"] == [None] * 3 and result["loss"]["updates"] == []
    # Said of each, whatever the number of lines that progress gets.
    assert capsys.readouterr().err.count("(skipped: no token in its window carries a loss)") == 3


def test_a_window_without_a_loss_shows_in_every_place(settings, capsys):
    with Run(settings) as run:
        run.start(build_accelerator(settings))
        for number in (1, 2, 3, 4):
            empty = {"tokens": 0, "skipped": True, "loss": float("nan")} if number in (1, 4) else {}
            run.log(step(number, loss_scale=8.0, timed=False, **empty))
    result, output = result_of(settings), capsys.readouterr()
    assert result["status"] == "ok" and result["loss"]["empty_windows"] == 2
    # The first and the last loss are those of windows that have one; fp16 has skipped nothing.
    assert result["loss"]["trajectory"] == [None, 2.0, 2.0, None]
    assert (result["loss"]["first"], result["loss"]["last"]) == (2.0, 2.0)
    assert result["amp"]["skipped_steps"] == 0
    assert "2 steps skipped: no token in their windows carries a loss" in output.out
    rows = [json.loads(line) for line in (Path(settings.output_dir) / "metrics.jsonl").read_text().splitlines()]
    assert [row["train/empty_windows"] for row in rows] == [1, 1, 1, 2]
    bar = Terminal(isatty=True)
    Progress(4, bar).show(step(tokens=0, skipped=True, loss=float("nan")))
    assert "no token in its window carries a loss" in bar.text


def test_bad_calls_exit_with_2_and_leave_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("mixed_precision: bf61\n")
    (tmp_path / "empty.txt").write_text("")
    flags = ["--config", "bad.yaml", "--max_steps", "3", "--block_size", "300", "--train_file", "empty.txt"]
    with pytest.raises(SystemExit) as caught:
        configure(flags)
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "4 problems with this call:"
    for line, words in zip(lines[1:], ["bf61", "no step to time", "256 positions", "empty"], strict=True):
        assert words in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "empty.txt"]


def test_a_flag_that_cannot_be_read_is_answered_at_once(tmp_path, monkeypatch, capsys):
    """With all that can be told of the flags and the config, and a word that there may be more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text("mixed_precision: bf61\n")
    monkeypatch.setattr("rungwise.run.configure.check", lambda *_, **__: pytest.fail("PyTorch was loaded"))
    with pytest.raises(SystemExit) as caught:
        configure(["--config", "bad.yaml", "--max_step", "3", "--block_size", "300"])
    assert caught.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "2 problems with this call:" and "--max_step 3" in lines[1] and "bf61" in lines[2]
    assert lines[3] == "(the model and the data are looked at when the flags are right)"


@pytest.mark.parametrize(
    "words, code", [(["--help"], 0), (["--config", "accelerate_configs/bf16.yaml", "--max_step", "3"], 2)]
)
def test_the_recipe_answers_before_pytorch_is_loaded(words, code):
    """Nor anything else, but the standard library and what reads YAML."""
    script = "import json, sys; before = set(sys.modules); sys.argv[0] = 'ablate.py'; import ablate\n"
    script += "try:\n    ablate.main()\nexcept SystemExit as end:\n    code = end.code or 0\n"
    script += "print(json.dumps([code, sorted(sys.modules.keys() - before)]), file=sys.stderr)"
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([ENVIRONMENT["PYTHONPATH"], str(ROOT / "recipes")])}
    done = subprocess.run(
        [sys.executable, "-c", script, *words], env=environment, capture_output=True, text=True, cwd=ROOT
    )
    found, loaded = json.loads(done.stderr.splitlines()[-1])
    assert found == code and packages(loaded) == {"yaml"}, done.stderr


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_tracker_that_is_not_installed(name, capsys, monkeypatch):
    monkeypatch.setattr("rungwise.tracking.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit):
        configure(["--config", "accelerate_configs/fp32.yaml", *TINY, "--report_to", name])
    assert f"pip install 'rungwise[{name}]'" in capsys.readouterr().err


def test_a_key_that_is_no_key_means_offline(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "abc")
    # Its client keeps how it was first used in a process, maybe offline by another test.
    wandb.teardown()
    mode, why = wandb_run._wandb_mode()
    assert mode == "offline" and "the key is not usable" in why


def test_tensorboard_through_the_same_interface(settings):
    settings = dataclasses.replace(settings, report_to="tensorboard")
    with Run(settings) as run:
        run.start(build_accelerator(settings))
        run.reporter.tracker.log({"train/loss": 2.0}, step=1)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(Path(settings.output_dir) / settings.run_name))
    events.Reload()
    assert [event.value for event in events.Scalars("train/loss")] == [2.0]
    assert "memory/peak_rss_mib" in "".join(events.Tags()["scalars"])


def test_another_ranks_reason_reaches_the_result(settings, monkeypatch, capsys):
    with Run(settings) as main:
        monkeypatch.setenv("RANK", "1")
        with Run(settings) as other:
            raise ZeroDivisionError("on the other card")
        monkeypatch.setenv("RANK", "0")
        os.kill(os.getpid(), signal.SIGTERM)
    assert (main.exit_code, other.exit_code) == (143, 1)
    assert result_of(settings)["reason"] == "rank 1: ZeroDivisionError: on the other card"
    assert "Traceback" in capsys.readouterr().err


def test_a_reason_is_written_on_behalf_of_a_main_process_that_does_not_come_to_it(settings, monkeypatch):
    """And never over what the main process itself has written."""
    settings = dataclasses.replace(settings, num_processes=2)
    main = Run(settings)
    main.__enter__()
    monkeypatch.setenv("RANK", "1")
    with Run(settings):
        raise ZeroDivisionError("on the other card")
    # The main process may be killed at any moment from here on.
    assert result_of(settings)["reason"] == "rank 1: ZeroDivisionError: on the other card"
    monkeypatch.setenv("RANK", "0")
    main.__exit__(ValueError, ValueError("its own reason"), None)
    assert result_of(settings)["reason"] == "ValueError: its own reason"
    monkeypatch.setenv("RANK", "1")
    with Run(settings):
        raise ZeroDivisionError("again")
    assert result_of(settings)["reason"] == "ValueError: its own reason"


@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_rank_that_its_launcher_ends_says_why_that_may_be(settings, monkeypatch, rank):
    """The other rank may have been killed, the main process too: then this one speaks for it."""
    settings = dataclasses.replace(settings, num_processes=2)
    Run(settings).__enter__().signals.__exit__()
    monkeypatch.setenv("RANK", rank)
    with Run(settings):
        os.kill(os.getpid(), signal.SIGTERM)
    reason = result_of(settings)["reason"]
    assert reason.startswith("terminated after 0 steps" if rank == "0" else "rank 1: terminated after 0 steps")
    assert "another rank ended without a word" in reason


def test_the_sum_of_all_processes_stands_beside_the_largest():
    memory = dict.fromkeys(("parameters", "gradients", "optimizer_state", "buffers", "activations"), 1.0)
    memory = {f"{owner}_mib": size for owner, size in memory.items()}
    result = Record(tiny_settings(), status="ok").as_dict()
    result["memory"] = memory | {"peak_allocated_mib": 5.0}
    assert "in all of them" not in summary_block(result, [])
    result["memory"]["peak_allocated_sum_mib"] = 9.0
    assert "of the largest process; 9.0 MiB in all of them" in summary_block(result, [])


def test_the_summary_says_where_a_step_went_or_why_nobody_knows():
    result = Record(tiny_settings(), status="ok").as_dict()
    spent = {"products": 50.4, "attention": 20.0, "fused": 0.0, "loss": 15.0, "normalisation": 0.3, "activation": 2.0}
    spent |= {"optimizer": 6.3, "data": 0.0, "rest": 6.0}
    result["profile"] = {f"{name}_ms": ms for name, ms in {"step": 100.0, **spent}.items()}
    # One line or two, as it fits.
    text = " ".join(summary_block(result, []).split())
    assert "of an untimed step: products 50%, attention 20%, loss 15%, optimizer 6%, activation 2%, rest 6%" in text
    result["profile"] |= {"fused_ms": 40.0, "products_ms": 10.4, "data_ms": 2.0}
    lines = summary_block(result, []).splitlines()
    [start] = [n for n, line in enumerate(lines) if line.startswith("  profile ")]
    assert lines[start].startswith("  profile      of an untimed step: fused by the compiler 40%, attention 20%, ")
    assert max(map(len, lines[start : start + 2])) <= 100 and lines[start + 1].endswith("rest 6%")
    result["profile"] = {"step_ms": None, "reason": "why"}
    assert "  profile      not known: why" in summary_block(result, [])
    result["status"] = "failed"
    assert "profile  " not in summary_block(result, [])


def test_metrics_by_name():
    record = Record(tiny_settings(num_processes=2, global_batch_size=8), row_flops=10**9, matmul_flops_per_second=16e9)
    assert "perf/step_ms" not in record.add(step(timed=False))
    row = record.add(step(2, loss_scale=8.0, skipped=True, peak_bytes=3 * 2**20, grad_norm=float("inf")))
    assert row == {
        "train/loss": 2.0,
        "train/grad_norm": float("inf"),
        "train/learning_rate": 1e-3,
        "train/tokens": 200,
        "perf/step_ms": 500.0,
        "perf/tokens_per_second": 200.0,
        "perf/tokens_per_second_per_device": 100.0,
        "perf/model_tflops": pytest.approx(8e9 / 0.5 / 1e12),
        "perf/utilization": pytest.approx(8e9 / 0.5 / 2 / 16e9),
        "memory/peak_allocated_mib": 3.0,
        "amp/loss_scale": 8.0,
        "amp/skipped_steps": 1,
    }


def test_a_result_is_strict_json(tmp_path):
    record = Record(tiny_settings())
    record.add(step(loss=float("nan"), grad_norm=float("inf")))
    record.memory = {"peak_allocated_mib": None}
    record.write(tmp_path)

    def refuse(name):
        raise AssertionError(name)

    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert result["loss"]["first"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_what_the_compiler_does_shows_at_each_step():
    """A model that compiles again and again is a rising curve."""
    record = Record(tiny_settings())
    assert "compile/seconds" not in record.add(step(1))
    record.compile = {"seconds": 8.5, "graphs": 1, "recompiles": 0, "cache": "fresh", "recompile_reasons": []}
    row = record.add(step(2))
    assert {key: row[key] for key in row if key.startswith("compile/")} == {
        "compile/seconds": 8.5,
        "compile/graphs": 1,
        "compile/recompiles": 0,
    }


def test_the_settings_block_names_every_setting_and_its_origin():
    settings = tiny_settings("--seed", "3", config="accelerate_configs/bf16_accum4.yaml")
    environment = {"device_name": "a CPU", "device": "cpu", "threads": 2, "torch": "2", "matmul_kernels": {}}
    environment["matmul_gflops"] = {"fp32": 300.0, "bf16": 600.0}
    text = settings_block(settings, environment)
    assert all(name in text for name in settings.as_dict())
    row = next(line for line in text.splitlines() if line.split()[0] == "gradient_accumulation_steps")
    assert row.split() == ["gradient_accumulation_steps", "4", "accelerate_configs/bf16_accum4.yaml"]
    assert max(len(line) for line in text.splitlines()) <= 120


class Terminal:
    """A stream that says whether it is a terminal and keeps what it is given."""

    def __init__(self, isatty):
        self.text, self._isatty = "", isatty

    def isatty(self):
        return self._isatty

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_is_lines_in_a_file_and_a_bar_on_a_terminal():
    for isatty in (False, True):
        stream = Terminal(isatty)
        progress = Progress(200, stream)
        for number in range(1, 201):
            progress.show(step(number, timed=number > 3, skipped=number == 20))
        progress.close()
        if isatty:
            assert "\r" in stream.text and "200/200" in stream.text
        else:
            lines = stream.text.splitlines()
            assert len(lines) == 11 and "\r" not in stream.text
            assert lines[0] == "step   1/200  loss 2.0000  500 ms  (not timed)"
            assert lines[1].endswith("(skipped: fp16 overflow)")
