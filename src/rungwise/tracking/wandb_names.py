"""What W&B would refuse of a run's names, said before the run begins."""

import os

from ..errors import closest
from ..settings.fields import Settings

# What W&B takes: the words of WANDB_MODE, and of names the length and what a project's or a run's id must not have.
MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")
LONGEST_NAME = 128
NOT_IN_PROJECT = "/\\#?%:"
NOT_IN_ID = ":;,#?/'"


def problems(settings: Settings) -> list[str]:
    """What W&B would refuse when the run begins: modes that there are not, names that it does not take."""
    found = []
    mode, run_id = os.environ.get("WANDB_MODE"), os.environ.get("WANDB_RUN_ID", "")
    if mode and mode not in MODES:
        found.append(f"WANDB_MODE={mode}: no such mode{closest(mode, MODES)}; use online, offline or disabled")
    project = _said_by("project", settings)
    if wrong := sorted({*settings.project} & {*NOT_IN_PROJECT}):
        found.append(f"{project}: W&B takes no {' '.join(wrong)} in a project's name; use letters, digits, - and _")
    if any(character in NOT_IN_ID for character in run_id) or run_id != run_id.strip():
        found.append(f"WANDB_RUN_ID={run_id!r}: W&B takes no blanks around a run's id and no {NOT_IN_ID} in it")
    names = {project: settings.project, _said_by("group", settings): settings.group, **run_name(settings)}
    for said, name in names.items():
        if name and len(name) > LONGEST_NAME:
            found.append(f"{said}: W&B takes names of {LONGEST_NAME} characters, this has {len(name)}; shorten it")
    return found


def _said_by(name: str, settings: Settings) -> str:
    """A setting as the person gave it: by a flag or in a variable."""
    origin, value = settings.origins.get(name, "default"), getattr(settings, name)
    return f"{origin}={value}" if origin.startswith("WANDB_") else f"--{name} {value}"


def run_name(settings: Settings) -> dict[str, str]:
    """Who names the run in W&B, and the name. A name that we made ourselves gives way to the person's variable."""
    named = os.environ.get("WANDB_NAME")
    if named and settings.origins.get("run_name") == "derived":
        return {f"WANDB_NAME={named}": named}
    return {f"--run_name {settings.run_name}": settings.run_name}
