"""What tests need that the oldest releases do not have which Rungwise runs with."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import pytest
from packaging.version import Version


def needs(why: str, **releases: str) -> pytest.MarkDecorator:
    """Skips a test where a package is older than that, as in needs("its operator", torch="2.13"), with the reason."""
    older = [
        f"{package} {least} ({version(package)} is here)"
        for package, least in releases.items()
        if Version(version(package)) < Version(least)
    ]
    return pytest.mark.skipif(bool(older), reason=f"needs {', '.join(older)}: {why}")


LOSS_IN_CHUNKS = needs("the loss in chunks is an operator of it", torch="2.13")
ROTARY = needs("rotary positions are not counted as a product", transformers="5.16")
RANKS = needs("exchanges of fake tensors", torch="2.13")
# Older releases draw a number for each layer that might be left out, also where none ever is.
NO_IDLE_DRAWS = needs("nothing is drawn where no layer is left out", transformers="5.23")
MUSICGEN = needs("a musicgen of no parts", transformers="5.20")
# Of the releases between the oldest and the pinned none was tried with these.
NEWER_TYPES = needs("gemma4_text and hrm_text are types of it", transformers="5.24")
OLMO2 = needs("a small config of olmo2 is taken", transformers="5.24")
JAMBA = needs("jamba names the types of its layers", transformers="5.24")
KEPT_BY_BLOCKS = needs("a checkpointed block's input is kept inside it, not by what calls it", torch="2.13")
EVERY_N_LAYERS = needs("every_n_layers of gradient checkpointing", transformers="5.16")


def marked(cases: Iterable[Any], marks: Mapping[str, pytest.MarkDecorator]) -> list[Any]:
    """Cases of a test, each with the marks of the words that stand in its name."""
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else [case]),
            marks=[mark for word, mark in marks.items() if word in str(case)],
        )
        for case in cases
    ]
