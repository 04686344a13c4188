"""Takes the figures of the guides again, on this machine and on one day, and writes them into the pages.

    python recipes/figures.py
    python recipes/figures.py --only ablate default formats
    python recipes/figures.py --only default --write_only

All of them take some two hours on two cores, in which nothing else should run. Each is written into its pages as soon
as it is there. With --write_only nothing is run: what an earlier call has measured is written again. The exit code is
0 only if every command ended well, the checks of ladders among them.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rungwise.environment import machine
from rungwise.errors import SettingsError
from rungwise.report.pages import TURNED_ON, activations_section, ladder_section, owners_section, terminal_section
from rungwise.report.sections import source, write_section
from rungwise.result_file import read_result, write_json
from rungwise.terminal import print_anything

RECIPES = Path(__file__).parent
README, LESSON, EXERCISES = RECIPES.parent / "README.md", RECIPES / "README.md", RECIPES / "ladders" / "README.md"
MEASURED = Path("runs") / "figures"
FP32 = Path("runs") / "default" / "fp32" / "round-1"
SHORT = ("rung", "peak", "peak_vs_first", "owners", "step", "speed_vs_first", "loss", "loss_vs_fp32")
STEPS = ("rung", TURNED_ON, "peak", "peak_vs_first", "step", "speed_vs_first", "utilization", "loss_vs_fp32")
LARGEST = 10


@dataclass(frozen=True)
class Section:
    """A place in a page, and what makes its words of what a command has printed and left."""

    page: Path
    name: str
    made: Callable[[str], str]


@dataclass(frozen=True)
class Figures:
    """Where some figures are from and where they go.

    Attributes:
        command: as a person types it.
        flags: that are given beside those, so that nothing older is taken.
        sections: that are filled; none where the command fills its own.
        results: the folder of its runs, whose environment is named; without one the machine is asked.
        pictures: of that folder, each with the name that it has beside the ladders.
        stored: a folder that has some of the ladder's files, for tests that need real ones.
    """

    command: str
    flags: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()
    results: Path | None = None
    pictures: tuple[tuple[str, str], ...] = ()
    stored: Path | None = None


def ladder(name: str, page: Path, columns: Sequence[str], *more: Section, flags: str = "", **options: Any) -> Figures:
    """A ladder's table in a page."""
    file = "" if name == "default" else f" --ladder recipes/ladders/{name}.yaml"
    folder = Path("runs") / name
    table = Section(page, name, lambda _: ladder_section(folder, columns))
    return Figures(f"python recipes/ladder.py{file}{flags}", ("--fresh",), (table, *more), folder, **options)


def printed(page: Path, name: str, first: str = "", last: str = "") -> tuple[Section]:
    """A section of what is printed, from a line to a line."""
    return (Section(page, name, lambda text: terminal_section(text, first, last)),)


FIT = "python recipes/fit.py --model_type gpt2 --gpu T4 --global_batch_size 64 --block_size 1024"
FIGURES = {
    "ablate": Figures(
        "accelerate launch recipes/ablate.py --config accelerate_configs/bf16.yaml",
        sections=printed(README, "ablate", "bf16: ok", "files"),
        results=Path("runs") / "bf16",
    ),
    "default": ladder(
        "default",
        README,
        SHORT,
        Section(LESSON, "owners", lambda _: owners_section(read_result(FP32))),
        Section(LESSON, "activations", lambda _: activations_section(read_result(FP32), LARGEST)),
        pictures=(
            ("ladder.png", "default.png"),
            ("memory_timeline.png", "default_memory.png"),
            ("activations.png", "default_activations.png"),
            ("loss.png", "default_loss.png"),
        ),
        stored=RECIPES.parent / "tests" / "stored" / "ladder",
    ),
    "fit": Figures(FIT, sections=printed(README, "fit")),
    "formats": Figures("python recipes/formats.py", sections=printed(LESSON, "formats")),
    "memory": ladder("memory", LESSON, STEPS, pictures=(("map.png", "memory_map.png"),)),
    "speed": ladder("speed", LESSON, STEPS, flags=" --repeats 3", pictures=(("profile.png", "speed_profile.png"),)),
    "bench": Figures("python recipes/bench.py --readme"),
    "fsdp_memory": Figures("python recipes/fsdp_memory.py"),
    "families": Figures("python recipes/families.py"),
    **{
        name: ladder(name, EXERCISES, STEPS)
        for name in ("accumulation", "reentrant", "precision", "optimizers", "memory_budget", "distributed")
    },
    "leave_one_out": ladder("leave_one_out", EXERCISES, tuple(name for name in STEPS if name != TURNED_ON)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Takes the figures asked for; returns the exit code."""
    print_anything()
    parser = argparse.ArgumentParser(
        description=__doc__, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=FIGURES, metavar="NAME", help=f"some of {', '.join(FIGURES)}")
    parser.add_argument("--write_only", action="store_true", help="run nothing, write what was measured")
    options = parser.parse_args(argv)
    failed = []
    for name in options.only or FIGURES:
        try:
            if not options.write_only:
                measure(name, FIGURES[name])
            code = write(name, FIGURES[name])
        except (SettingsError, ValueError, OSError, KeyError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            code = 1
        failed += [name] if code else []
    print(f"{len(failed)} of {len(options.only or FIGURES)} did not end well{': ' * bool(failed)}{', '.join(failed)}")
    return int(bool(failed))


def measure(name: str, figures: Figures) -> None:
    """Runs the command, and keeps what it has printed and how long it took."""
    print(f"\n{name}: {figures.command}", flush=True)
    # The commands are those of the environment that this one runs in.
    found = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    began = time.monotonic()
    command = [*shlex.split(figures.command), *figures.flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": found}, check=False)
    print(done.stdout, flush=True)
    MEASURED.mkdir(parents=True, exist_ok=True)
    measured = {"printed": done.stdout, "code": done.returncode, "seconds": time.monotonic() - began}
    write_json(MEASURED / f"{name}.json", measured | {"machine": machine()})


def write(name: str, figures: Figures) -> int:
    """Writes what was measured into its pages, and copies its pictures. Returns the command's exit code.

    Of a ladder that was run by hand it is not known how long it took.
    """
    path = MEASURED / f"{name}.json"
    measured = {"printed": "", "code": 0, "seconds": None, "machine": {}}
    if path.exists() or not figures.results:
        measured = json.loads(path.read_text(encoding="utf-8"))
    environment = measured["machine"]
    if figures.results:
        first = next(iter(sorted(figures.results.rglob("result.json"))))
        environment = read_result(first.parent)["environment"]
    where = source(figures.command, environment, measured["seconds"])
    for section in figures.sections:
        write_section(section.page, section.name, f"{section.made(measured['printed'])}\n\n{where}")
    for picture, place in figures.pictures:
        shutil.copyfile(figures.results / picture, RECIPES / "ladders" / place)
    for file in figures.stored.rglob("*.*") if figures.stored else ():
        shutil.copyfile(figures.results / file.relative_to(figures.stored), file)
    return measured["code"]


if __name__ == "__main__":
    raise SystemExit(main())
