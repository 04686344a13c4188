"""Sections of Markdown files that commands write: their place, and the line that says where their figures are from."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "accelerate")


def write_section(path: Path, name: str, section: str) -> None:
    """Puts the section between the two markers of its name in a Markdown file.

    Raises:
        ValueError: the file has no such markers.
    """
    text = path.read_text(encoding="utf-8")
    new, count = re.subn(
        rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
        lambda match: f"{match[1]}{section}\n{match[2]}",
        text,
        flags=re.DOTALL,
    )
    if not count:
        raise ValueError(f"{path} has no place for the table; add the lines <!-- {name} --> and <!-- /{name} -->")
    path.write_text(new, encoding="utf-8")


def source(command: str, environment: Mapping[str, Any], seconds: float | None) -> str:
    """The command, how long it took and on what, the versions and the date, from `environment.describe`."""
    device = environment.get("device_name")
    if environment.get("device") == "cpu":
        hardware = " and ".join(environment["native_precision"])
        device = f"{environment['cores']} cores of {device} (products in hardware: {hardware})"
    packages = ", ".join(f"{name} {environment.get(name)}" for name in PACKAGES)
    date = str(environment.get("date"))[:10]
    took = "" if seconds is None else f" in {seconds // 60:.0f} min {seconds % 60:.0f} s"
    return f"(`{command}`{took} on {device}; {packages}; {date})"
