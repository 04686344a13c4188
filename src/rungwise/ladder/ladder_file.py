"""Ladder files: lists of rungs, each a name and the flags that differ."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SettingsError, closest, closest_file
from ..settings import accelerate_yaml as config_file
from ..settings.choices import ENGINES
from ..settings.cli import read_flags
from ..settings.conflicts import idle, without_effect
from ..settings.fields import FIELDS
from ..settings.parse import parse
from ..settings.yaml_file import read_yaml

FILE_KEYS = ("flags", "rungs")
ONE_PROCESS = "accelerate_configs/one_process.yaml"
_REMEDIES = (
    "name a distributed_type, and put gradient_accumulation_steps below deepspeed_config, as in bf16_accum4.yaml"
)
# What the ladder itself decides for each rung.
OWN_FLAGS = ("run_name", "group", "output_dir")
# Beside a rung's flags: whose loop trains, which is another script.
ENGINE = "engine"


@dataclass(frozen=True)
class Rung:
    """A name, the arguments of `ablate.py` that make it, its folder aside, and who starts and trains it.

    Attributes:
        launcher: what the launcher is told [what the rung's Accelerate file asks for].
        engine: whose loop trains.
    """

    name: str
    arguments: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    engine: str = "rungwise"

    def command(self, folder: Path | None = None) -> list[str]:
        """What a person would type. Port 0 lets Accelerate find a free one, should it need one.

        The launcher is always given a file: without one it reads the user's default file, or takes all GPUs.
        """
        place = ["--output_dir", str(folder)] if folder else []
        file = ONE_PROCESS if self._stated is None else self.config
        launcher = self.launcher or ("--main_process_port", "0", "--config_file", file)
        return ["accelerate", "launch", *launcher, ENGINES[self.engine], *self.arguments, *place]

    @property
    def config(self) -> str:
        """The rung's Accelerate file."""
        return self.arguments[self.arguments.index("--config") + 1]

    @property
    def processes(self) -> int:
        """How many processes the launcher is told to start, else its file asks for; one, if neither says."""
        if "--num_processes" in self.launcher:
            return int(self.launcher[self.launcher.index("--num_processes") + 1])
        return self._stated or 1

    @property
    def _stated(self) -> int | None:
        return config_file.read(self.config)[0].get("num_processes")

    def launch_errors(self) -> list[str]:
        """What keeps Accelerate's launcher from starting as many processes as the file asks for."""
        if self._stated is None:
            return []
        from accelerate.commands.config.config_args import load_config_from_file
        from accelerate.utils import DistributedType

        try:
            file = load_config_from_file(self.config)
        except (ValueError, TypeError) as error:
            return [f"{self.config}: Accelerate's launcher does not take it ({error}); {_REMEDIES}"]
        if file.num_machines > 1:
            return [
                f"{self.config}: num_machines is {file.num_machines}; a ladder's rungs run on one machine, remove it"
            ]
        if self.processes > 1 and file.distributed_type in (DistributedType.NO, DistributedType.MULTI_CPU):
            return [
                f"{self.config}: Accelerate's launcher starts one process for distributed_type "
                f"{file.distributed_type.value}, not {self.processes}; write MULTI_GPU (on CPUs, too) or FSDP"
            ]
        return []


def read_rungs(path: str, extra: Sequence[str], group: str | None) -> list[Rung]:
    """The rungs of a ladder file, with flags that go to each of them.

    A flag that is not a rung's own goes to the rungs on which it acts: `torch_compile_mode` to those that compile.

    Args:
        path: YAML with `rungs`, a mapping of names to the flags that differ, and `flags`, those that all share.
        extra: flags from the command line for every rung; they go before the file's shared ones.
        group: the tracker's group of all rungs.

    Raises:
        SettingsError: with all that is wrong with the file and the extra flags, those among it that act on no rung.
    """
    errors: list[str] = []
    shared, rungs = _load(path, errors)
    engines = {rung: {**shared, **flags}.get(ENGINE, "rungwise") for rung, flags in rungs.items()}
    shared, rungs = _without_engine(shared), {rung: _without_engine(flags) for rung, flags in rungs.items()}
    # What each rung sets by its flags or by its config, if these can be read.
    known = {} if errors else rungs
    given, _ = read_flags(extra, errors, None)
    resolved = {rung: parse(typed({**shared, **flags}), {})[0] for rung, flags in known.items()} if given else {}
    for name in given:
        differs = len({str(getattr(settings, name)) for settings in resolved.values()}) > 1
        if name in OWN_FLAGS or differs:
            why = "the ladder makes it itself" if name in OWN_FLAGS else "the rungs differ in it"
            errors.append(f"--{name} cannot be given to every rung: {why}; change {path}, or a copy of it")
    if errors:
        raise SettingsError(errors)
    common = {**shared, **given}
    configs = {rung: {**common, **flags}.get("config") for rung, flags in rungs.items()}
    bare = [rung for rung, config in configs.items() if not (config and isinstance(config, str))]
    if bare:
        raise SettingsError(
            f"--ladder {path}: {rung}: names no config; write config: accelerate_configs/fp32.yaml, or another"
            for rung in bare
        )
    made, dropped = [], []
    for rung, flags in rungs.items():
        named = {**common, **flags, "run_name": rung, "group": group}
        acting, why = _acting(named, {*common, "group"} - {*flags}, engines[rung])
        made.append(Rung(rung, tuple(typed(acting)), engine=engines[rung]))
        dropped.append(why)
    nowhere = [name for name in common if all(name in why for why in dropped)]
    if nowhere:
        raise SettingsError(f"on no rung of {path}: {dropped[0][name]}" for name in nowhere)
    return made


def _without_engine(flags: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if name != ENGINE}


def _acting(flags: Mapping[str, Any], shared: Collection[str], engine: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A rung's flags without those shared ones that would not act on it, and why each of these would not."""
    acting, dropped = dict(flags), {}
    environ = {"WORLD_SIZE": str(config_file.read(str(flags.get("config")))[0].get("num_processes", 1))}
    while True:
        settings = parse(typed(acting), environ, engine=engine)[0]
        found = {
            name: without_effect(name, need, settings, settings.origins)
            for name, need in idle(settings, settings.origins)
            if name in acting and name in shared
        }
        if not found:
            return acting, dropped
        dropped |= found
        acting = {name: value for name, value in acting.items() if name not in found}


def _load(path: str, errors: list[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The shared flags and the rungs' own, both checked for names; values are checked with each rung's settings."""
    try:
        content = read_yaml(path)
    except FileNotFoundError:
        shipped = ", ".join(str(file) for file in sorted(Path("recipes/ladders").glob("*.yaml")))
        near = closest_file(path, "recipes/ladders")
        errors.append(f"--ladder {path}: no such file{near}; shipped here: {shipped}")
        return {}, {}
    except OSError as error:
        errors.append(f"--ladder {path}: cannot be read ({error.strerror}); give the path of a ladder's YAML file")
        return {}, {}
    except ValueError as error:
        errors.append(f"--ladder {path}: {error}; write `flags:` and `rungs:`, as in recipes/ladders/default.yaml")
        return {}, {}
    rungs = content.get("rungs") if isinstance(content, dict) else None
    if not isinstance(rungs, dict) or not rungs:
        errors.append(f"--ladder {path}: needs `rungs:`, names with the flags that differ, as in default.yaml")
        return {}, {}
    for key in content:
        if key not in FILE_KEYS:
            errors.append(
                f"--ladder {path}: unknown key {key!r}{closest(str(key), FILE_KEYS)}; it takes flags and rungs"
            )
    groups = {"flags": content.get("flags") or {}, **{name: flags or {} for name, flags in rungs.items()}}
    for group, flags in groups.items():
        if (
            not isinstance(group, str)
            or not re.fullmatch(r"\w[\w.+=-]*", group)
            or (group == "flags" and group in rungs)
        ):
            errors.append(
                f"--ladder {path}: rung {group!r}: a name must be text, not `flags`, and name a folder "
                "(letters, digits and . _ - + =)"
            )
        if not isinstance(flags, dict):
            errors.append(f"--ladder {path}: {group}: must be `flag: value` lines, not {flags!r}")
            groups[group] = {}
            continue
        if (engine := flags.get(ENGINE, "rungwise")) not in tuple(ENGINES):
            errors.append(f"--ladder {path}: {group}: no engine {engine!r}; use {' or '.join(ENGINES)}")
        for flag in _without_engine(flags):
            if flag not in FIELDS or FIELDS[flag].metadata["group"] is None or flag in OWN_FLAGS:
                errors.append(f"--ladder {path}: {group}: no flag {flag!r}{closest(str(flag), FIELDS)}")
    return groups.pop("flags"), groups


def typed(flags: Mapping[str, Any]) -> list[str]:
    """Flags as a person types them."""
    words = []
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None:
            words += [f"--{name}", _text(value, FIELDS[name].metadata["many"])]
    return words


def _text(value: Any, many: bool) -> str:
    """A value as it is typed; a list and a mapping with commas, where the flag takes many."""
    if many and isinstance(value, list):
        return ",".join(_text(entry, many=False) for entry in value)
    if many and isinstance(value, dict):
        return ",".join(f"{key}={_text(entry, many=False)}" for key, entry in value.items())
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
