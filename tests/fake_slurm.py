"""What a batch script needs of Slurm, on two machines of `two_machines`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from two_machines import Machine

SCONTROL = r"""#!/bin/sh
[ "$#" = 3 ] && [ "$1 $2 $3" = "show hostnames node[0-1]" ] || { echo "fake scontrol: unexpected: $*" >&2; exit 64; }
printf 'node0\nnode1\n'
"""

# One task a node, bound to its cores: to one, if nothing says how many, or that it is not to be bound. Options it does
# not know fail the job: the fake would not do what they ask for.
SRUN = r"""#!{python}
import os, subprocess, sys, time
prefixes = {prefixes}
words = sys.argv[1:]
options = []
while words and words[0].startswith("-"):
    options.append(words.pop(0))
unknown = set(options) - {{"--kill-on-bad-exit=1", "--cpu-bind=none"}}
if unknown or not words:
    sys.exit(f"fake srun: unexpected: {{sys.argv[1:]}}")
if "--cpu-bind=none" not in options:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:int(os.environ.get("SRUN_CPUS_PER_TASK", "1"))])
tasks = []
for index, prefix in enumerate(prefixes):
    own = dict(SLURM_NODEID=str(index), SLURM_PROCID=str(index), SLURM_LOCALID="0", SLURMD_NODENAME=f"node{{index}}",
               SLURM_NTASKS="2", SLURM_STEP_ID="0")
    tasks.append(subprocess.Popen([*prefix, *words], env={{**os.environ, **own}}, stdin=subprocess.DEVNULL))
while None in (codes := [task.poll() for task in tasks]) and not any(codes):
    time.sleep(0.05)
if any(codes) and "--kill-on-bad-exit=1" in options:
    for task in tasks:
        task.kill()
sys.exit(max(abs(task.wait()) for task in tasks))
"""


def sbatch(script: Path, pair: tuple[Machine, Machine], folder: Path, *words: str, cwd: Path, timeout: float, **extra):
    """Runs a batch script as `sbatch script words` would, and waits."""
    binaries = folder / "bin"
    binaries.mkdir()
    prefixes = json.dumps([machine.prefix for machine in pair])
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN.format(python=sys.executable, prefixes=prefixes))):
        (binaries / name).write_text(text)
        (binaries / name).chmod(0o755)
    # Slurm runs a copy, from its spool folder, in the folder the job was submitted from.
    copy = folder / "slurm_script"
    copy.write_text(script.read_text())
    # Those of the node and the task are set in the batch script too, and are the first node's.
    slurm = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_NNODES": "2",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_ON_NODE": str(len(os.sched_getaffinity(0))),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_SUBMIT_DIR": str(cwd),
        "SLURMD_NODENAME": "node0",
    }
    # The context of `two_machines` ends the tasks; srun and bash are outside of it.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SRUN"))}
    environment |= slurm | extra | {"PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    output = folder / "out"
    with output.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(
                ["bash", copy, *words],
                cwd=cwd,
                env={name: value for name, value in environment.items() if value is not None},
                stdout=file,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, output.read_text(encoding="utf-8")
    return done.returncode, output.read_text(encoding="utf-8")
