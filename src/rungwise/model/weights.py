"""Holds the weights of a checkpoint against the model that they are for, by name and shape, without loading them."""

import json
import pickle
import re
import zipfile
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    cached_file,
)
from transformers.utils.hub import get_checkpoint_shard_files

from .probe import quiet

# How the text part of a model that reads images or sound, too, is called in its weights, and what it is called alone.
TEXT_PART = {
    r"^(model\.)?language_model\.lm_head\.": "lm_head.",
    r"^(model\.)?language_model\.(model\.)?(?!lm_head)": "model.",
}
# What a wrapper puts before the names of the weights that it holds.
PREFIXES = {
    "_orig_mod.": "torch.compile",
    "module.": "DistributedDataParallel",
    "_fsdp_wrapped_module.": "FSDP",
}
MASK = re.compile(r"\.(attn|attention)\.(bias|masked_bias|causal_mask)$")
# Names that a message lists before it counts.
LISTED = 3
# In the order in which Transformers looks for them.
FILES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)


def mismatches(model: PreTrainedModel, source: str, text_only: bool) -> dict[str, list[str]]:
    """What of a checkpoint is not the model's, and the reverse, as Transformers' own loading finds it.

    Files are read no further than their headers, and nothing is allocated. What a model ignores by design, as tied
    weights, is left out by Transformers.

    Args:
        model: on the meta device.
        source: a folder or Hub id. Of the latter the weights are downloaded, as loading them would.
        text_only: the checkpoint's other parts, as its vision tower, are left out.

    Returns:
        Names by kind: `missing` from the checkpoint, `unexpected` in it, `mismatched` in shape; kinds without any are
        left out.

    Raises:
        ValueError: there are no weights, or they cannot be read.
    """
    weights: dict[str, torch.Tensor] = {}
    for file in _files(source):
        weights |= _empty_weights(Path(file))
    weights = {name: weight for name, weight in weights.items() if not _is_mask(name, weight)}
    # A pickle holds tied weights twice; up to Transformers 5.10 their values would be compared, and there are none.
    sources = {name: weights.get(model.all_tied_weights_keys.get(name)) for name in weights}
    weights = {n: w for n, w in weights.items() if sources[n] is None or sources[n].shape != w.shape}
    with quiet():
        _, found = type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=weights,
            device_map="meta",
            key_mapping=TEXT_PART if text_only else None,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    parts = {_part(name) for name in model.state_dict()}
    kinds = {
        "missing": found["missing_keys"],
        "unexpected": [name for name in found["unexpected_keys"] if not text_only or _part(name) in parts],
        "mismatched": [
            f"{name} ({_shape(saved)} in place of {_shape(own)})" for name, saved, own in found["mismatched_keys"]
        ],
    }
    return {kind: sorted(names) for kind, names in kinds.items() if names}


def describe(found: dict[str, list[str]]) -> str:
    """What is wrong with weights, by `mismatches`, in one sentence with the way out."""
    words = {
        "missing": "missing, which would be random",
        "unexpected": "unexpected, which would be left out",
        "mismatched": "of another shape, which would be random",
    }
    parts = [f"{len(names)} {words[kind]}: {_listed(names)}" for kind, names in found.items()]
    return f"its weights are not this model's: {'; '.join(parts)}; {_remedy(found)}"


def _remedy(found: dict[str, list[str]]) -> str:
    for prefix, wrapper in PREFIXES.items():
        wrapped = next((name for name in found.get("unexpected", []) if prefix in name), None)
        if wrapped and any(name.endswith(wrapped.replace(prefix, "")) for name in found.get("missing", [])):
            return (
                f"they were saved from inside {wrapper}, which calls them {prefix}...; save the model that it wraps, "
                f'or rename them once: safetensors.torch.save_file({{name.replace("{prefix}", ""): weight for name, '
                'weight in safetensors.torch.load_file(file).items()}, file, {"format": "pt"})'
            )
    return "give the checkpoint and the config that belong together, or --ignore_mismatched_weights if this is meant"


def _files(source: str) -> list[str]:
    """The files with the weights."""
    for name in FILES:
        path = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
        if path is None:
            continue
        if not name.endswith(".json"):
            return [path]
        try:
            return get_checkpoint_shard_files(source, path)[0]
        except (KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"{name} cannot be read ({error!r}); download or save the checkpoint again") from error
    raise ValueError(
        f"no weights in it ({SAFE_WEIGHTS_NAME}); give --config_name in place of --model_name_or_path for random ones"
    )


def _empty_weights(file: Path) -> dict[str, torch.Tensor]:
    """The weights of a file, by name, on the meta device."""
    try:
        if file.suffix == ".safetensors":
            with safe_open(file, framework="pt") as weights:
                names = weights.keys()
                shapes = {name: weights.get_slice(name).get_shape() for name in names}
            return {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
        return torch.load(file, map_location="meta", weights_only=True, mmap=zipfile.is_zipfile(file))
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"{file.name} is a pickle that holds more than weights, whose code is not run; save it as safetensors "
            "where you trust it, by save_pretrained"
        ) from error
    except Exception as error:
        # Each format has errors of its own for a file that is empty, cut off or not there.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{file.name} cannot be read ({reason}); download or save the checkpoint again") from error


def _is_mask(name: str, weight: torch.Tensor) -> bool:
    """Whether this is an attention's mask, which older releases saved with GPT-2 and its kin. A bias is a vector."""
    return MASK.search(name) is not None and weight.dim() != 1


def _part(name: str) -> str:
    """The part of a model that a weight is in, as `model.layers`."""
    return ".".join(name.split(".")[:2])


def _listed(names: list[str]) -> str:
    return ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")


def _shape(size: torch.Size) -> str:
    return "x".join(map(str, size))
