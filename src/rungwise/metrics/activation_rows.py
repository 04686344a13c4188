"""Tensors that are saved for backward to rows: one for each kind of module and each operator."""

import re
from collections.abc import Iterable
from typing import Any

from torch import nn

from ..model.probe import base_model
from .memory import MIB
from .saved_tensors import Saved

# Who saves behind the last module: the loss, after what a model does to its logits itself.
LOSS = "loss"


def table(saved: Iterable[Saved], names: list[str], live: set[int]) -> dict[str, Any]:
    """The sum, and a row for each module and operator, the largest first, as they stand in `result.json`.

    Args:
        saved: in the order of saving; a storage belongs to the first.
        names: of the modules, by place.
        live: storages to leave out.
    """
    seen = set(live)
    found: dict[tuple[str, str], list[int]] = {}
    for one in saved:
        if one.storage not in seen and one.nbytes:
            seen.add(one.storage)
            module = names[one.place] if isinstance(one.place, int) else one.place
            found.setdefault((module, one.operator), []).append(one.nbytes)
    rows = [
        {"module": module, "operator": operator, "mib": sum(sizes) / MIB, "tensors": len(sizes)}
        for (module, operator), sizes in sorted(found.items(), key=lambda item: -sum(item[1]))
    ]
    return {"total_mib": sum(map(sum, found.values())) / MIB, "rows": rows}


def kind(name: str, model: nn.Module | None = None) -> str:
    """A module's name, short and without its number: `h.*.mlp.act` for `transformer.h.0.mlp.act` in a GPT-2.

    Args:
        name: as in `named_modules()`; '' is the class of the whole model.
        model: whose prefixes are left out, its adapters' among them.
    """
    if model is not None:
        inner = base_model(model)
        name = name.removeprefix("base_model.model").removeprefix(".") if inner is not model else name
        name = name.removeprefix(f"{getattr(inner, 'base_model_prefix', '')}.") or type(inner).__name__
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
