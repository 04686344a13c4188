"""Techniques on families of models, small and with random weights: what works, what is refused and why.

    python recipes/families.py
    python recipes/families.py --families Llama "Mamba 2" bamba bert

Twelve families by name, with each technique alone, are a table in recipes/own_model.md; every model type that
Transformers has a causal language model for, with all techniques but compiling, is one in recipes/families.md. With
`--families` no file is written. The exit code is 0 only if nothing failed; what is refused in words has not failed.
"""

import argparse
import io
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from rungwise.families.families import FAMILIES, Family, model_types, write_small
from rungwise.families.tables import (
    Cell,
    Tried,
    counted,
    counts,
    has_failed,
    in_words,
    table_of_named,
    whole_table,
)
from rungwise.families.workers import Lost, each
from rungwise.report.claims import STEP_1
from rungwise.report.sections import source, write_section
from rungwise.result_file import read_result
from rungwise.terminal import print_anything

import ablate
import torch
from accelerate.state import AcceleratorState, GradientState

PAGE = Path(__file__).parent / "own_model.md"
TABLE = Path(__file__).parent / "families.md"
FP32, BF16 = "accelerate_configs/fp32.yaml", "accelerate_configs/bf16.yaml"
TECHNIQUES = {
    "bf16": ["--config", BF16],
    "accumulation": ["--config", FP32, "--gradient_accumulation_steps", "4"],
    "checkpointing": ["--config", FP32, "--gradient_checkpointing"],
    "fused activation": ["--config", FP32, "--fused_activation"],
    "chunked loss": ["--config", FP32, "--linear_cross_entropy"],
    "compile": ["--config", FP32, "--torch_compile"],
}
# What every model type is tried with: compiling each would take hours.
EAGER = ("bf16", "accumulation", "checkpointing", "fused activation", "chunked loss")
SHARED = ["--dataset_name", "synthetic", "--report_to", "none"]
SHARED += ["--max_steps", "4", "--untimed_steps", "2", "--global_batch_size", "8"]
PROCESSES = 2
SECONDS = 300
# A run's exit codes after Ctrl-C and SIGTERM, which are meant for the whole command.
STOPPED = (130, 143)
# How far the losses may lie from fp32's, relative to them: at step 1 two units of rounding of bf16, and where nothing
# but the order of fp32 sums changes, some 170 units of fp32, at every step. A model that chooses (keys of a window,
# experts) enlarges rounding with each step: there others may lie ten times as far as accumulation, which is held to
# the bound itself.
BF16_STEP_1 = STEP_1["bf16"]
EVERY_STEP = 1e-5
TIMES_ACCUMULATION = 10
# How a refusal begins in `result.json`.
REFUSED = re.compile(r"1 problem with this call: - (--config_name \S+: )?|InactiveTechnique: ")
# What PyTorch says where a model's own code brings together a tensor of autocast's dtype and one in fp32.
OWN_DTYPES = re.compile(r"RuntimeError: .*(same scalar type|dtypes match|same dtype)")


def main(argv: Sequence[str] | None = None) -> int:
    """Tries the families asked for; returns the exit code."""
    print_anything()
    named, others = {family.name: family for family in FAMILIES}, {t: Family(t, t) for t in model_types()}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words = f"some of {', '.join(named)}, or model types of Transformers"
    parser.add_argument("--families", nargs="+", choices=[*named, *others], metavar="NAME", help=words)
    asked = parser.parse_args(argv).families
    started, tried = time.monotonic(), {}
    families = [family for family in (*named.values(), *others.values()) if asked is None or family.name in asked]
    with tempfile.TemporaryDirectory(prefix="rungwise-families-") as folder:
        tasks = [(family, list(TECHNIQUES) if family.name in named else EAGER, folder) for family in families]
        for (family, _, _), result in each(try_task, tasks, PROCESSES, SECONDS):
            tried[family] = Tried("failed", result.reason) if isinstance(result, Lost) else result
            print(f"{len(tried)} of {len(tasks)}: {family.name}: {in_words(tried[family])}", flush=True)
    twelve = {family: tried[family] for family in named.values() if family in tried}
    rest = {family: tried[family] for family in others.values() if family in tried}
    environment = next((one.environment for one in tried.values() if one.environment), {})
    where = source("python recipes/families.py", environment, time.monotonic() - started)
    summary = f"{counts(rest, EAGER)}\n\n{where}" if rest else where
    if asked is None:
        write_section(PAGE, "families", f"{table_of_named(twelve, list(TECHNIQUES))}\n\n{summary}")
        TABLE.write_text(whole_table(rest, EAGER, where), encoding="utf-8")
    print(f"\n{summary}")
    return int(any(has_failed(one) for one in tried.values()))


