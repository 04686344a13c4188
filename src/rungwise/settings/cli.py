"""The command line: one flag for each field of `Settings` that has a group."""

import argparse
import json
import re
import types
import typing
from collections.abc import Sequence
from typing import Any

from ..errors import closest
from .choices import CHECKPOINTING_KWARGS
from .fields import FIELDS, HINTS

# The largest number of anything that is counted: no machine gets through so many rows, tokens or steps.
LARGEST = 2**31 - 1
# Bytes of a file's or a folder's name, and of a whole path, that every system takes.
LONGEST_NAME, LONGEST_PATH = 255, 1023


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Shows a value as needed where leaving it out is an error of ours, not argparse's."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return str(action.metavar) if action.const == "" else super()._format_args(action, default_metavar)


class _Parser(argparse.ArgumentParser):
    """Collects what is wrong instead of exiting at the first error."""

    def __init__(self, errors: list[str], description: str | None) -> None:
        super().__init__(
            description=description,
            usage="%(prog)s --config FILE [flags]",
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        self.errors = errors

    def error(self, message: str) -> typing.NoReturn:
        raise argparse.ArgumentError(None, message)


def read_flags(
    argv: Sequence[str], errors: list[str], description: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of the flags given and where they came from; what is wrong with them goes to `errors`."""
    parser = _Parser(errors, description)
    groups: dict[str, Any] = {}
    flags = {name: f for name, f in FIELDS.items() if f.metadata["group"]}
    for name, f in flags.items():
        group = f.metadata["group"]
        groups.setdefault(group, parser.add_argument_group(group))
        known = f.metadata["choices"]
        default = "" if f.default in (None, "", False) or "[" in f.metadata["help"] else f" [{f.default}]"
        groups[group].add_argument(
            f"--{name}",
            nargs="?",
            const=True if HINTS[name] is bool else "",
            default=argparse.SUPPRESS,
            metavar="{" + ",".join(known) + "}" if known else _metavar(name),
            help=(f.metadata["help"] + default).replace("%", "%%"),
        )
    try:
        found, unknown = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        errors.append(f"{error}; see --help")
        found, unknown = argparse.Namespace(), []
    for argument in _with_values(unknown):
        near = closest(re.split("[= ]", argument)[0], [f"--{name}" for name in flags])
        errors.append(f"unknown argument {argument}{near}; flags are written in full, see --help")
    values, origins = {}, {}
    for name, text in vars(found).items():
        value = checked(name, _convert(name, text, errors), f"--{name}", errors)
        if value is not None:
            values[name], origins[name] = value, "flag"
        elif name == "config":
            values[name] = ""
    return values, origins


def _with_values(unknown: list[str]) -> list[str]:
    """Joins each unknown flag and the value behind it, so that one mistake is one problem."""
    joined: list[str] = []
    for argument in unknown:
        if joined and joined[-1].startswith("--") and " " not in joined[-1] and not argument.startswith("-"):
            joined[-1] += f" {argument}"
        else:
            joined.append(argument)
    return joined


def _metavar(name: str) -> str:
    if name in ("config", "train_file", "validation_file"):
        return "FILE"
    kind = plain_type(HINTS[name])
    return {bool: "BOOL", int: "N", float: "X", str: "TEXT"}.get(kind, "JSON")


def plain_type(hint: Any) -> Any:
    """Of a field's annotation the type behind an optional one; dict for any mapping."""
    if isinstance(hint, types.UnionType):
        hint = next(option for option in typing.get_args(hint) if option is not type(None))
    return typing.get_origin(hint) or hint


def _convert(name: str, text: Any, errors: list[str]) -> Any:
    """The value of a flag's text, or None and a problem."""
    kind = plain_type(HINTS[name])
    if text == "" or text is None:
        errors.append(f"--{name}: needs a value")
        return None
    if isinstance(text, bool):
        return text
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        errors.append(f"--{name}: must be true or false, not {text!r}")
        return None
    if kind is dict:
        return _json_mapping(name, text, errors)
    try:
        return kind(text)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        errors.append(f"--{name}: must be {wanted}, not {text!r}")
        return None


def _json_mapping(name: str, text: str, errors: list[str]) -> dict[str, Any] | None:
    example = '\'{"use_reentrant": false, "every_n_layers": 2}\''
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        errors.append(f"--{name}: must be a JSON object such as {example}, not {text!r}")
        return None
    for key, given in value.items():
        wanted = CHECKPOINTING_KWARGS.get(key)
        if wanted is None:
            errors.append(f"--{name}: unknown key {key!r}{closest(key, CHECKPOINTING_KWARGS)}; write {example}")
        elif type(given) is not wanted or (wanted is int and given < 1):
            words = "true or false" if wanted is bool else "a whole number of at least 1"
            errors.append(f"--{name}: {key} must be {words}, not {given!r}")
    return value


def checked(name: str, value: Any, where: str, errors: list[str]) -> Any:
    """`value`, or None and a problem if it is out of the field's range."""
    metadata = FIELDS[name].metadata
    if value is None:
        return None
    choices, least, most = (metadata[key] for key in ("choices", "least", "most"))
    if choices and value not in choices:
        near = closest(str(value), choices)
        errors.append(f"{where}: {value!r} does not exist{near}; use one of {', '.join(choices)}")
        return None
    if most is not None and not least <= value <= most:
        errors.append(f"{where}: must be from {least} to {most}, not {value}")
        return None
    if least is not None and not least <= value < float("inf"):
        errors.append(f"{where}: must be at least {least} and finite, not {value}")
        return None
    if most is None and type(value) is int and value > LARGEST:
        errors.append(f"{where}: must be at most {LARGEST}, not {value}")
        return None
    if isinstance(value, str) and (problem := _no_text(value, metadata["many"])):
        errors.append(f"{where}: {problem}")
        return None
    return value


def _no_text(value: str, many: bool) -> str | None:
    """Why a text can name nothing, if so: no path and no name in a record."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return f"{value!r} is not UTF-8; rename it"
    if "\0" in value:
        return f"{value!r} has a NUL in it; drop that"
    if not many and (size > LONGEST_PATH or any(len(part.encode()) > LONGEST_NAME for part in value.split("/"))):
        return f"its {size} bytes are too many: names have up to {LONGEST_NAME}, paths {LONGEST_PATH}; shorten it"
    return None
