"""The bare loop stays bare: short, and with nothing of this package in it."""

import ast
from pathlib import Path

from rungwise.bench import bare

TREE = ast.parse(Path(bare.__file__).read_text(encoding="utf-8"))
MOST_LINES = 30


def test_it_imports_nothing_of_this_package():
    modules = {alias.name for node in ast.walk(TREE) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom)]
    assert all(node.level == 0 for node in froms)
    packages = {name.partition(".")[0] for name in modules | {node.module for node in froms}}
    assert packages == {"collections", "dataclasses", "typing", "torch", "transformers"}


def test_it_is_some_thirty_lines():
    """Of code: what builds and what trains, without signatures and docstrings."""
    functions = [node for node in TREE.body if isinstance(node, ast.FunctionDef)]
    bodies = [function.body[1:] for function in functions]
    assert sum(body[-1].end_lineno - body[0].lineno + 1 for body in bodies) <= MOST_LINES
