"""What Accelerate's launcher makes of a ladder's commands, and what a row says if there was no run."""

import os

from rungwise.errors import SettingsError
from rungwise.ladder.ladder import Ladder
from rungwise.ladder.ladder_file import Rung
from rungwise.ladder.processes import last_words
from rungwise.run.configure import check

import pytest
from harness import ENVIRONMENT, HANGS, TINY

FP32 = "accelerate_configs/fp32.yaml"
DEFAULTS = {
    "none": None,
    "several": "distributed_type: MULTI_GPU\nnum_processes: 4\nmixed_precision: fp16\n",
    "sharded": "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\n",
    "machines": "distributed_type: MULTI_GPU\nnum_processes: 4\nnum_machines: 2\nmain_process_ip: 10.0.0.1\n",
    "compiled": "distributed_type: 'NO'\nuse_cpu: true\ndynamo_config: {dynamo_backend: INDUCTOR}\ngpu_ids: '3'\n",
}


@pytest.fixture
def launcher(monkeypatch, config):
    """What Accelerate's launcher makes of a command on a machine with so many GPUs and such a default file."""
    from accelerate.commands import launch
    from accelerate.commands.config import config_args

    def launched(command, gpus, default=None):
        path = config(default, "default.yaml") if default else "no-such-file"
        for module in (launch, config_args):
            monkeypatch.setattr(module, "default_config_file", path)
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
        return launch._validate_launch_command(launch.launch_command_parser().parse_args(command[2:]))[0]

    return launched


@pytest.mark.parametrize("gpus", [0, 1, 6])
@pytest.mark.parametrize("default", DEFAULTS)
def test_a_rung_starts_as_many_processes_as_it_says_on_any_machine(config, launcher, default, gpus):
    """One, if it does not say. What the launcher is told by a machine or a person's default file changes nothing."""
    several = config("distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n", "two.yaml")
    for file, processes in ((FP32, 1), ("accelerate_configs/fp32_cpu.yaml", 1), (several, 2)):
        rung = Rung("a", ("--config", file))
        args = launcher(rung.command(), gpus, DEFAULTS[default])
        assert (args.num_processes, args.num_machines, rung.processes) == (processes, 1, processes)
        assert (args.multi_gpu, args.use_fsdp, args.gpu_ids) == (processes == 2, False, "all")
        assert (args.mixed_precision, args.dynamo_backend) == ("no", "no")
        assert args.use_cpu == (file == "accelerate_configs/fp32_cpu.yaml")


def test_the_readmes_command_and_its_mends_on_six_gpus(launcher):
    """16 rows do not divide by 6: the message says what to type, and the launcher does it."""
    typed = ["accelerate", "launch", "recipes/ablate.py", "--config", "accelerate_configs/bf16.yaml"]
    for gpus, sizes, fewer in ((6, "12 or 18", 4), (32, "32", 16), (3, "15 or 18", 2)):
        assert launcher(typed, gpus).num_processes == gpus
        [problem] = check(typed[3:], environ={"WORLD_SIZE": str(gpus)})[1]
        assert f"; start {fewer} (--num_processes {fewer} before the script's name), or take" in problem
        assert problem.endswith(f"one of the nearest that do: {sizes}")
        assert launcher([*typed[:2], "--num_processes", str(fewer), *typed[2:]], gpus).num_processes == fewer
        assert check(typed[3:], environ={"WORLD_SIZE": str(fewer)})[1] == []
    # What no number of processes remedies.
    [problem] = check([*typed[3:], "--gradient_accumulation_steps", "3"], environ={"WORLD_SIZE": "6"})[1]
    assert problem.endswith("x 6 processes; the nearest that do: 18")
    args = launcher([*typed[:2], "--num_processes", "1", *typed[2:]], 6)
    assert not args.multi_gpu and args.gpu_ids is None


UNLAUNCHABLE = {
    "num_processes: 2\nmixed_precision: 'no'\n": "`distributed_type` must be specified",
    "distributed_type: MULTI_GPU\nnum_processes: 2\ngradient_accumulation_steps: 4\n": "below deepspeed_config",
    "distributed_type: 'NO'\nnum_processes: 2\n": "starts one process for distributed_type NO, not 2",
    "distributed_type: MULTI_CPU\nnum_processes: 2\n": "write MULTI_GPU (on CPUs, too) or FSDP",
    "distributed_type: MULTI_GPU\nnum_processes: 2\nnum_machines: 2\n": "num_machines is 2",
}


@pytest.mark.parametrize("text", UNLAUNCHABLE)
def test_what_the_launcher_would_not_do_is_said_before_anything_is_run(tmp_path, config, text):
    flags = ("--report_to", "none", "--config", config(text))
    with pytest.raises(SettingsError) as caught:
        Ladder("test", [Rung("a", flags)], tmp_path / "l", "group").__enter__()
    [problem] = caught.value.errors
    assert UNLAUNCHABLE[text] in problem and not (tmp_path / "l").exists()


def test_a_file_that_only_the_script_reads_makes_a_rung_of_one(launcher, config):
    """A number of accumulation steps at the top, and no distributed type, are more than the launcher understands."""
    rung = Rung("a", ("--config", config("mixed_precision: bf16\ngradient_accumulation_steps: 4\n")))
    assert rung.launch_errors() == check(rung.arguments, environ={"WORLD_SIZE": "1"})[1] == []
    assert launcher(rung.command(), 6).num_processes == 1


LAUNCHER = """W1130 05:41:02.913000 4242 torch/distributed/elastic/multiprocessing/api.py:1015] Sending process 7
E1130 05:41:02.993000 4242 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 2) local_rank: 1
Traceback (most recent call last):
  File "launch.py", line 1, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
recipes/ablate.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  traceback : {}
============================================================
"""
SAID = {
    "1 problem with this call:\n  - --train_file a.txt: no such file\n": "--train_file a.txt: no such file",
    "step 1\n" + LAUNCHER.format("rank 1: 2 problems with this call:\n    - one; is\n    - two"): "one; is; two",
    "Traceback ...\nImportError: no torch\n"
    + LAUNCHER.format("To enable traceback see: ..."): "ImportError: no torch",
    LAUNCHER.format("Signal 11 (SIGSEGV) received by PID 7"): "Signal 11 (SIGSEGV) received by PID 7",
    "Traceback ...\nValueError: a.yaml had unknown keys\n": "ValueError: a.yaml had unknown keys",
    "": "it printed nothing",
}


@pytest.mark.parametrize("log", SAID)
def test_the_last_words_of_a_rung_are_its_own(log):
    assert last_words(log) == SAID[log]


ONE_IS_REFUSED = f"""
import os, time
if os.environ.get("RANK") == "1":
    from rungwise.data import opened
    opened.open_data = lambda *_: (opened.OpenedData(), ["--train_file book.txt: no such file"])
elif "RANK" in os.environ:
    from rungwise.run import run
    run.Run.__enter__ = lambda run: time.sleep({HANGS})
"""


def test_one_rank_of_a_real_rung_that_is_refused_says_why_in_the_row(tmp_path, monkeypatch):
    """A file may be missing on one machine alone. The main process is ended before it has a result to write."""
    (tmp_path / "sitecustomize.py").write_text(ONE_IS_REFUSED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]]))
    flags = ("--config", "accelerate_configs/ddp_cpu.yaml", *TINY, "--run_name", "a")
    with Ladder("test", [Rung("a", flags)], tmp_path / "l", "group") as ladder:
        [(_, row)] = ladder.run(1)
    assert row["status"] == "failed" and "--train_file book.txt: no such file" in row["reason"], row["reason"]
