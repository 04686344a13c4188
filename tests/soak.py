"""Many short runs in turn and a ladder of many rungs: no process, no temporary file and no growing memory is left.

    python tests/soak.py
    python tests/soak.py --runs 20 --rungs 5

Prints what was found, and ends with 1 if anything is left. It is no part of `make test`: 200 runs take minutes.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "recipes"), str(ROOT / "tests")]

import psutil  # noqa: E402
from forked import forking  # noqa: E402

SIZES = "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2"
# What a ladder's process may grow by from its 5th rung to its last: results that it holds, and the allocator's own.
MOST_GROWTH_MIB = 32


def main() -> int:
    """Runs all of it in a folder of its own; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, metavar="N")
    parser.add_argument("--rungs", type=int, default=30, metavar="N")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rungwise-soak-") as folder:
        home, temporary = Path(folder, "home"), Path(folder, "tmp")
        for path in (home, temporary):
            path.mkdir()
        os.environ |= {"TMPDIR": str(temporary), "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1"}
        tempfile.tempdir = None
        for name in ("recipes", "accelerate_configs"):
            (home / name).symlink_to(ROOT / name)
        os.chdir(home)
        wrong = runs(options.runs, temporary) + ladder(options.rungs, temporary)
    print("\n".join(wrong or ["nothing is left"]))
    return int(bool(wrong))


def left(temporary: Path, shared: set[str]) -> list[str]:
    """Processes, temporary files and shared memory that are there now and should not be."""
    children = [f"process {child.pid}: {child.name()}" for child in psutil.Process().children(recursive=True)]
    # PyTorch's compiler makes a folder for its cache, one for all processes of a person.
    files = [f"temporary {path.name}" for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    return children + files + [f"shared memory {name}" for name in sorted(in_shared_memory() - shared)]


def in_shared_memory() -> set[str]:
    """The names of what lies in the system's shared memory."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def runs(count: int, temporary: Path) -> list[str]:
    """So many runs, each a process of its own, forked from one in which all is imported."""
    shared, seconds, codes = in_shared_memory(), [], []
    with forking(Path.cwd()) as server:
        for number in range(count):
            flags = ["--output_dir", str(Path.cwd() / "runs" / str(number % 8))]
            flags += ["--gradient_checkpointing"] * (number % 3 == 0) + ["--report_to", "wandb"] * (number % 2)
            began = time.monotonic()
            codes.append(server.run(*flags).code)
            seconds.append(time.monotonic() - began)
    failed = [f"run {number} ended with {code}" for number, code in enumerate(codes) if code]
    remains = failed + left(temporary, shared)
    print(
        f"{count} runs in {sum(seconds):.0f} s, {min(seconds):.1f} to {max(seconds):.1f} s each: {len(remains)} left"
    )
    return remains


def ladder(count: int, temporary: Path) -> list[str]:
    """A ladder of so many rungs, whose own process is looked at after each."""
    rungs = "".join(f"  r{n}: {{seed: {n}, report_to: {'wandb' if n % 2 else 'none'}}}\n" for n in range(count))
    shape = f'block_size: 32, dataset_name: synthetic, max_steps: 13, config_overrides: "{SIZES}"'
    text = f"flags: {{config: accelerate_configs/fp32.yaml, {shape}}}\nrungs:\n{rungs}"
    Path("soak.yaml").write_text(text, encoding="utf-8")
    shared, sizes, began = in_shared_memory(), [], time.monotonic()
    command = [sys.executable, "recipes/ladder.py", "--ladder", "soak.yaml"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            # A line of a rung that has ended; the report of all until now is written.
            if line.startswith("  ok"):
                sizes.append(psutil.Process(process.pid).memory_info().rss / 2**20)
    remains = left(temporary, shared)
    if process.returncode or len(sizes) != count:
        remains.append(f"the ladder ended with {process.returncode} after {len(sizes)} rungs")
    elif (grown := sizes[-1] - sizes[4]) > MOST_GROWTH_MIB:
        remains.append(f"the ladder's process has grown by {grown:.0f} MiB from its 5th rung to its last")
    shown = ", ".join(f"{sizes[n]:.0f}" for n in sorted({0, 4, len(sizes) // 2, len(sizes) - 1}) if n < len(sizes))
    print(f"{len(sizes)} rungs in {time.monotonic() - began:.0f} s; the ladder's process: {shown} MiB")
    return remains


if __name__ == "__main__":
    raise SystemExit(main())
