"""How a candidate is started: what `accelerate launch` is told, and which of the repository's Accelerate files."""

from dataclasses import dataclass

from ..ladder.ladder_file import ONE_PROCESS

CONFIGS = {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}
# Files for several processes by the device, and the precision that the launcher reads in them.
SEVERAL = {"cpu": ("ddp_cpu", "no"), "cuda": ("ddp", "bf16")}
SHARDED = {"cpu": ("fsdp2_cpu", "no"), "cuda": ("fsdp2", "bf16")}
# Its own file says FSDP2 without a number of processes.
FSDP2_CONFIG, FSDP2_PRECISION = "fsdp2", "bf16"


@dataclass(frozen=True)
class Launch:
    """What stands before the script's name, and the file behind it.

    Attributes:
        launcher: flags of `accelerate launch`.
        config: `--config` of `ablate.py`.
        processes: as many as are started.
        sharded: whether they share parameters, gradients and optimizer state.
    """

    launcher: tuple[str, ...]
    config: str
    processes: int
    sharded: bool = False

    def environ(self, device: str) -> dict[str, str]:
        """What the launcher leaves for the script."""
        on_cpu = {"ACCELERATE_USE_CPU": "true"} if device == "cpu" and self.processes > 1 else {}
        return {"WORLD_SIZE": str(self.processes), **on_cpu}


def launches(device: str, processes: int, precision: str) -> tuple[list[Launch], list[str]]:
    """The ways to start so many processes, those that exchange less first; and why one is left out."""
    config = _file(CONFIGS[precision])
    if processes == 1:
        return [Launch(("--config_file", ONE_PROCESS), config, 1)], []
    found = [Launch(_launcher(*SEVERAL[device], processes, precision), config, processes)]
    if precision != FSDP2_PRECISION:
        return found, [f"FSDP2: no Accelerate file here shards in {CONFIGS[precision]}"]
    launcher = _launcher(*SHARDED[device], processes, precision)
    return [*found, Launch(launcher, _file(FSDP2_CONFIG), processes, sharded=True)], []


def _launcher(name: str, written: str, processes: int, precision: str) -> tuple[str, ...]:
    # Port 0 lets Accelerate find a free one.
    flags = ("--main_process_port", "0", "--config_file", _file(name), "--num_processes", str(processes))
    return flags if precision == written else (*flags, "--mixed_precision", precision)


def _file(name: str) -> str:
    return f"accelerate_configs/{name}.yaml"
