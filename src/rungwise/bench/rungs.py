"""Which rungs are compared: those of the ladders, whose flags stand in their files alone."""

from collections.abc import Sequence

from ..errors import SettingsError
from ..ladder.ladder_file import Rung, read_rungs
from ..settings.cli import read_flags
from ..settings.fields import FIELDS, Settings

LADDERS = "recipes/ladders"
# One technique more on each, and all on one device.
DEFAULT = ("fp32", "bf16", "bf16-accum4", "bf16-accum4-ckpt", "bf16-accum4-ckpt-compile")
# Of speed.yaml, by whether bf16 products are faster than fp32's.
FASTEST = {True: "bf16-compile", False: "fp32-compile"}
# Of every rung, whatever is asked for.
UNTIMED = FIELDS["untimed_steps"].default
# What may be asked for: the bare loop knows of no other flag. It builds its model from a config and nothing else, and
# takes the mean of micro-batches of equally many tokens.
SERVED_GROUPS = ("model", "data", "batch", "training")
NOT_SERVED = ("model_name_or_path", "ignore_mismatched_weights", "attn_implementation", "dtype", "trust_remote_code")
NOT_SERVED += ("packing", "streaming")
# The techniques that it has.
BARE = ("gradient_checkpointing", "torch_compile", "optim")
BARE_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused")
OWN = ("max_steps", "untimed_steps", "gradient_accumulation_steps", "sync_each_batch")


def read(extra: Sequence[str], steps: int, bf16_pays: bool) -> tuple[list[Rung], Rung]:
    """The rungs in their order, the last one the fastest here; and the rung of the least memory.

    Args:
        extra: flags for every rung.
        steps: optimizer steps beside the untimed ones.
        bf16_pays: whether products are faster in bf16.

    Raises:
        SettingsError: a flag is wrong, or is not one that all engines serve.
    """
    errors: list[str] = []
    given, _ = read_flags(extra, errors, None)
    errors += [
        f"--{name}: the rungs are compared by engines that do not all serve it; leave it out"
        for name in given
        if FIELDS[name].metadata["group"] not in SERVED_GROUPS or name in (*NOT_SERVED, *OWN)
    ]
    if errors:
        raise SettingsError(errors)
    shared = [*extra, "--report_to", "none"]
    timed = [*shared, "--max_steps", str(UNTIMED + steps)]
    default = _by_name("default", timed)
    fastest = _by_name("speed", timed)[FASTEST[bf16_pays]]
    least = list(_by_name("memory", [*shared, "--max_steps", str(UNTIMED + 1)]).values())[-1]
    return [*(default[name] for name in DEFAULT), fastest], least


def engines(settings: Settings) -> tuple[str, ...]:
    """Those that can train a rung with its techniques, ours first."""
    names = [name for name, field in FIELDS.items() if field.metadata["group"] == "techniques" and name not in BARE]
    bare = all(getattr(settings, name) == FIELDS[name].default for name in names)
    return ("ours", "bare", "trainer") if bare and settings.optim in BARE_OPTIMIZERS else ("ours", "trainer")


def _by_name(ladder: str, flags: Sequence[str]) -> dict[str, Rung]:
    return {rung.name: rung for rung in read_rungs(f"{LADDERS}/{ladder}.yaml", flags, None)}
