"""What the CPU's kernels allocate beside their results, while they run. Fake tensors know results alone."""

from functools import reduce
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

# Element by element, and yet they cast as they go.
CASTING = ("aten::copy_", "aten::_to_copy", "aten::masked_fill", "aten::masked_fill_")
# Their first argument only chooses among the others.
CHOOSING = ("aten::where",)
# They copy what they sum to the dtype that they sum in: that of the result.
SUMMING = ("aten::sum", "aten::cumsum", "aten::prod", "aten::mean")

# Gloo sums a copy of what the ranks are to share out, and gathers into one of what they are to get
# (c10d/ProcessGroupGloo.cpp, `reduce_scatter_tensor_coalesced` and `AsyncAllgatherWork`): which argument it copies.
EXCHANGING = {"c10d::_reduce_scatter_base_": 1, "c10d::_allgather_base_": 0}


def temporaries(func: Any, arguments: Any, out: Any) -> int:
    """The bytes that an operator takes while it runs, beside its results.

    What works element by element on tensors of several dtypes copies those that are not in the common one, its result
    included, where CUDA's kernels cast as they read (ATen/TensorIterator.cpp, `compute_types`).
    """
    name, inputs, results = func._schema.name, _tensors(arguments), _tensors(out)
    if not inputs or not results:
        return 0
    if name in EXCHANGING:
        return inputs[EXCHANGING[name]].nbytes
    if name in SUMMING:
        half = name == "aten::mean" and results[0].dtype in (torch.bfloat16, torch.float16)
        return _cast(inputs[:1], torch.float32 if half else results[0].dtype)
    if torch.Tag.pointwise not in func.tags or name in CASTING:
        return 0
    inputs = inputs[1:] if name in CHOOSING else inputs
    # A number in a tensor takes part in no promotion within its kind, and is small.
    inputs = [tensor for tensor in inputs if tensor.ndim]
    if not inputs:
        return 0
    common = reduce(torch.promote_types, (tensor.dtype for tensor in inputs))
    if results[0].is_floating_point() and not common.is_floating_point:
        common = results[0].dtype
    # Yes or no is written as it is.
    written = [tensor for tensor in results if tensor.dtype != torch.bool]
    return _cast(inputs, common) + _cast(written, common)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _cast(tensors: list[torch.Tensor], dtype: torch.dtype) -> int:
    """The bytes of copies in this dtype of those tensors that are in another."""
    return sum(tensor.numel() * dtype.itemsize for tensor in tensors if tensor.dtype != dtype)
