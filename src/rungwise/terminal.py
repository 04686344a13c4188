"""Terminals and logs that cannot show every character: ASCII, Windows' code pages."""

import codecs
import sys

# What is printed and is not ASCII, and what stands for it where it cannot be shown.
NEAREST = {"≈": "~", "–": "-", "→": "->"}


def print_anything() -> None:
    """Lets no character end a command: what a stream's encoding lacks is shown by its nearest in ASCII, or as `?`."""
    codecs.register_error("nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="nearest")


def _nearest(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(NEAREST.get(character, "?") for character in error.object[error.start : error.end]), error.end
