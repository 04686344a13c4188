"""More than one process by the commands of the shipped files: on one machine, on two, and when one of them dies."""

import functools
import os
import signal
import subprocess
from pathlib import Path

import pytest
import yaml
from commands import (
    ALL_CORES,
    LAUNCH,
    TINY,
    ablate_here,
    clone,
    result_of,
    run,
    running,
    trainers,
    wait_for_steps,
)
from fake_slurm import sbatch
from harness import HANGS, ROOT
from needs import RANKS
from transformers import AutoModelForCausalLM
from two_machines import INTERFACE, two_machines, why_not

QUIET = ["--report_to", "none", "--untimed_steps", "2"]
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
# Its forecast takes as long as a rank.
FORECAST = "fsdp2_cpu"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return clone(tmp_path_factory.mktemp("launched"))


def command_of(config):
    """The launch command in the first comment lines of a shipped file."""
    text = (ROOT / config).read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if line.startswith("#   accelerate launch")]
    return line.removeprefix("#   ").split()


def by_its_own_command(config):
    """That command, at a port that is free: at the usual one, two launches at a time would meet."""
    return [*LAUNCH, "--main_process_port", "0", *command_of(config)[2:]]


@pytest.fixture(scope="module")
def launched(home):
    """The result of a file for several processes of one machine, launched by its own command when it is asked for."""

    @functools.cache
    def result(name):
        command = by_its_own_command(f"accelerate_configs/{name}.yaml")
        flags = [*TINY, *QUIET, "--output_dir", f"runs/{name}", "--save_model"]
        flags += ["--forecast", str(name == FORECAST).lower()]
        done = run(home, *command, *flags, environment=ON_CPU)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr
        return result_of(home, name)

    return result


# What GPUs take, in bf16, of which one each time; and on CPUs.
FOR_GPUS = [("ddp", "DDP"), ("fsdp2", "FSDP2")]


@pytest.mark.breadth(1, of="files for GPUs")
@pytest.mark.parametrize("name, engine", FOR_GPUS)
def test_each_file_for_gpus_by_its_own_command(launched, name, engine):
    is_as_asked_for(launched(name), engine, "bfloat16")
    fp32 = launched(f"{name}_cpu")["loss"]["trajectory"]
    assert launched(name)["loss"]["trajectory"] == pytest.approx(fp32, abs=2.0**-7)


@pytest.mark.parametrize("name, engine", [("ddp_cpu", "DDP"), ("fsdp2_cpu", "FSDP2")])
def test_each_file_by_its_own_command(launched, name, engine):
    is_as_asked_for(launched(name), engine, "float32")


def is_as_asked_for(result, engine, dtype):
    assert result["status"] == "ok"
    assert result["evidence"]["engine"] == engine and result["evidence"]["processes"] == 2
    assert result["evidence"]["compute_dtype"] == dtype
    # The global batch stays what it is; tokens are those of both.
    assert (result["settings"]["global_batch_size"], result["settings"]["micro_batch_size"]) == (16, 8)
    assert result["throughput"]["tokens"] == 12 * 16 * 31


def test_sharding_halves_what_it_shards(launched):
    ddp, fsdp = launched("ddp_cpu")["memory"], launched("fsdp2_cpu")["memory"]
    for owner in ("parameters", "gradients", "optimizer_state"):
        assert fsdp[f"{owner}_mib"] == pytest.approx(ddp[f"{owner}_mib"] / 2, rel=0.05), owner
    assert fsdp["peak_allocated_mib"] < ddp["peak_allocated_mib"]
    for memory in (ddp, fsdp):
        total = memory["peak_allocated_sum_mib"]
        assert memory["peak_allocated_mib"] < total <= 2 * memory["peak_allocated_mib"]


@RANKS
def test_a_run_has_the_forecast_of_its_ranks(launched):
    """Models of 30,000 parameters: a few KiB that only a run has count."""
    found, memory = launched(FORECAST)["forecast"], launched(FORECAST)["memory"]
    assert found["of"] == "a rank of this run"
    assert abs(found["peak_allocated_error_percent"]) < 2
    for owner in ("parameters", "gradients", "optimizer_state"):
        assert found[f"{owner}_mib"] == memory[f"{owner}_mib"], owner


@pytest.mark.parametrize(
    "ddp, fsdp, bound",
    [
        ("ddp_cpu", "fsdp2_cpu", 1e-5),
        pytest.param("ddp", "fsdp2", 2.0**-7, marks=pytest.mark.breadth(1, of="files for GPUs")),
    ],
)
def test_sharded_losses_are_those_of_ddp(launched, ddp, fsdp, bound):
    trajectories = [launched(name)["loss"]["trajectory"] for name in (ddp, fsdp)]
    assert trajectories[1] == pytest.approx(trajectories[0], abs=bound)


def test_a_process_of_two_keeps_what_one_does_with_half_the_rows(launched, tmp_path):
    """Gathered parameters are no activations."""
    flags = ["--config", "accelerate_configs/fp32_cpu.yaml", *TINY, *QUIET, "--global_batch_size", "8"]
    alone = ablate_here(tmp_path, *flags)
    for name in ("ddp_cpu", "fsdp2_cpu"):
        assert launched(name)["activations"] == alone["activations"], name


