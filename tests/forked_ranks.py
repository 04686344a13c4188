"""Scripts that several ranks run, each a process that imports nothing: it is forked from one that has.

A launcher's ranks each import for longer than those scripts train. What a launcher itself does is tried elsewhere.
"""

import gc
import importlib
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

from harness import ENVIRONMENT, HANGS, ROOT

IMPORTED = ("ablate", "torch.distributed.fsdp", "transformers.trainer")
IMPORTED += tuple(f"transformers.models.{name}.modeling_{name}" for name in ("gpt2", "llama"))


def on_ranks(script: str, processes: int, *argv: str) -> None:
    """Runs a script of this folder in so many ranks of a group, and waits for their end."""
    path = os.pathsep.join([ENVIRONMENT["PYTHONPATH"], *(str(ROOT / name) for name in ("recipes", "tests/forecast"))])
    done = subprocess.run(
        [sys.executable, __file__, str(processes), str(ROOT / "tests" / script), *argv],
        cwd=ROOT,
        env={**ENVIRONMENT, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def train(script: str, *argv: str) -> None:
    """What each rank does. Leaves at once: the clean-up of many models would wait for a group that is gone."""
    sys.argv, code = [script, *argv], 1
    try:
        models = runpy.run_path(script, run_name="__main__")  # noqa: F841 (kept)
        code = 0
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> int:
    """Forks, and ends all ranks once one has failed."""
    processes, script, *argv = int(sys.argv[1]), *sys.argv[2:]
    for module in IMPORTED:
        importlib.import_module(module)
    from rungwise.run import measurement
    from rungwise.techniques import product_kernels

    import torch

    # Measured for longer than a tiny run takes, and not the question.
    product_kernels.measure = lambda _: {"pytorch": 1.0, "rungwise": 0.5}
    measurement.matmul_flops_per_second = product_kernels.matmul_flops_per_second = lambda *_: 1e12
    torch.set_num_threads(1)
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    # A fork has none of them; Arrow's allocator starts its own anew.
    assert len([name for name in threads if "jemalloc" not in name]) == 1, threads
    gc.freeze()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        # As a launcher's: the store is this process's, so that its port is taken before anybody is told.
        world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        os.environ |= {**world, "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
        running = set()
        for rank in range(processes):
            child = os.fork()
            if not child:
                listening.close()
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                train(script, *argv)
            running.add(child)
        store = torch.distributed.TCPStore(
            "127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
    failed = False
    while running:
        child, status = os.wait()
        running.remove(child)
        if status and not failed:
            failed = True
            for other in running:
                os.kill(other, signal.SIGKILL)
    del store
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
