"""What techniques ask of a model and what they cost in time, before any run: by a small model, by counted FLOPs."""

import dataclasses
from dataclasses import dataclass

import torch
from transformers import PreTrainedConfig

from ..metrics.flops import ForwardFlops, forward_flops
from ..model.model import build_model, empty_model
from ..model.probe import quiet
from ..model.shrink import shrink
from ..settings.fields import Settings
from . import ADDING_FLOPS, apply_techniques, linear_cross_entropy, lora
from .observe import checkpointable_blocks
from .seen import UnavailableTechnique


@dataclass(frozen=True)
class Costs:
    """What techniques cost with one model and block size.

    Attributes:
        exact: whether FLOPs were counted. Of a model that cannot run without storage nothing but how many blocks it
            has is known: then a block is taken for all of its share of a forward pass, the most it can be, and the
            loss for nothing.
    """

    forward: ForwardFlops
    exact: bool

    def share(self, settings: Settings) -> float:
        """The FLOPs of training that these settings add, as a share of those that the model needs."""
        extra = sum(technique.extra_flops(settings, self.forward) for technique in ADDING_FLOPS)
        return extra / (lora.passes(settings) * self.forward.total)


def costs(settings: Settings, config: PreTrainedConfig) -> Costs:
    """Counts what techniques cost with a model from this config, on rows as these settings have them."""
    found = forward_flops(config, settings.block_size, checkpointable_blocks)
    if found is not None:
        return Costs(found, exact=True)
    blocks = max(1, len(checkpointable_blocks(empty_model(settings, config))))
    return Costs(ForwardFlops(blocks, (1,) * blocks, (0,) * blocks, 0), exact=False)


def why_not(settings: Settings, config: PreTrainedConfig) -> str | None:
    """Why a model from this config cannot be had with the techniques asked for, by itself and by a small one like it.

    None where nothing is known against it: also where no small one can be built.
    """
    if reason := linear_cross_entropy.why_not(settings, config):
        return reason
    with quiet(), torch.random.fork_rng(devices=[]):
        try:
            small = build_model(dataclasses.replace(settings, model_name_or_path=None), shrink(config))
        except Exception:
            # Models and their configs are other people's code, which raises anything.
            return None
        try:
            apply_techniques(small, settings, torch.device("cpu"))
        except UnavailableTechnique as error:
            return str(error)
    return None
