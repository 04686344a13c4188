"""Measure what each memory and speed technique costs and buys when a causal language model is trained."""

import os

__version__ = "0.1.0"

# PyTorch reads these once, when it is first used. The memory meter turns its profiler on in the middle of training:
# the profiler would announce itself on stderr each time, and the CPU allocator would warn about every older block.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
