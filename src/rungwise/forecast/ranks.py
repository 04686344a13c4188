"""The first of several ranks, the others of which are not there: PyTorch's fake process group, made for fake tensors.

All that shards and exchanges is PyTorch's own, in this one process: collectives take the buffers that they take in
truth, and exchange nothing. Ranks are alike but for tensors that do not divide, of which the first has the most.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import _disable_current_modes

# What a launcher tells the first rank. Accelerate asks for an address, which nobody calls.
LAUNCHED = {"RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}


def can_be_traced() -> bool:
    """Whether this PyTorch knows what exchanges give of tensors without memory."""
    return torch._C._dispatch_has_kernel_for_dispatch_key("c10d::allreduce_", "Meta")


@contextmanager
def first_of(processes: int, resized: Callable[[torch.UntypedStorage], None]) -> Iterator[None]:
    """This process is the first of so many ranks inside. With one it is as it was.

    Args:
        processes: how many ranks there are.
        resized: is told of each storage that changes its size, as those of gathered parameters do.

    Raises:
        RuntimeError: this process is a rank already.
    """
    if processes == 1:
        yield
        return
    with ExitStack() as stack:
        # Accelerate, which reads these, adds to them; and sets the number of threads where nobody did.
        told = {**LAUNCHED, "WORLD_SIZE": str(processes), "OMP_NUM_THREADS": str(torch.get_num_threads())}
        stack.enter_context(mock.patch.dict(os.environ, told))
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
        stack.callback(distributed.destroy_process_group)
        # A parameter is found again by its address, which a fake one does not have.
        stack.enter_context(
            mock.patch.object(FakeTensor, "data_ptr", lambda tensor: tensor.untyped_storage()._cdata, create=True)
        )
        stack.enter_context(mock.patch.object(torch.UntypedStorage, "resize_", _telling(resized)))
        # What a sharded tensor's operators give is asked of fake tensors in a real run as well: nobody's memory.
        name = "_propagate_tensor_meta_non_cached"
        stack.enter_context(mock.patch.object(ShardingPropagator, name, _unseen(getattr(ShardingPropagator, name))))
        # DDP compares the ranks' shapes, and the order of their buckets behind the first step, by values. The buckets
        # that it makes in that order are as large together as those that it has.
        name = "torch.nn.parallel.distributed._verify_param_shape_across_processes"
        stack.enter_context(mock.patch(name, lambda *_: None))
        stack.enter_context(mock.patch.object(distributed.Reducer, "_rebuild_buckets", lambda _: False))
        yield


def exchange_nothing(model: nn.Module) -> None:
    """Has DDP, if a prepared model is one, take each bucket as it is for what the ranks' exchange gives back."""
    if isinstance(model, DistributedDataParallel):
        model.register_comm_hook(None, _unchanged)


def _unchanged(_: None, bucket: distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def _unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    def called_outside(*args: Any) -> Any:
        with _disable_current_modes():
            return function(*args)

    return called_outside


def _telling(resized: Callable[[torch.UntypedStorage], None]) -> Callable[[torch.UntypedStorage, int], None]:
    resize = torch.UntypedStorage.resize_

    def resize_and_tell(storage: torch.UntypedStorage, size: int) -> None:
        resize(storage, size)
        resized(storage)

    return resize_and_tell
