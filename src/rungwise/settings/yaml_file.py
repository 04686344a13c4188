"""Reads YAML as data: no tag makes an object, and no file makes a process hang, however it is written."""

import errno
import stat
from pathlib import Path
from typing import Any

import yaml

# More values than any file has that a person writes; aliases of aliases make billions of a few lines.
MOST_VALUES = 10_000


def read_yaml(path: str) -> Any:
    """What stands in a YAML file.

    Raises:
        OSError: it is not there, or cannot be read.
        ValueError: it is no YAML, with the reason in words.
    """
    file = Path(path)
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        # A pipe or a device may give nothing, or no end.
        raise OSError(errno.EINVAL, "no regular file")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # Dates and numbers that there are not raise plain ValueErrors.
        mark = getattr(error, "problem_mark", None)
        raise ValueError(f"not YAML{f' near line {mark.line + 1}' if mark else ''}") from error
    todo, seen = [content], 0
    while todo:
        value = todo.pop()
        seen += 1
        if seen > MOST_VALUES:
            raise ValueError(f"over {MOST_VALUES:,} values, aliases written out")
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value
        elif not isinstance(value, str | int | float | None):
            # Dates, bytes and sets: no flag and no key takes one.
            raise ValueError(f"holds {str(value)!r}, which YAML reads as {type(value).__name__}; write it in quotes")
    return content
