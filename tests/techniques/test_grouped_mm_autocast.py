"""Experts are computed in the precision that was asked for, which PyTorch's autocast alone would not do."""

import gc

from rungwise.families.families import FAMILIES
from rungwise.techniques import grouped_mm_autocast as autocast
from rungwise.techniques import mixed_precision
from rungwise.techniques.seen import InactiveTechnique

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 (registers the fallback)
from harness import tiny_settings, train_tiny

MIXTRAL = next(family for family in FAMILIES if family.model_type == "mixtral")
OFFSETS = torch.tensor([3, 8], dtype=torch.int32)


@pytest.fixture
def rows():
    return torch.randn(8, 16, requires_grad=True)


@pytest.fixture
def experts():
    return torch.randn(2, 16, 16, requires_grad=True)


@pytest.mark.parametrize("name", autocast.OPERATORS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_grouped_products_follow_autocast(name, dtype, rows, experts):
    autocast.install()
    autocast.install()
    namespace, _, operator = name.partition("::")
    grouped = getattr(getattr(torch.ops, namespace), operator)
    with torch.autocast("cpu", dtype):
        product = grouped(rows, experts, OFFSETS)
    assert product.dtype == dtype
    expected = torch.cat([rows[:3] @ experts[0], rows[3:] @ experts[1]])
    # Sums of 16 products of numbers around 1, each rounded to the dtype.
    torch.testing.assert_close(product.float(), expected, atol=16 * torch.finfo(dtype).eps, rtol=0)
    product.float().pow(2).sum().backward()
    assert rows.grad.dtype == experts.grad.dtype == torch.float32
    assert grouped(rows, experts, OFFSETS).dtype == torch.float32


def test_experts_left_in_fp32_are_found(monkeypatch):
    """Behind a head in bf16, the experts that autocast forgot."""
    autocast._libraries.clear()
    gc.collect()
    monkeypatch.setattr(mixed_precision.grouped_mm_autocast, "install", lambda: None)
    flags = ["--max_steps", "3", "--untimed_steps", "2", "--global_batch_size", "4"]
    trained = train_tiny(tiny_settings(*MIXTRAL.flags, *flags, config="accelerate_configs/bf16.yaml"))
    with pytest.raises(
        InactiveTechnique, match="mixed_precision bf16 was asked for, the model computed in bfloat16, fl"
    ):
        trained.proof.verify(trained.steps[-1])
