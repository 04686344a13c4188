"""Settings that cannot stand together, and settings that were given and would not act."""

from collections.abc import Iterator, Mapping

from .fields import FIELDS, Settings
from .needs import Need


def idle(settings: Settings, origins: Mapping[str, str]) -> Iterator[tuple[str, Need]]:
    """The settings that were given, by a flag or in the config, and would not act; with the first need that fails.

    One that asks for nothing (true or false as it is anyway, or what its field calls off) needs nothing.
    """
    for name, field in FIELDS.items():
        value, off = getattr(settings, name), field.metadata["off"]
        asks = value != off and not (isinstance(value, bool) and value == field.default)
        unmet = next((need for need in field.metadata["needs"] if not need.test(settings)), None)
        if unmet and asks and origins.get(name) in ("flag", settings.config):
            yield name, unmet


def without_effect(name: str, need: Need, settings: Settings, origins: Mapping[str, str]) -> str:
    """The message of a setting that would not act."""
    given = f"--{name}" if origins[name] == "flag" else f"{origins[name]}: {name}"
    return f"{given} has no effect {need.words.format(**settings.as_dict())}"


def conflicts(settings: Settings) -> list[str]:
    """One message for each pair of settings that cannot stand together."""
    return [*_model(settings), *_data(settings), *_techniques(settings), *_steps(settings)]


def _model(settings: Settings) -> Iterator[str]:
    models = [n for n in ("model_name_or_path", "config_name", "model_type") if getattr(settings, n)]
    if len(models) > 1:
        yield f"{' and '.join(f'--{name}' for name in models)} each name a model; give one"
    if settings.dtype != "float32" and settings.mixed_precision != "no":
        yield (
            f"--dtype {settings.dtype} trains in {settings.dtype} throughout, {settings.config} says mixed_precision "
            f"{settings.mixed_precision}, which is autocast over float32 parameters; "
            "use accelerate_configs/fp32.yaml, or drop --dtype"
        )


def _data(settings: Settings) -> Iterator[str]:
    if settings.train_file and settings.dataset_name:
        yield "--train_file and --dataset_name each name the data; give one"


def _techniques(settings: Settings) -> Iterator[str]:
    if (settings.gradient_checkpointing_kwargs or {}).get("use_reentrant") and settings.num_processes > 1:
        yield "use_reentrant: true fails with several processes; leave it out"


def _steps(settings: Settings) -> Iterator[str]:
    if settings.max_steps <= settings.untimed_steps:
        yield (
            f"--max_steps {settings.max_steps} leaves no step to time after --untimed_steps {settings.untimed_steps}; "
            f"use at least {settings.untimed_steps + 10} for a speed"
        )
    if settings.warmup_steps >= settings.max_steps and settings.lr_scheduler_type != "constant":
        yield (
            f"--warmup_steps {settings.warmup_steps}: the run's --max_steps {settings.max_steps} end before the "
            "warm-up, and the learning rate is never reached; lower it"
        )
    parts = settings.gradient_accumulation_steps * settings.num_processes
    rows = settings.global_batch_size
    if rows % parts:
        near = " or ".join(str(size) for size in (rows // parts * parts, -(-rows // parts) * parts) if size)
        processes = f" x {settings.num_processes} processes" if settings.num_processes > 1 else ""
        yield (
            f"--global_batch_size {rows} does not divide by {settings.gradient_accumulation_steps} accumulation steps"
            f"{processes}; {_fewer_processes(settings)}the nearest that do: {near}"
        )


def _fewer_processes(settings: Settings) -> str:
    """The most processes that this global batch divides by, as they are asked for; '' if there is no such number."""
    for count in range(settings.num_processes - 1, 0, -1):
        if settings.global_batch_size % (settings.gradient_accumulation_steps * count) == 0:
            return f"start {count} (--num_processes {count} before the script's name), or take one of "
    return ""
