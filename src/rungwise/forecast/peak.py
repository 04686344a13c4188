"""Peak memory of a run, whose it is, and activations by module, without running it and without its memory."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from ..device import device_type
from ..metrics.memory import MIB
from ..model.model import empty_model
from ..settings.fields import Settings
from ..techniques import lora
from ..techniques.fsdp import plugin as sharding
from ..techniques.optimizer import keeps_quantized
from . import ranks, scratch
from .depth import Pattern, find_pattern, kinds, shortened
from .devices import CPU, Device, cuda_device
from .extension import Extension, Moment
from .trace import batch_bytes, eager, trace
from .tracker import REST

# Of layers that repeat, the first and the last have neighbours of another kind. Gathered ahead of time, and exchanged
# behind it, a neighbour's parameters and gradients are held as well, so that the next ones differ from those between.
EDGE, SHARDED_EDGE = 1, 2
# Micro-batches after the second are like it; of several ranks the last one alone exchanges gradients.
MICRO_BATCHES, RANKS_MICRO_BATCHES = 2, 3
# As a part of the peak: what is less than this may be missing from a forecast without a word.
NEGLIGIBLE = 0.002


class NoForecast(RuntimeError):
    """There is no forecast for these settings, and why."""


@dataclass(frozen=True)
class Forecast:
    """Peak memory of one process, of several the first, in MiB.

    Attributes:
        device: what it is a forecast for: cpu or cuda.
        note: what it has to be called where it is shown, if its method has not been measured on that device, or if
            it leaves something out.
        peak_mib: as `MemoryMeter` measures it: the higher one of `building_mib` and `step_mib`.
        building_mib: the peak until the model is built and prepared. On the CPU a rank that is to keep a shard holds
            the whole model then; for CUDA it is built on the host, and this is 0.
        step_mib: the peak of a step.
        owners: parameters, gradients, optimizer_state, buffers, activations, as it defines them: they add up to the
            peak.
        activations: by module, the largest first, what is held at the moment of the peak beside parameters, gradients,
            optimizer state and buffers. Layers count together, under `*`. They add up to the activations above and
            those gradients that are not there yet at that moment; on CUDA but for what gradients are rounded up by.
        traced_layers: how many layers were traced at once, at most.
    """

    device: str
    note: str | None
    peak_mib: float
    building_mib: float
    step_mib: float
    owners: dict[str, float]
    activations: tuple[tuple[str, float], ...]
    traced_layers: int


def forecast(
    settings: Settings,
    config: PreTrainedConfig,
    device: str | None = None,
    capability: tuple[int, int] | None = None,
) -> Forecast:
    """The peak memory of a run with these settings of a model from this config.

    It is that of an eager run, of several processes that of the first; a model that would be loaded is built with
    random weights.

    Args:
        settings: the run's.
        config: the model's.
        device: what it would run on, cpu or cuda, be it here or not [what the settings choose here; the CPU for any
            other].
        capability: the compute capability of a GPU [that of the one here, or else 8.0].

    Raises:
        NoForecast: it cannot be told, and why.
    """
    target = cuda_device(capability) if (device or device_type(settings)) == "cuda" else CPU
    if settings.num_processes == 1 and sharding(settings) is not None:
        raise NoForecast("FSDP2 shards over processes, and there is one")
    if sharding(settings) is not None and keeps_quantized(settings):
        # Tried: shards of torchao's tensors do away with fake ones' memory, and the process breaks.
        raise NoForecast("shards of 8-bit state cannot be traced; a run measures them")
    if settings.num_processes > 1 and torch.distributed.is_initialized():
        raise NoForecast("several ranks are traced in a process that is none of them")
    if settings.num_processes > 1 and not ranks.can_be_traced():
        raise NoForecast(f"several ranks are traced by PyTorch 2.13 or newer, and this is {torch.__version__}")
    micro_batches = settings.gradient_accumulation_steps
    most = MICRO_BATCHES if settings.num_processes == 1 else RANKS_MICRO_BATCHES
    settings = eager(settings, min(micro_batches, most))
    try:
        return _extended(settings, config, target, micro_batches - settings.gradient_accumulation_steps)
    except NoForecast:
        raise
    except Exception as error:
        # Models are other people's code, which raises anything.
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NoForecast(f"{config.model_type} cannot be traced: {words}") from error


def _extended(settings: Settings, config: PreTrainedConfig, device: Device, more_batches: int) -> Forecast:
    """The forecast of a model that is traced at two depths, or at once if its layers repeat in no pattern."""
    layers = kinds(settings, config)
    pattern = find_pattern(layers)
    edge = EDGE if sharding(settings) is None else SHARDED_EDGE
    times = (2 * edge, 2 * edge + 1)
    small = [_short_config(settings, config, layers, pattern, one) for one in times] if pattern else [None]
    if all(small):
        few, more = (trace(settings, one, device) for one in small)
        extension = Extension(few, more, pattern, edge, pattern.times(len(layers)) - times[0])
        if extension.alike and extension.parameters == _parameters(settings, config):
            return _result(extension, settings, device, more_batches)
    whole = trace(settings, config, device)
    return _result(Extension(whole, whole, Pattern(whole.blocks, 1, 0), EDGE, 0), settings, device, more_batches)


def _short_config(
    settings: Settings, config: PreTrainedConfig, layers: list[Hashable], pattern: Pattern, times: int
) -> PreTrainedConfig | None:
    """The config of a model with the pattern so often; None if its layers are not those that were to be kept."""
    kept = pattern.kept(len(layers), times)
    small = shortened(config, kept)
    return small if kinds(settings, small) == [layers[index] for index in kept] else None


def _parameters(settings: Settings, config: PreTrainedConfig) -> int:
    """The parameters of the whole model, adapters included."""
    return sum(p.numel() for p in lora.apply(empty_model(settings, config), settings).parameters())


def _result(extension: Extension, settings: Settings, device: Device, more_batches: int) -> Forecast:
    rows = more_batches * batch_bytes(settings, device)
    building, (highest, beside, note) = extension.building(), _highest(extension)
    step = highest.held + beside + rows
    held = max(building, step)
    owners = {name: extension.owner(name) for name in ("parameters", "gradients", "optimizer_state", "buffers")}
    owners["activations"] = held / MIB - sum(owners.values())
    places = extension.places(highest) if held == step else {}
    for place, size in ((REST, rows), (highest.place, beside)) if places else ():
        places[place] = places.get(place, 0) + size
    known = sorted(((name, size / MIB) for name, size in places.items() if size), key=lambda row: -row[1])
    peaks = (held / MIB, building / MIB, step / MIB)
    return Forecast(device.name, device.note or note, *peaks, owners, tuple(known), extension.traced_layers)


def _highest(extension: Extension) -> tuple[Moment, int, str | None]:
    """The highest moment of a step, what its product takes beside its output, and what has to be said of it."""
    moments = sorted(extension.moments(), key=lambda moment: -moment.held)
    found, beside, note, most = moments[0], 0, None, scratch.most()
    for moment in moments:
        if moment.held + most <= found.held + beside:
            break
        if moment.product is None:
            continue
        taken = scratch.taken(moment.product)
        if taken is None:
            note = scratch.NOT_TRIED if most > NEGLIGIBLE * found.held else note
        elif moment.held + taken > found.held + beside:
            found, beside = moment, taken
    return found, beside, note
