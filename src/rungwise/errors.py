"""One message for everything that is wrong with a call."""

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

# A `SettingsError` in a log, indented as it may be; group 1 holds its errors.
REFUSAL = r"\d+ problems? with this call:\n((?: +- .*\n?)+)"


class SettingsError(ValueError):
    """The settings of a run cannot be used. The message lists every problem, each with its remedy, and a last word."""

    def __init__(self, errors: Iterable[str], last: str | None = None):
        self.errors = list(errors)
        count = len(self.errors)
        head = "1 problem with this call:" if count == 1 else f"{count} problems with this call:"
        lines = [head, *(f"  - {problem}" for problem in self.errors), *([f"({last})"] if last else [])]
        super().__init__("\n".join(lines))


def closest(name: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' for the known name nearest to `name`, or '' if none is near."""
    matches = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {matches[0]}?)" if matches else ""


def no_folder(folder: str) -> str | None:
    """Why nothing can be written into a folder, which need not be there yet, with the remedy; None if it can."""
    places = (Path(folder), *Path(folder).parents)
    # Not by `Path.exists`, which raises over a name that is too long.
    if any(os.path.isfile(place) for place in places):  # noqa: PTH113
        return "a file stands in the way; name a folder"
    there = next(place for place in places if os.path.exists(place))  # noqa: PTH110
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written to; name another folder"


def closest_file(path: str, *folders: str) -> str:
    """' (did you mean X?)' for the YAML file nearest to the name of one that is not there, or '' if none is near.

    Looks beside it and in `folders`; another suffix is as near as can be.
    """
    places = dict.fromkeys([Path(path).parent, *map(Path, folders)])
    files = [file for place in places for file in sorted(place.glob("*")) if file.suffix in (".yaml", ".yml", ".json")]
    same = [file for file in files if file.stem == Path(path).stem]
    names = difflib.get_close_matches(Path(path).name, [file.name for file in files], n=1)
    near = same or [file for file in files if file.name in names]
    return f" (did you mean {near[0]}?)" if near else ""
