"""The settings of a call, and everything that is wrong with them, before anything is built."""

import dataclasses
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import imports
from ..errors import SettingsError
from ..settings.cli import read_flags
from ..settings.fields import FIELDS, OWN, Settings
from ..settings.parse import parse
from ..terminal import print_anything
from .refusal import exit_on_errors

if TYPE_CHECKING:
    from ..data.opened import Inputs, Opening

LATER = "the model and the data are looked at when the flags are right"


def check(
    argv: Sequence[str],
    environ: Mapping[str, str] | None = None,
    description: str | None = None,
    own: Collection[str] = (),
    opening: "Opening | None" = None,
    engine: str = "rungwise",
) -> tuple[Settings, list[str], "Inputs"]:
    """The settings of a call, everything that is wrong with it, and what was opened to find that.

    Args:
        argv: the arguments after the script's name.
        environ: the environment the launcher left [os.environ].
        description: the text above the flags in `--help`.
        own: groups of flags that the script decides itself: none of them would act, so they are refused.
        opening: what was opened before, for another call [opens anew].
        engine: whose loop trains.
    """
    # With PyTorch and Transformers, which take seconds to import.
    with imports.kept():
        from .. import techniques, tracking
        from ..data.opened import Inputs, Opening, open_data
        from ..model import model as models
        from . import checkpoint, eager_run, run  # noqa: F401 (the rest of what a run needs)

    settings, errors = _parse(argv, environ, description, own, engine)
    opening, inputs = opening or Opening(), Inputs()

    def check_model(settings: Settings) -> list[str]:
        found = models.validate(settings, opening.config)
        inputs.config = None if found else opening.config(settings)
        return found

    def check_data(settings: Settings) -> list[str]:
        inputs.data, found = open_data(settings, opening)
        return found

    for part, check_part in (
        ("model", check_model),
        ("techniques", techniques.validate),
        ("output", checkpoint.validate),
        ("data", check_data),
        ("output", tracking.validate),
        ("techniques", eager_run.validate),
    ):
        errors += check_part(settings) if part not in own else []
    return settings, errors, inputs


def configure(
    argv: Sequence[str] | None = None,
    description: str | None = None,
    own: Collection[str] = (),
    engine: str = "rungwise",
) -> tuple[Settings, "Inputs"]:
    """The settings of this call, and the model's config, the tokenizer and the texts that they name, opened.

    Exits with code 2 and one message if anything is wrong with them. A flag that cannot be read is answered at once,
    with all that can be told without PyTorch.

    Args:
        argv: the arguments after the script's name [sys.argv's].
        description: the text above the flags in `--help`.
        own: groups of flags, as `--help` names them, that the script decides itself; they are refused, and nothing of
            theirs is opened.
        engine: whose loop trains.
    """
    print_anything()
    argv = sys.argv[1:] if argv is None else argv
    with exit_on_errors():
        unreadable: list[str] = []
        read_flags(argv, unreadable, description)
        if unreadable:
            raise SettingsError(_parse(argv, None, description, own, engine)[1], LATER)
        settings, errors, inputs = check(argv, description=description, own=own, engine=engine)
        if errors:
            raise SettingsError(errors)
    return settings, inputs


def build_datasets(settings: Settings, inputs: "Inputs") -> tuple[Any, Any]:
    """The rows to train on and those to evaluate on, if any. Exits with code 2 and a message if there are none."""
    from ..data import loader

    with exit_on_errors():
        return loader.build_datasets(settings, inputs)


def _parse(
    argv: Sequence[str],
    environ: Mapping[str, str] | None,
    description: str | None,
    own: Collection[str],
    engine: str,
) -> tuple[Settings, list[str]]:
    """The settings, without those that the script decides itself, and what is wrong with the flags and the config."""
    settings, errors = parse(argv, environ, description, engine)
    names = [name for name, field in FIELDS.items() if field.metadata["group"] in own]
    for name in (name for name in names if settings.origins[name] == "flag"):
        group = FIELDS[name].metadata["group"]
        errors.append(f"--{name} has no effect: the {group} of this script is its own; drop it")
    values = {name: FIELDS[name].default for name in names}
    return dataclasses.replace(settings, **values, origins=settings.origins | dict.fromkeys(names, OWN)), errors
