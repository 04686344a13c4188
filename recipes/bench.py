"""What the loop of ablate.py costs beside a bare PyTorch loop and transformers.Trainer, rung by rung, in turns.

    python recipes/bench.py
    python recipes/bench.py --heats 4
    python recipes/bench.py --report_only runs/bench --readme

Flags of ablate.py for the model, its data, the batch and the training go to every rung. The exit code is 0 only if
every check has passed.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rungwise.bench import rungs, tables
from rungwise.bench.checks import Bench, bf16_pays, run_checks
from rungwise.bench.figures import Rung
from rungwise.bench.race import joined, race
from rungwise.data.opened import Opening
from rungwise.device import measured_accelerator
from rungwise.environment import machine
from rungwise.errors import SettingsError
from rungwise.ladder.identity import check_rungs
from rungwise.metrics.flops import matmul_flops_per_second
from rungwise.metrics.throughput import LEAST_TIMED_STEPS
from rungwise.report.checks import tally
from rungwise.report.sections import write_section
from rungwise.result_file import write_json
from rungwise.terminal import print_anything

import torch

README = Path(__file__).parents[1] / "README.md"


def arguments(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """The bench's own flags, and those for every rung."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s [flags] [flags of ablate.py]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    words = "times that each engine is started on a rung: one process may be luckier than another [2]"
    parser.add_argument("--heats", type=int, default=2, metavar="N", help=words)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns that each has in a heat [3]")
    parser.add_argument("--steps", type=int, default=2, metavar="N", help="optimizer steps of a turn [2]")
    parser.add_argument("--output_dir", default="runs/bench", metavar="DIR", help="where everything goes [runs/bench]")
    parser.add_argument("--report_only", metavar="DIR", help="only write the tables of a folder again")
    parser.add_argument("--readme", action="store_true", help="put the table into README.md, too")
    return parser.parse_known_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Compares the engines, or shows how they compared; returns the exit code."""
    print_anything()
    options, extra = arguments(argv)
    try:
        folder = Path(options.report_only or options.output_dir)
        bench = read(folder, extra) if options.report_only else run(options, extra, folder)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    (folder / "bench.md").write_text(tables.page(bench), encoding="utf-8")
    if options.readme:
        write_section(README, "bench", tables.section(bench))
    checks = run_checks(bench)
    print("\n".join(["", *tables.table(bench), "", tables.defaults(bench), "", *map(tables.line, checks)]))
    print(f"Checks: {tally(checks)}. {folder / 'bench.md'}")
    return int(any(check.verdict != "PASS" for check in checks))


def read(folder: Path, extra: Sequence[str]) -> Bench:
    """What an earlier call has measured."""
    if extra:
        raise SettingsError(["--report_only runs nothing and takes no flag of ablate.py"])
    try:
        return Bench.from_dict(json.loads((folder / "bench.json").read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError([f"{folder} holds no bench.json; give the folder of a bench"]) from error


def run(options: argparse.Namespace, extra: Sequence[str], folder: Path) -> Bench:
    """Measures, and writes `bench.json`."""
    rounds, turns = options.heats * options.rounds, options.heats * options.rounds * options.steps
    if min(options.heats, options.rounds, options.steps) < 1 or rounds < 2 or turns < LEAST_TIMED_STEPS:
        given = f"--heats {options.heats} --rounds {options.rounds} --steps {options.steps}"
        raise SettingsError([f"{given}: give 2 rounds or more, and {LEAST_TIMED_STEPS} steps or more in all of them"])
    started = time.monotonic()
    # A Trainer would spread its rows over all GPUs that it sees.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    environment, gflops = measure_machine()
    compared, least = rungs.read(extra, options.rounds * options.steps, bf16_pays(gflops))
    settings = check_rungs([*compared, least], Opening())
    raced = []
    for rung in [*compared, least]:
        entries = dict.fromkeys(rungs.engines(settings[rung.name]) if rung is not least else ["ours"], rung.arguments)
        if rung is compared[-1]:
            entries["trainer_default"] = compared[0].arguments
        print(f"{rung.name}: {', '.join(tables.ENGINES[engine] for engine in entries)}", flush=True)
        heats = range(1, options.heats + 1) if rung is not least else (1,)
        turns = options.rounds if rung is not least else 0
        laps = joined([race(entries, folder / rung.name / f"heat-{n}", turns, options.steps) for n in heats])
        asked = settings[rung.name]
        tokens = options.steps * asked.global_batch_size * (asked.block_size - 1)
        raced.append(Rung(rung.name, shlex.join(rung.arguments), tokens, {lap.engine: lap for lap in laps}))
        show(raced[-1])
    took = time.monotonic() - started
    bench = Bench(raced[:-1], raced[-1], gflops, environment, options.heats, options.rounds, options.steps, took)
    write_json(folder / "bench.json", bench.as_dict())
    return bench


def measure_machine() -> tuple[dict[str, Any], dict[str, float]]:
    """What this machine is, and the GFLOP/s of a square product in fp32 and in bf16 by PyTorch's kernels."""
    device = measured_accelerator() or torch.device("cpu")
    rates = {"fp32": matmul_flops_per_second(device, "no"), "bf16": matmul_flops_per_second(device, "bf16")}
    return machine(), {name: rate / 1e9 for name, rate in rates.items()}


def show(rung: Rung) -> None:
    """How the engines did on one rung."""
    for engine, lap in rung.laps.items():
        rate = rung.tokens_per_second(engine)
        speed = f"{rate:,.0f} tokens/s, " if rate else ""
        words = lap.failed or f"{speed}peak {lap.peak_mib:,.1f} MiB, loss {lap.loss:.6f}"
        print(f"  {tables.ENGINES[engine]}: {words}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
