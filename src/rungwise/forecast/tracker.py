"""Counts what fake tensors would allocate: the bytes of each storage when an operator first gives it back, and again
when it is gone. What its allocator and its kernels take, a device is asked.

A fake tensor (PyTorch's FakeTensorMode) has shape, dtype and device and no memory; operators on it are the real ones.
"""

import weakref
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .devices import Device
from .scratch import Product

# Whether all rows are whole, all gradients finite, all tokens unmasked: what a model may ask, and is told yes.
ALL = "aten::all"
# Whether any number is out of bounds: what is drawn until none is, and is told no.
ANY = "aten::any"
# More values are asked for by nothing but a loop that waits for another one.
MOST_ANSWERS = 10_000
UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
SCALAR = "aten::_local_scalar_dense"
GROUPED = "aten::_grouped_mm"
# The place of what no module does: gradients of parameters, the optimizer, the rows.
REST = "rest"
# Autograd's number of a node that is of no operator, as the one that keeps a parameter's gradient.
NO_OPERATOR = 2**63


class UnknownValue(RuntimeError):
    """A model asks for the value of a tensor, on which its memory then depends."""


@dataclass
class Log:
    """What was allocated and given back, in order.

    Attributes:
        changes: (number, bytes taken, or given back as a negative), as `metrics.allocations` has them.
        storages: the storage of each change, by a number of its own.
        places: the place of each change: the name of the module whose operator, forward or backward, took it.
        products: those that take more than is known, by the index of a change of nothing, right behind the output.
        marks: where each stretch of the training begins: (index of its first change, its name).
    """

    changes: list[tuple[int, int]] = field(default_factory=list)
    storages: list[int] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    products: dict[int, Product] = field(default_factory=dict)
    marks: list[tuple[int, str]] = field(default_factory=list)


class Tracker(TorchDispatchMode):
    """Keeps a log of storages while it is entered, inside of a FakeTensorMode.

    Attributes:
        log: of what is allocated.
        inside: whether a module is at work, to be told from outside.
    """

    def __init__(self, device: Device) -> None:
        """`device` says what its allocator and its kernels take."""
        super().__init__()
        self.log = Log()
        self._device = device
        self.inside = False
        self._live: dict[int, tuple[int, int, str, Any]] = {}
        self._hosted: dict[int, Any] = {}
        self._answers: dict[int, float] = {}
        self._asked = 0
        self._calls = {GROUPED: _grouped, **device.calls}
        self._count = self._oldest = 0
        # The autograd numbers from which operators are another place's.
        self._starts, self._places = [0], [REST]

    @contextmanager
    def logged(self) -> Iterator[Log]:
        """A log of its own for what is allocated inside; what is older and goes counts if the device knows it."""
        self.log, self._oldest = Log(), 0 if self._device.knows_older else self._count + 1
        yield self.log
        self.log = Log()

    def held(self) -> int:
        """The bytes of all storages that are there."""
        return sum(size for _, size, _, _ in self._live.values())

    def enter_place(self, name: str) -> None:
        """From here on operators are those of this module, and so are theirs in the backward pass."""
        number = torch._C._autograd._get_sequence_nr()
        if self._starts[-1] == number:
            self._places[-1] = name
        else:
            self._starts.append(number)
            self._places.append(name)

    def place(self) -> str:
        """The module whose operator is at work, forward, backward or run again."""
        node = torch._C._current_autograd_node()
        if node is None or self.inside:
            return self._places[-1]
        number = node._sequence_nr()
        return REST if number >= NO_OPERATOR else self._places[bisect_right(self._starts, number) - 1]

    def mark(self, name: str) -> None:
        """A stretch of this name begins."""
        self.log.marks.append((len(self.log.changes), name))

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """The number of a tensor's storage in the log."""
        found = self._live.get(tensor.untyped_storage()._cdata)
        return found[0] if found else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(issubclass(kind, DTensor) for kind in types):
            # A sharded tensor asks again, for what becomes of its shard.
            return NotImplemented
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        name = func._schema.name
        if name == SCALAR:
            return self._answer(args[0]) if args[0].constant is None else func(*args)
        python = _python_of(name)
        if python is not None:
            # PyTorch's own operators that are written in Python: what they allocate inside counts.
            with self:
                return python(*args, **kwargs)
        call = self._calls.get(name)
        out = call(func, *args, **kwargs) if call else func(*args, **kwargs)
        if name == UNSCALE:
            self._answers[args[1].untyped_storage()._cdata] = 0.0
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor, name in self._device.host)
                if name == ALL or (name == ANY and not self.inside):
                    self._answers[tensor.untyped_storage()._cdata] = float(name == ALL)
        if taken := self._device.temporaries(func, (args, kwargs), out):
            place = self.place()
            number = self._count = self._count + 1
            self._note(number, taken, place)
            self._note(number, -taken, place)
        if product := self._device.product(func, args, kwargs):
            self.log.products[len(self.log.changes)] = product
            self._note(self._count, 0, self.place())
        return out

    def _answer(self, tensor: torch.Tensor) -> Any:
        """A tensor's value: the loop's numbers are one, and a model may ask whether all of something is so."""
        known = self._answers.get(tensor.untyped_storage()._cdata)
        self._asked += 1
        if self._asked > MOST_ANSWERS:
            raise UnknownValue("something waits without end for the value of a tensor")
        if known is None and self.inside:
            raise UnknownValue(f"{self._places[-1] or 'the model'} asks for the value of a tensor")
        value = 1.0 if known is None else known
        return bool(value) if tensor.dtype == torch.bool else value if tensor.is_floating_point() else int(value)

    def _see(self, tensor: torch.Tensor, on_host: bool) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, self._device.block(storage.nbytes())
        if key in self._hosted:
            return
        if on_host and key not in self._live:
            self._hosted[key] = weakref.ref(storage, lambda _: self._hosted.pop(key))
            return
        if key in self._live:
            self._resize(key, size)
            return
        place = self.place()
        number = self._count = self._count + 1
        # The storage's own object lives as long as the storage.
        self._live[key] = (number, size, place, weakref.ref(storage, lambda _: self._forget(key)))
        self._note(number, size, place)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """A storage has another size than before."""
        if storage._cdata in self._live:
            self._resize(storage._cdata, self._device.block(storage.nbytes()))

    def _resize(self, key: int, size: int) -> None:
        number, before, place, life = self._live[key]
        if size != before:
            self._live[key] = (number, size, place, life)
            self._note(number, size - before, place)

    def _forget(self, key: int) -> None:
        number, size, place, _ = self._live.pop(key)
        self._answers.pop(key, None)
        if number >= self._oldest:
            self._note(number, -size, place)

    def _note(self, number: int, change: int, place: str) -> None:
        self.log.changes.append((len(self.log.changes), change))
        self.log.storages.append(number)
        self.log.places.append(place)


def _python_of(name: str) -> Any:
    """What an operator of `torch.nn` that is written in Python does, or None."""
    if not name.startswith("torch_nn::"):
        return None
    return torch._library.custom_ops.OPDEFS[name]._init_fn


def _grouped(func: Any, a: torch.Tensor, b: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Grouped products of any dtype, which kernels compute and fake tensors refuse but in bf16."""
    return func(a.bfloat16(), b.bfloat16(), *args, **options).to(a.dtype)
