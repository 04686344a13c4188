"""Every page: its commands are commands, its links lead somewhere, its figures come from where it says."""

import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

from rungwise.settings.fields import FIELDS

import figures
import pytest
from harness import ROOT

PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("recipes/**/*.md"))
    if path.name != "families.md"
)
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
# The sections that a command writes by itself.
OWN = {"bench": "README.md", "families": "recipes/own_model.md", "fsdp memory": "recipes/README.md"}
# What is told apart from the flags of ablate.py, by the recipe's own parser.
LAUNCHER = {"config_file", "quiet", "num_processes", "nproc_per_node"}


def commands(text):
    """The commands of a page, in blocks and in its sentences, without what is said behind a #."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    inline = re.findall(r"`((?:python|make|accelerate launch|wandb|pip install) [^`]+)`", text)
    return [line.split("  #")[0].strip() for line in (*blocks, *(" ".join(i.split()) for i in inline)) if line.strip()]


def flags_of(recipe):
    """The flags that a recipe has beside those of ablate.py, from its own words."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "argv", [recipe, "--help"])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / recipe), run_name="__main__")
    assert not ended.value.code
    return set(re.findall(r"--(\w+)", said.getvalue()))


@pytest.fixture(scope="module")
def known():
    """The flags of each recipe that some page names."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    named = {word for line in commands(text) for word in line.split() if re.fullmatch(r"recipes/\w+\.py", word)}
    return {recipe: flags_of(recipe) for recipe in sorted(named)}


def problems(command, known):
    """What there is not of what a command names."""
    words = shlex.split(command)
    recipe = next((word for word in words if word.endswith(".py")), None)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        return [word for word in words[1:2] if word not in targets]
    flags = {word.split("=")[0].removeprefix("--") for word in words if word.startswith("--")}
    files = [w for w in words if w.startswith(("recipes/", "accelerate_configs/")) and not (ROOT / w).is_file()]
    if recipe not in known:
        return files
    return files + sorted(flags - known[recipe] - FIELDS.keys() - LAUNCHER)


@pytest.mark.parametrize("name", NAMES)
def test_every_command_can_be_given(name, known):
    found = commands((ROOT / name).read_text(encoding="utf-8"))
    assert {command: wrong for command in found if (wrong := problems(command, known))} == {}


def test_what_cannot_be_given_is_found(known):
    lines = [
        "make nothing",
        "python recipes/nothing.py",
        "python recipes/ladder.py --ladder recipes/ladders/none.yaml",
    ]
    lines += [
        "accelerate launch recipes/ablate.py --config accelerate_configs/fp8.yaml",
        "python recipes/fit.py --mem 1",
    ]
    assert all(problems(line, known) for line in lines)
    assert sum(len(commands(path.read_text(encoding="utf-8"))) for path in PAGES) > 30 and len(known) >= 6


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), target
        heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads]


def test_every_section_of_figures_has_its_place_and_every_place_its_figures():
    places = {
        (name, marker)
        for name in NAMES
        for marker in re.findall(r"^<!-- (\w[\w ]*) -->$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    }
    sections = [section for one in figures.FIGURES.values() for section in one.sections]
    assert places == {(str(s.page.relative_to(ROOT)), s.name) for s in sections} | {(v, k) for k, v in OWN.items()}


def test_the_formats_of_the_lesson_are_what_the_command_prints():
    made = subprocess.run([sys.executable, "recipes/formats.py"], capture_output=True, text=True, check=True, cwd=ROOT)
    lesson = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    section = lesson.partition("<!-- formats -->\n")[2].partition("<!-- /formats -->")[0]
    assert section.partition("\n\n(")[0] == f"```text\n{made.stdout.rstrip()}\n```"


def test_a_ladder_of_the_pages_is_one(tmp_path):
    from rungwise.ladder.ladder_file import read_rungs

    text = (ROOT / "recipes" / "ladders" / "README.md").read_text(encoding="utf-8")
    [ladder] = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    path = tmp_path / "own.yaml"
    path.write_text(ladder, encoding="utf-8")
    assert len(read_rungs(str(path), [], None)) == 2
    # Each ladder that ships has its question, or its answer in the lesson.
    shipped = {path.stem for path in Path(ROOT, "recipes", "ladders").glob("*.yaml")}
    assert shipped == figures.FIGURES.keys() & shipped
