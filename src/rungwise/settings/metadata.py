"""What the rest of the house knows of a setting: data beside its field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .needs import Need


@dataclass(frozen=True)
class Way:
    """One way in which a technique saves memory: what is to be given for it, as `recipes/fit.py` tries it.

    Attributes:
        flags: the settings, by name.
        changes: what it makes of training, where that is another training than without it; such ways come last.
        tried: whether it is tried at all, or is only named where nothing else fits.
    """

    flags: Mapping[str, Any]
    changes: str = ""
    tried: bool = True


def flag(
    default: Any,
    group: str | None,
    text: str,
    choices: Sequence[str] | None = None,
    least: float | None = None,
    most: float | None = None,
    many: bool = False,
    needs: Sequence[Need] = (),
    off: Any = None,
    label: Callable[[Any], str] | None = None,
    identity: bool = True,
    saves_memory: str | None = None,
    variables: Mapping[str, str] | None = None,
    ways: Sequence[Way] = (),
) -> Any:
    """A field, and all that the rest of the house knows of it.

    Args:
        default: what it is where nobody says anything.
        group: of the flag in `--help`; None for a field that is no flag.
        text: of the flag in `--help`.
        choices: the values that it may have.
        least: the smallest number that it may be.
        most: the largest.
        many: it is a list, with commas between its entries.
        needs: all that must hold for it to act.
        off: a value, beside a flag's own default of true or false, that asks for nothing and so needs nothing.
        label: its part of the name of a run that was given none, made from the settings; "" for no part.
        identity: whether two rungs that differ in it are different rungs; it may not be where a run is put.
        saves_memory: what a run that is out of memory is told of it.
        variables: by the tracker, the environment variable that goes before the default.
        ways: in which it saves memory, those that cost the least time first.
    """
    known = {"choices": choices, "least": least, "most": most, "many": many, "needs": tuple(needs), "off": off}
    known |= {"label": label, "identity": identity, "saves_memory": saves_memory, "ways": tuple(ways)}
    return field(default=default, metadata={"group": group, "help": text, "variables": variables or {}, **known})


def derived(default: Any, text: str, **known: Any) -> Any:
    """A field that follows from others, from the config or from the launcher; see `flag`."""
    return flag(default, None, text, **known)
