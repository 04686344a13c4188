"""A checkpoint is data: what stands in it is loaded, and no code that it names is run.

Accelerate loads its own files as weights alone. Shards of FSDP2 are loaded by PyTorch's distributed checkpoints, which
trust them: their index is a plain pickle, and beside tensors they hold pickled values.
"""

import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import CheckpointException

# The index of a distributed checkpoint, and what it is made of.
INDEX = ".metadata"
OWN = "torch.distributed.checkpoint"
PATHS = {"PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"}
MADE_OF = {
    f"{OWN}.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    f"{OWN}.filesystem": {"_StorageInfo"},
    "pathlib": PATHS,
    "pathlib._local": PATHS,  # as Python 3.13 has it
    "torch": {"Size", "float32", "float64", "bfloat16", "float16", "int64", "int32", "int16", "int8", "uint8", "bool"},
    "torch.serialization": {"_get_layout"},
    "collections": {"OrderedDict"},
}
FORCED, UNFORCED = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class _Index(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name not in MADE_OF.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of an index of shards")
        return super().find_class(module, name)


def foreign(folder: Path) -> list[str]:
    """What would run code if a checkpoint were loaded: each index of shards that holds more than an index does."""
    found = []
    for path in sorted(folder.rglob(INDEX)):
        try:
            with path.open("rb") as file:
                _Index(file).load()
        except Exception as error:
            # Bytes that are none of a pickle raise anything.
            found.append(f"its {path.relative_to(folder)} is none that is loaded unasked ({error})")
    return found


@contextmanager
def weights_only() -> Iterator[None]:
    """Has PyTorch load tensors and plain values alone inside, whoever asks it for more.

    Raises:
        ValueError: a file holds more than that.
        RuntimeError: shards cannot be loaded, of which PyTorch raises no `Exception`.
    """
    before = {name: os.environ.pop(name) for name in (FORCED, UNFORCED) if name in os.environ}
    os.environ[FORCED] = "1"
    try:
        yield
    except (pickle.UnpicklingError, CheckpointException) as error:
        failed = getattr(error, "failures", {}).values()
        cause = next((cause for cause, _ in failed), error)
        if isinstance(cause, pickle.UnpicklingError):
            raise ValueError("it holds more than tensors and plain values, whose code is not run") from error
        raise RuntimeError(str(cause).strip() or type(cause).__name__) from error
    finally:
        del os.environ[FORCED]
        os.environ.update(before)
