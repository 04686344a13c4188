"""The loss without whole logits: the head's product and the cross entropy in one operator of PyTorch, chunk by chunk.

Logits are rows x tokens x vocabulary; an ordinary loss holds them two or three times, once or twice in fp32. The
operator holds a chunk of them, computes its gradients at once and keeps these. It pays where the vocabulary is larger
than the model is wide and a micro-batch has many tokens; the compiler does not see into it, which is a graph break.
"""

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from ..metrics.allocations import allocations
from ..metrics.flops import ForwardFlops
from ..model.model import CausalLMLoss, empty_model
from ..model.probe import base_model, evaluating, short_row
from ..settings.fields import Settings
from .seen import Seen, UnavailableTechnique, dtype_name

if TYPE_CHECKING:
    from transformers import Trainer

# What models do to their logits between head and loss, by the names of it in their configs.
CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")
FLAG = "--linear_cross_entropy"


def validate(settings: Settings, device_type: str) -> list[str]:
    """That this PyTorch has no such operator."""
    if not settings.linear_cross_entropy or hasattr(nn, "LinearCrossEntropyOptions"):
        return []
    return [f"{FLAG} needs PyTorch 2.13 or newer, and this is {torch.__version__}; install it, or leave the flag out"]


def why_not(settings: Settings, config: PreTrainedConfig) -> str | None:
    """That the vocabulary of a model from this config is too small for chunks, which are what its width is to it.

    PyTorch makes about as many chunks as the vocabulary is wider than the model (LinearCrossEntropyOptions'
    `aspect_ratio`). Two of them in fp32 are as large as all logits in half precision.
    """
    head = empty_model(settings, config).get_output_embeddings()
    if not settings.linear_cross_entropy or type(head) is not nn.Linear:
        return None
    vocabulary, width = head.weight.shape
    if vocabulary > 2 * width:
        return None
    return f"a vocabulary of {vocabulary:,} is too small beside a width of {width:,} for chunks; leave {FLAG} out"


def extra_flops(settings: Settings, forward: ForwardFlops) -> int:
    """What the loss of one row takes more: in bf16 the head's product once more, since gradients come in backward.

    In fp16 all three of its products are computed in fp32. Each counts twice, which is the least it takes.
    """
    if not settings.linear_cross_entropy:
        return 0
    return {"no": 0, "bf16": 1, "fp16": 3}[settings.precision] * forward.head


def apply(model: nn.Module, settings: Settings) -> None:
    """Has the model's head give its input back, and the loss take the head's product upon itself.

    Raises:
        UnavailableTechnique: the head is no plain linear layer, the loss is not Transformers', or the model changes
            its logits between the two.
    """
    if not settings.linear_cross_entropy:
        return
    base = base_model(model)
    head, name = base.get_output_embeddings(), type(base).__name__
    if type(head) is not nn.Linear:
        kind = "no head" if head is None else f"a {type(head).__name__} as its head"
        raise UnavailableTechnique(f"{name} has {kind}, not a linear layer; leave {FLAG} out")
    if not isinstance(base.loss_function, CausalLMLoss) and base.loss_function is not ForCausalLMLoss:
        raise UnavailableTechnique(f"the loss of {name} is not Transformers' causal one; leave {FLAG} out")
    if change := _change(base, head):
        raise UnavailableTechnique(f"{name} {change}, which {FLAG} would leave out; leave the flag out")
    base.loss_function = LinearCrossEntropy(base, head)


def _change(model: PreTrainedModel, head: nn.Linear) -> str:
    """What the model does to its logits before it hands them to its loss; empty if that is nothing.

    Raises:
        UnavailableTechnique: the model cannot be asked.
    """
    config = model.config.get_text_config()
    for field in CHANGES_LOGITS:
        if getattr(config, field, None) not in (None, 1, 0):
            return f"changes its logits by {field} {getattr(config, field)}"
    given: list[Any] = []
    made: list[Any] = []
    ordinary = model.loss_function
    model.loss_function = lambda logits, *_, **__: given.append(logits) or logits.sum()
    hook = head.register_forward_hook(lambda *call: made.append(call[-1]))
    row = short_row(model)
    try:
        with evaluating(model):
            model(input_ids=row, labels=row)
    except Exception as error:
        # Models are other people's code, which raises anything.
        words = f"{type(model).__name__} cannot be asked what it does to its logits: {type(error).__name__}: {error}"
        raise UnavailableTechnique(f"{words}; leave {FLAG} out") from error
    finally:
        hook.remove()
        model.loss_function = ordinary
    same = len(given) == len(made) == 1 and given[0] is made[0]
    return "" if same else "changes its logits between its head and its loss"


