"""The structure of the package: chapters, imports that point one way, small modules, techniques in one place each."""

import ast
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from harness import ROOT

PACKAGE = ROOT / "src" / "rungwise"
# From the foundation up: a chapter imports itself and those before it.
CHAPTERS = (
    ("errors", "imports", "signals", "terminal", "redact"),
    ("settings",),
    ("result_file", "device", "float32", "threads", "environment"),
    ("report",),
    ("model",),
    ("data",),
    ("metrics",),
    ("loop",),
    ("techniques",),
    ("forecast",),
    ("tracking",),
    ("run",),
    ("trainer",),
    ("ladder",),
    ("fit",),
    ("families",),
    ("bench",),
)
MOST_FILES_AT_THE_TOP = 14
MOST_LINES = 250
# Where a technique's flag may be named: its field, its file, the reader of the Accelerate file, the launcher, its
# claims, and where another technique or the model has to know.
MOST_PLACES = 6
FLAGS = ("gradient_checkpointing", "fsdp", "use_peft", "optim")


def modules():
    """Each module's dotted name inside the package, and its file."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name, path, known):
    """The modules of the package that a module imports, inside functions, too."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = [part for part in package[: len(package) - node.level + 1] if part]
        target = ".".join([*base, *(node.module.split(".") if node.module else [])])
        for alias in node.names:
            inner = f"{target}.{alias.name}".lstrip(".")
            found.add(inner if inner in known else target)
    return found - {name}


@pytest.fixture(scope="module")
def graph():
    known = modules()
    return {name: imports_of(name, path, known) for name, path in known.items()}


def test_no_module_imports_itself_by_way_of_others(graph):
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_imports_point_one_way(graph):
    floor = {chapter: n for n, level in enumerate(CHAPTERS) for chapter in level}
    unknown = {name.split(".")[0] for name in graph if name} - floor.keys()
    assert not unknown, f"which chapter do these belong to: {sorted(unknown)}?"
    upward = [
        f"{name} imports {target}"
        for name, targets in graph.items()
        for target in targets
        if name and target and floor[target.split(".")[0]] > floor[name.split(".")[0]]
    ]
    assert not upward


def test_chapters_do_not_grow_out_of_their_rooms():
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_FILES_AT_THE_TOP
    long = {
        name: count for name, path in modules().items() if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert not long


@pytest.mark.parametrize("flag", FLAGS)
def test_a_technique_stands_in_few_places(flag):
    """Imports are left out, and the packages of PyTorch that are called the same, as torch.optim.

    So is the bench, whose bare loop does by itself what a flag asks for.
    """
    word = re.compile(rf"(?<!torch\.)(?<!torch\.distributed\.)\b{flag}\b")
    places = {
        name: found
        for name, path in modules().items()
        if not name.startswith("bench.")
        and (found := [line for line in path.read_text(encoding="utf-8").splitlines() if word.search(line)])
        and any(not re.match(r"\s*(from|import)\b", line) for line in found)
    }
    assert len(places) <= MOST_PLACES, places


def test_tests_mirror_the_package():
    """A test file stands in the folder of the chapter that it is about."""
    chapters = {path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    folders = {path.parent.name for path in Path(__file__).parent.glob("*/test_*.py")}
    assert chapters <= folders | {"__pycache__"}
