"""Which layers of a model are alike, and a config of fewer of them.

Layers are alike that are built alike and that the config says the same of. Those at the beginning and at the end may
be of their own; the ones between repeat in a pattern, as five that look back over a window and one that sees all.
"""

import copy
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig

from ..model.model import empty_model
from ..settings.fields import Settings
from ..techniques.gradient_checkpointing import every_n_layers
from .trace import blocks_of

# Of a layer's own values those that only say which one it is.
NUMBERS = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx")
# Layers of a pattern, and of their own at either end, at most.
LONGEST, MOST_OWN = 16, 8


@dataclass(frozen=True)
class Pattern:
    """`head` layers, then a pattern of `period` layers so often as it takes, then `tail` layers."""

    head: int
    period: int
    tail: int

    def times(self, depth: int) -> int:
        """How often the pattern is there in a model of so many layers."""
        return (depth - self.head - self.tail) // self.period

    def kept(self, depth: int, times: int) -> list[int]:
        """The layers of a model of so many that are left when the pattern is there less often."""
        return [*range(self.head + times * self.period), *range(depth - self.tail, depth)]


def kinds(settings: Settings, config: PreTrainedConfig) -> list[Hashable]:
    """What tells the layers of a model apart, one value a layer; empty where it has no list of them."""
    blocks = blocks_of(empty_model(settings, config), config)
    every = every_n_layers(settings)
    lists = [value for value in vars(config).values() if _is_per_layer(value, len(blocks))]
    return [
        (_built(block), repr([value[index] for value in lists]), index % every) for index, block in enumerate(blocks)
    ]


def find_pattern(kinds: Sequence[Hashable]) -> Pattern | None:
    """The pattern that the layers repeat with the fewest layers to trace; None if there is none often enough."""
    depth, found = len(kinds), []
    for period in range(1, min(LONGEST, depth) + 1):
        for head in range(MOST_OWN + 1):
            # The last layers that go on with the pattern belong to a tail as well, so that it is there whole times.
            for tail in range(MOST_OWN + period):
                middle = kinds[head : depth - tail]
                whole = len(middle) >= 4 * period and len(middle) % period == 0
                if whole and middle[period:] == middle[:-period]:
                    found.append((head + 3 * period + tail, head, period, tail))
                    break
    return Pattern(*min(found)[1:]) if found else None


def shortened(config: PreTrainedConfig, kept: Sequence[int]) -> PreTrainedConfig:
    """The config with these of its layers alone."""
    small, depth = copy.deepcopy(config), config.num_hidden_layers
    for name, value in vars(config).items():
        if _is_per_layer(value, depth):
            setattr(small, name, [value[index] for index in kept])
    small.num_hidden_layers = len(kept)
    return small


def _is_per_layer(value: object, depth: int) -> bool:
    return isinstance(value, list | tuple) and len(value) == depth > 0


def _built(block: nn.Module) -> str:
    """A layer's modules with their own values, and its tensors by shape and dtype."""
    parts = []
    for name, module in block.named_modules():
        own = {
            key: value
            for key, value in vars(module).items()
            if key not in NUMBERS and (value is None or isinstance(value, bool | int | float | str | tuple))
        }
        parts.append((name, type(module).__name__, sorted(own.items())))
    tensors = [(name, tuple(value.shape), value.dtype) for name, value in block.state_dict(keep_vars=True).items()]
    return repr((parts, tensors))
