"""The settings of a call, and everything that is wrong with them, before anything is built."""

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .. import techniques, tracking
from ..data import loader as data
from ..errors import SettingsError
from ..model import model as models
from ..settings.fields import FIELDS, OWN, Settings
from ..settings.parse import parse
from ..terminal import print_anything
from . import checkpoint, eager_run
from .rank_errors import exit_on_problems


def check(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    description: str | None = None,
    own: Collection[str] = (),
) -> tuple[Settings, list[str]]:
    """The settings of a call and everything that is wrong with it, found before anything is built.

    Args:
        argv: the arguments after the script's name.
        environ: the environment the launcher left [os.environ].
        description: the text above the flags in `--help`.
        own: groups of flags that the script decides itself: none of them would act, so they are refused.
    """
    settings, problems = parse(argv, environ, description)
    names = [name for name, field in FIELDS.items() if field.metadata["group"] in own]
    for name in (name for name in names if settings.origins[name] == "flag"):
        group = FIELDS[name].metadata["group"]
        problems.append(f"--{name} has no effect: the {group} of this script is its own; drop it")
    values = {name: FIELDS[name].default for name in names}
    settings = dataclasses.replace(settings, **values, origins=settings.origins | dict.fromkeys(names, OWN))
    for part, check_part in (
        ("model", models.problems),
        ("techniques", techniques.validate),
        ("output", checkpoint.problems),
        ("data", data.problems),
        ("output", tracking.problems),
        ("techniques", eager_run.problems),
    ):
        problems += check_part(settings) if part not in own else []
    return settings, problems


def configure(
    argv: Sequence[str] | None = None, description: str | None = None, own: Collection[str] = ()
) -> Settings:
    """The settings of this call. Exits with code 2 and one message if anything is wrong with them.

    Args:
        argv: the arguments after the script's name [sys.argv's].
        description: the text above the flags in `--help`.
        own: groups of flags, as `--help` names them, that the script decides itself; they are refused.
    """
    print_anything()
    settings, problems = check(sys.argv[1:] if argv is None else argv, description=description, own=own)
    with exit_on_problems():
        if problems:
            raise SettingsError(problems)
    return settings


def build_datasets(settings: Settings) -> tuple[Any, Any]:
    """The rows to train on and those to evaluate on, if any. Exits with code 2 and a message if there are none."""
    with exit_on_problems():
        return data.build_datasets(settings)