def try_task(task: tuple[Family, Sequence[str], str]) -> Tried:
    """`try_family` in a worker, in a folder of its own inside the one given."""
    family, techniques, folder = task
    # In models this small, threads do little but wait for one another.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        return try_family(family, techniques, Path(own), Path(folder) / "cache")


def try_family(family: Family, techniques: Sequence[str], folder: Path, cache: Path) -> Tried:
    """Each technique alone on this family, beside fp32.

    Args:
        family: by name with its sizes, or a model type that is to be made small.
        techniques: keys of `TECHNIQUES`.
        folder: for the config and the runs.
        cache: for what the compiler prepares, to be used again.
    """
    try:
        model = family.flags if family.config_overrides else write_small(family.model_type, folder / "config")
    except Exception as error:
        # A config's class raises anything, of its own defaults, too.
        return Tried("refused", f"cannot be made small from its config: {' '.join(str(error).split())}")
    baseline = run(model, ["--config", FP32], folder, cache)
    environment = baseline["environment"]
    if baseline["status"] != "ok":
        reason = " ".join(str(baseline["reason"]).split())
        status = "refused" if REFUSED.match(reason) else "failed"
        return Tried(status, REFUSED.sub("", reason, count=1), environment=environment)
    cells: dict[str, Cell] = {}
    for name in techniques:
        rounding = cells["accumulation"].distance if "accumulation" in cells else None
        cells[name] = judge(name, run(model, TECHNIQUES[name], folder, cache), baseline, rounding or 0.0)
    evidence = baseline["evidence"]
    return Tried("ok", "", evidence["dropout"], evidence["trained_parameters"], cells, environment)


def run(model: list[str], flags: list[str], folder: Path, cache: Path) -> dict[str, Any]:
    """The result of one `ablate.py` in this process, whose words are kept from the terminal."""
    place = folder / "run"
    # Headers that the compiler has prepared are used again; each model's own code is new.
    compiled = ["--torch_compile_cache_dir", str(cache)] if "--torch_compile" in flags else []
    words = io.StringIO()
    try:
        with redirect_stdout(words), redirect_stderr(words):
            code = ablate.main([*model, *SHARED, *flags, *compiled, "--output_dir", str(place)])
    except SystemExit:
        return {"status": "failed", "reason": words.getvalue().strip(), "environment": {}}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if code in STOPPED:
        raise SystemExit(code)
    return read_result(place)


def judge(technique: str, result: dict[str, Any], baseline: dict[str, Any], rounding: float = 0.0) -> Cell:
    """`ok` for a run that was, and whose losses follow fp32's; else what came of it and why.

    `rounding` is how far accumulation's losses are, relative to fp32's, where they could be compared.
    """
    if result["status"] != "ok":
        reason = " ".join(str(result["reason"]).split())
        if technique == "bf16" and OWN_DTYPES.search(reason):
            return Cell(f"refused: its own code does not run under autocast: {reason}")
        kind = "refused" if REFUSED.match(reason) else "skipped" if result["status"] == "skipped" else "failed"
        return Cell(f"{kind}: {REFUSED.sub('', reason, count=1)}")
    if technique == "accumulation" and baseline["evidence"].get("dropout"):
        return Cell("ok: it draws other numbers for other batches, losses are not compared")
    losses = zip(result["loss"]["trajectory"], baseline["loss"]["trajectory"], strict=True)
    distances = [abs(loss / expected - 1) for loss, expected in losses]
    every_step = max(EVERY_STEP, TIMES_ACCUMULATION * rounding)
    distance, bound = (distances[0], BF16_STEP_1) if technique == "bf16" else (max(distances), every_step)
    if distance > bound:
        return Cell(f"failed: losses are {distance:.1e} from fp32's, at most {bound:.1e} is allowed", distance)
    if technique == "compile":
        compiled = result["compile"]
        graphs, breaks = counted(compiled["graphs"], "graph"), counted(compiled["graph_breaks"], "graph break")
        return Cell(f"ok: {graphs}, {breaks}", distance)
    if technique != "bf16" and distance > EVERY_STEP:
        return Cell(
            f"ok: {distance:.1e} from fp32, in a model that enlarges rounding (accumulation: {rounding:.1e})", distance
        )
    return Cell("ok", distance)


if __name__ == "__main__":
    raise SystemExit(main())
