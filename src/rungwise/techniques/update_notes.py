"""Takes notes of the weights around the optimizer's steps, to show what a step did to them."""

from typing import Any

import torch
from torch import nn

from ..metrics.memory import local

# Elements that a fingerprint reads at a time: it must not show in the peak of memory.
PIECE = 1 << 18
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class UpdateNotes:
    """Notes of the weights around the optimizer's steps, until one has changed a weight.

    Attributes:
        steps: how often the optimizer stepped since the last `begin`.
        gradient_norms: the norms of the gradients that those steps took, of what this process holds of them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.steps = 0
        self.gradient_norms: list[torch.Tensor] = []
        self._model, self._optimizer = model, optimizer
        self._before: torch.Tensor | None = None
        self._hook = optimizer.register_step_pre_hook(self._note)

    def begin(self) -> None:
        """Forgets the last step's notes, not the weights that later ones are compared with."""
        self.steps = 0
        self.gradient_norms.clear()

    def forget(self) -> None:
        """Forgets all: loading a sharded optimizer's state steps it, and puts other weights into the model."""
        self.begin()
        self._before = None

    def close(self) -> None:
        """Takes no more notes."""
        self._hook.remove()

    def _note(self, *_: Any) -> None:
        self.steps += 1
        if self._before is None:
            self._before = self.weights()
        gradients = [local(p.grad) for p in self._model.parameters() if p.grad is not None]
        # A process may hold nothing of a small gradient that is sharded.
        norms = torch._foreach_norm([g for g in gradients if g.numel()]) if any(g.numel() for g in gradients) else []
        norm = torch.stack([n.float().to(self._before.device) for n in (*norms, torch.zeros(()))]).norm()
        # A fused optimizer is told of a scale that its gradients still have, and divides by it itself.
        scale = getattr(self._optimizer, "grad_scale", None)
        self.gradient_norms.append(norm if scale is None else norm / scale)

    def weights(self) -> torch.Tensor:
        """A fingerprint of what this process holds of each parameter, (parameters,), int64."""
        return torch.stack([fingerprint(parameter) for parameter in self._model.parameters()])

    def changed(self, weights: torch.Tensor) -> torch.Tensor:
        """Which parameters are others than before the first step that was noted, (parameters,), bool."""
        return torch.zeros_like(weights, dtype=torch.bool) if self._before is None else weights != self._before


@torch.no_grad()
def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """A number made of each bit of a tensor and its place, a scalar, int64; of a shard, what this process holds."""
    own = local(tensor.detach()).contiguous().view(-1)
    bits = own.view(INTEGERS[own.element_size()])
    places = 2 * torch.arange(min(len(bits), PIECE), device=bits.device) + 1
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for piece in bits.split(PIECE):
        # Numbers wrap around, which is as good.
        total = 31 * total + (piece.to(torch.int64) * places[: len(piece)]).sum()
    return total