@pytest.mark.parametrize("name", ["ddp_cpu", "fsdp2_cpu"])
def test_the_saved_model_is_an_ordinary_one(launched, home, name):
    launched(name)
    folder = home / "runs" / name / "model"
    model, found = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(found.values()), found
    assert type(model).__name__ == model.config.architectures[0] == "GPT2LMHeadModel"
    assert model.lm_head.weight is model.transformer.wte.weight


def test_processes_that_were_asked_for_and_did_not_come(home):
    """FSDP by a launcher that was not given the file."""
    config = "accelerate_configs/fsdp2_cpu.yaml"
    done = run(home, *LAUNCH, "--quiet", "recipes/ablate.py", "--config", config, *TINY, *QUIET)
    assert done.returncode != 0
    assert "num_processes: 2, but 1 started" in done.stderr and "asks for FSDP" in done.stderr


def start_two(home, name):
    command = [*by_its_own_command("accelerate_configs/ddp_cpu.yaml"), *TINY[:-1], "100000", *QUIET]
    log = (home / f"{name}.log").open("w")
    process = subprocess.Popen(
        [*command, "--output_dir", f"runs/{name}"],
        cwd=home,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=os.environ | ON_CPU,
    )
    wait_for_steps(process, home / "runs" / name / "metrics.jsonl", 3)
    return process, trainers(process)


@pytest.mark.breadth(1)
@pytest.mark.parametrize("rank, reason", [(1, "another rank ended without a word"), (0, "rank 1: ")])
def test_a_rank_that_is_killed_ends_the_run(home, rank, reason):
    name = f"killed-{rank}"
    process, ranks = start_two(home, name)
    assert set(ranks) == {0, 1}
    ranks[rank].send_signal(signal.SIGKILL)
    process.wait(timeout=HANGS)
    assert process.returncode != 0
    result = result_of(home, name)
    assert result["status"] == "failed" and reason in result["reason"]
    # The other has ended by itself: the launcher would have killed it half a minute later, and said so.
    said = (home / f"{name}.log").read_text(encoding="utf-8")
    assert "forcefully exiting" not in said, said
    assert running(ranks.values()) == []


MULTI_NODE, DDP = "accelerate_configs/multi_node.yaml", "accelerate_configs/ddp.yaml"


@pytest.fixture
def one_host(launched):
    """Losses of two ranks on one host, for those of two machines: by a file that asks for the same."""
    asked, same = (yaml.safe_load(Path(path).read_text(encoding="utf-8")) for path in (MULTI_NODE, DDP))
    assert asked == same
    return launched("ddp")["loss"]["trajectory"]


@pytest.mark.breadth(1, of="two machines")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_two_machines_by_the_command_of_the_file(home, one_host, tmp_path):
    """One of the machines does not know its own name, as many do not: gloo is told the interface."""
    text = " ".join(command_of(MULTI_NODE)[1:])
    logs = [tmp_path / f"{rank}.log" for rank in range(2)]
    with two_machines(resolve=False) as pair:
        processes = []
        for rank, machine in enumerate(pair):
            words = text.replace("--machine_rank 0", f"--machine_rank {rank}").replace("10.0.0.1", pair[0].address)
            command = [
                *machine.prefix,
                *LAUNCH[:1],
                *words.split(),
                *TINY,
                *QUIET,
                "--output_dir",
                "runs/two_machines",
            ]
            environment = os.environ | ON_CPU | {"GLOO_SOCKET_IFNAME": INTERFACE}
            with logs[rank].open("w") as log:
                started = subprocess.Popen(command, cwd=home, env=environment, stdout=log, stderr=subprocess.STDOUT)
            processes.append(started)
        codes = [process.wait(timeout=HANGS) for process in processes]
    assert codes == [0, 0], [log.read_text() for log in logs]
    result = result_of(home, "two_machines")
    assert result["evidence"]["processes"] == 2
    assert result["loss"]["trajectory"] == one_host


@pytest.mark.breadth(1, of="two machines")
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_slurm_script_starts_one_launcher_a_node(home, one_host, tmp_path):
    script = ROOT / "recipes" / "multi_node.sbatch"
    flags = ["--config", MULTI_NODE, *TINY, *QUIET, "--output_dir", "runs/slurm"]
    with two_machines() as pair:
        code, out = sbatch(script, pair, tmp_path, *flags, cwd=home, timeout=HANGS, **ON_CPU, **ALL_CORES)
    assert code == 0, out
    result = result_of(home, "slurm")
    assert result["loss"]["trajectory"] == one_host
    # No --cpus-per-task was given: the cores that the job has on a node are its one task's.
    assert result["environment"]["threads"] == len(os.sched_getaffinity(0))


def test_the_slurm_script_names_files_that_exist():
    text = (ROOT / "recipes" / "multi_node.sbatch").read_text(encoding="utf-8")
    assert "recipes/ablate.py" in text and MULTI_NODE in text and Path(ROOT / MULTI_NODE).exists()