class LinearCrossEntropy(CausalLMLoss):
    """The loss of a causal language model from its last hidden states, beside a head that gives them back.

    Only where labels are given: without them the head gives logits as ever.

    Attributes:
        products: the dtype that the head's products are computed in, once it is known.
        whole_logits: whether logits of a whole micro-batch were allocated in the first one; None where it is not
            known, another profiler being at work, or other tensors being as large.
    """

    def __init__(self, model: PreTrainedModel, head: nn.Linear):
        super().__init__()
        self.products: torch.dtype | None = None
        self.whole_logits: bool | None = None
        self._head, self._logits = head, head.forward
        self._labelled = self._asked = False
        model.register_forward_pre_hook(self._look, with_kwargs=True)
        head.forward = self._pass
        head.gives_its_input_back = True
        # What the head gives back may be a view. FSDP2 warns of changing such a tensor in place, which nothing does.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")

    def _look(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._labelled = kwargs.get("labels") is not None

    def _pass(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._labelled else self._logits(hidden)

    def compute(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        vocab_size: int,
        num_items_in_batch: torch.Tensor | None = None,
        ignore_index: int = -100,
        shift_labels: torch.Tensor | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The sum of token losses / `num_items_in_batch`, of hidden states (B, T, C) in `logits`, labels (B, T)."""
        if shift_labels is None:
            shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        tokens = (shift_labels != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
        return self._sum(logits.flatten(0, -2), shift_labels.flatten(), 1 / tokens, ignore_index)

    @torch.compiler.disable
    def _sum(self, hidden: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, ignore_index: int) -> torch.Tensor:
        """`scale` x the sum of the losses of (N, C) hidden states and (N,) labels."""
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        # In fp16 the operator's own sums would overflow or get lost, since the scaler's scale comes to them late.
        self.products = torch.float32 if dtype == torch.float16 else dtype
        full = self.products == torch.float32
        head = self._head
        call = partial(
            F.linear_cross_entropy,
            hidden.to(self.products),
            head.weight.to(self.products),
            labels,
            linear_bias=None if head.bias is None else head.bias.to(self.products),
            # The scale goes in as the classes' weight, where it stays in fp32: behind the operator it would be rounded
            # to bf16 on its way back, and so would all gradients, by the same share.
            weight=scale.float().expand(len(head.weight)),
            # One sum would come out in bf16, as 31,232 for 31,425. Each token's loss is rounded by itself. That costs
            # another product, since the operator then computes gradients in the backward pass.
            reduction="sum" if full else "none",
            ignore_index=ignore_index,
            # In bf16 the weight's gradient is summed over the chunks in fp32, as one product would.
            options=nn.LinearCrossEntropyOptions(
                acc_policy="compact" if full else "balanced", acc_dtype=torch.float32
            ),
        )
        if self._asked or not torch.is_grad_enabled() or torch.autograd._profiler_enabled():
            return call().float().sum()
        self._asked = True
        with allocations(hidden.device) as changes:
            losses = call()
        self.whole_logits = _whole(changes, *hidden.shape, len(head.weight))
        return losses.float().sum()


def asked_of(trainer: "Trainer", model: nn.Module) -> dict[str, Any]:
    """Whether a Trainer was given a model with this loss, as a setting."""
    return {"linear_cross_entropy": isinstance(base_model(model).loss_function, LinearCrossEntropy)}


def _whole(changes: list[tuple[int, int]], tokens: int, width: int, vocabulary: int) -> bool | None:
    """Whether any of these allocations is as large as logits (N, V), in fp32 or half of it."""
    others = {size * count for size in (2, 4) for count in (vocabulary * width, tokens * width)}
    sizes = {size * tokens * vocabulary for size in (2, 4)} - others
    if not changes or not sizes:
        return None
    # CUDA rounds up to pieces of 512 bytes.
    return any(0 <= taken - size < 512 for _, taken in changes for size in sizes)


def evidence(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """Whether the loss was computed without whole logits, and the dtype of the head's products in it."""
    loss, asked = base_model(seen.model).loss_function, seen.settings.linear_cross_entropy
    chunked = isinstance(loss, LinearCrossEntropy) and loss.products is not None
    found = {
        "linear_cross_entropy": chunked,
        "whole_logits": loss.whole_logits if chunked else True,
        "loss_products": dtype_name(loss.products) if chunked else None,
    }
    if chunked != asked:
        return found, [f"the loss without whole logits was asked for: {asked}; it was computed so: {chunked}"]
    if chunked and loss.whole_logits:
        words = "PyTorch's operator held all logits at once: the vocabulary is too small beside the width"
        return found, [f"{words}; leave {FLAG} out"]
    return found, []
