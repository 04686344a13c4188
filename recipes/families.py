"""Every technique on every family of models, small and with random weights: what works, what is skipped and why.

    python recipes/families.py
    python recipes/families.py --families Llama "Mamba 2"

Without `--families` the table goes into recipes/README.md. The exit code is 0 only if nothing failed.
"""

import argparse
import io
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.checks import STEP_1
from rungwise.families import FAMILIES, Family
from rungwise.result import read_result
from rungwise.terminal import print_anything

import ablate
import torch
from accelerate.state import AcceleratorState, GradientState

README = Path(__file__).parent / "README.md"
FP32, BF16 = "accelerate_configs/fp32.yaml", "accelerate_configs/bf16.yaml"
TECHNIQUES = {
    "bf16": ["--config", BF16],
    "accumulation": ["--config", FP32, "--gradient_accumulation_steps", "4"],
    "checkpointing": ["--config", FP32, "--gradient_checkpointing"],
    "compile": ["--config", FP32, "--torch_compile"],
}
SHARED = ["--dataset_name", "synthetic", "--report_to", "none"]
SHARED += ["--max_steps", "4", "--untimed_steps", "2", "--global_batch_size", "8"]
# A run's exit codes after Ctrl-C and SIGTERM, which are meant for the whole command.
STOPPED = (130, 143)
# How far the losses may lie from fp32's, relative to them: at step 1 two units of rounding of bf16, and where nothing
# but the order of fp32 sums changes, some 170 units of fp32, at every step.
BF16_STEP_1 = STEP_1["bf16"]
EVERY_STEP = 1e-5


@dataclass(frozen=True)
class Cell:
    """How one technique came out on one family, and how far its losses were from fp32's."""

    text: str
    distance: float | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Tries all techniques on the families asked for; returns the exit code."""
    print_anything()
    names = [family.name for family in FAMILIES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", choices=names, metavar="NAME", help=f"some of {', '.join(names)}")
    asked = parser.parse_args(argv).families
    # In models this small, threads do little but wait for one another.
    torch.set_num_threads(1)
    started = time.monotonic()
    rows: dict[Family, dict[str, Cell]] = {}
    with tempfile.TemporaryDirectory(prefix="rungwise-families-") as folder:
        for family in FAMILIES:
            if asked is None or family.name in asked:
                rows[family], environment = try_family(family, Path(folder))
    section = render(rows, environment, time.monotonic() - started)
    print(section)
    if asked is None:
        write_section(README, section)
    return int(any(cell.text.startswith("failed") for cells in rows.values() for cell in cells.values()))


def try_family(family: Family, folder: Path) -> tuple[dict[str, Cell], dict[str, Any]]:
    """Each technique alone on this family, and the environment of the runs."""
    baseline = run(family, ["--config", FP32], folder)
    if baseline["status"] != "ok":
        return dict.fromkeys(TECHNIQUES, Cell(f"failed: fp32: {baseline['reason']}")), baseline["environment"]
    cells = {}
    for technique, flags in TECHNIQUES.items():
        cells[technique] = judge(technique, run(family, flags, folder), baseline)
        print(f"{family.name}, {technique}: {cells[technique].text}", flush=True)
    return cells, baseline["environment"]


def run(family: Family, flags: list[str], folder: Path) -> dict[str, Any]:
    """The result of one `ablate.py` in this process, whose words are kept from the terminal."""
    place = folder / "run"
    # Headers that the compiler has prepared are used again; each model's own code is new.
    cache = ["--torch_compile_cache_dir", str(folder / "cache")] if "--torch_compile" in flags else []
    words = io.StringIO()
    try:
        with redirect_stdout(words), redirect_stderr(words):
            code = ablate.main([*family.flags, *SHARED, *flags, *cache, "--output_dir", str(place)])
    except SystemExit:
        return {"status": "failed", "reason": words.getvalue().strip(), "environment": {}}
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
    if code in STOPPED:
        raise SystemExit(code)
    return read_result(place)


def judge(technique: str, result: dict[str, Any], baseline: dict[str, Any]) -> Cell:
    """`ok` for a run that was, and whose losses follow fp32's; else what came of it and why."""
    if result["status"] != "ok":
        kind = "skipped" if result["status"] == "skipped" else "failed"
        return Cell(f"{kind}: {' '.join(str(result['reason']).split())}")
    losses = zip(result["loss"]["trajectory"], baseline["loss"]["trajectory"], strict=True)
    distances = [abs(loss / expected - 1) for loss, expected in losses]
    distance, bound = (distances[0], BF16_STEP_1) if technique == "bf16" else (max(distances), EVERY_STEP)
    if distance > bound:
        return Cell(f"failed: losses are {distance:.1e} from fp32's, at most {bound:.1e} is allowed", distance)
    if technique == "compile":
        compiled = result["compile"]
        graphs, breaks = _count(compiled["graphs"], "graph"), _count(compiled["graph_breaks"], "graph break")
        return Cell(f"ok: {graphs}, {breaks}", distance)
    return Cell("ok", distance)


def render(rows: dict[Family, dict[str, Cell]], environment: dict[str, Any], seconds: float) -> str:
    """The table in Markdown, how near the losses were, and where it comes from."""
    lines = [
        f"| family | model class | {' | '.join(TECHNIQUES)} |",
        f"| --- | --- | {' | '.join('---' for _ in TECHNIQUES)} |",
    ]
    for family, cells in rows.items():
        texts = (cells[technique].text.replace("|", "\\|") for technique in TECHNIQUES)
        lines.append(f"| {family.name} | `{family.model_class}` | {' | '.join(texts)} |")
    return "\n".join([*lines, "", *_distances(rows), "", _source(environment, seconds)])


def _distances(rows: dict[Family, dict[str, Cell]]) -> list[str]:
    words = []
    for technique in TECHNIQUES:
        known = [cells[technique].distance for cells in rows.values() if cells[technique].distance is not None]
        words += [f"{technique} {max(known):.1e}{' (step 1)' * (technique == 'bf16')}"] if known else []
    return [f"Largest distance of a loss from fp32's, relative to it: {', '.join(words)}."] if words else []


def _source(environment: dict[str, Any], seconds: float) -> str:
    packages = ", ".join(f"{name} {environment.get(name)}" for name in ("torch", "transformers", "accelerate"))
    date = str(environment.get("date"))[:10]
    took = f"{seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"(`python recipes/families.py` in {took} on {environment.get('device_name')}; {packages}; {date})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def write_section(path: Path, section: str) -> None:
    """Puts the section between the two markers of a Markdown file."""
    text = path.read_text(encoding="utf-8")
    new, count = re.subn(
        r"(<!-- families -->\n).*?(<!-- /families -->)",
        lambda match: f"{match[1]}{section}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    if not count:
        raise ValueError(f"{path} has no place for the table; add the lines <!-- families --> and <!-- /families -->")
    path.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
