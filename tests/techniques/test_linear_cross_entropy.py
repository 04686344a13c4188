"""The loss without whole logits beside the ordinary one: values, gradients, training, memory, and what is refused."""

import json

from rungwise.loop import evaluate
from rungwise.metrics.allocations import allocations
from rungwise.result_file import read_result
from rungwise.techniques.linear_cross_entropy import LinearCrossEntropy
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique

import ablate
import pytest
import torch
from commands import ablate_here
from harness import TINY, largest_difference, ragged_rows, tiny_settings, train_tiny
from needs import LOSS_IN_CHUNKS
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.loss.loss_utils import ForCausalLMLoss

pytestmark = LOSS_IN_CHUNKS

FLAG = "--linear_cross_entropy"
FP32, BF16 = "accelerate_configs/fp32.yaml", "accelerate_configs/bf16.yaml"
# No other tensor of this model is as large as its logits.
APART = ["--config_overrides", "vocab_size=200,n_positions=32,n_embd=32,n_layer=2,n_head=2"]


class Head(nn.Module):
    """A model that is nothing but its head and its loss."""

    def __init__(self, bias=False, width=32, vocabulary=200):
        super().__init__()
        torch.manual_seed(1)
        self.head = nn.Linear(width, vocabulary, bias=bias)


def gradients(head, hidden, labels, count, chunked, dtype):
    """Loss, and the gradients of the hidden states, the weight and the bias, as autocast to `dtype` has them."""
    hidden = hidden.clone().requires_grad_()
    head.zero_grad()
    loss = LinearCrossEntropy(Head(), head.head) if chunked else ForCausalLMLoss
    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
        given = hidden if chunked else head.head(hidden)
        found = loss(given, labels, vocab_size=200, num_items_in_batch=count)
    found.backward()
    head.head.__dict__.pop("forward", None)
    return [found.detach(), hidden.grad, *(p.grad.clone() for p in head.parameters())]


def made(rows=16, tokens=32, masked=True):
    torch.manual_seed(0)
    hidden, labels = torch.randn(rows, tokens, 32), torch.randint(200, (rows, tokens))
    if masked:
        labels[::3, 5:] = -100
    return hidden, labels


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("count", [None, 413])
def test_loss_and_gradients_are_the_ordinary_ones(bias, masked, count):
    """413 tokens are no power of two: a scale that is rounded shows."""
    head, (hidden, labels) = Head(bias), made(masked=masked)
    count = None if count is None else torch.tensor(count)
    ours, ordinary = (gradients(head, hidden, labels, count, chunked, torch.float32) for chunked in (True, False))
    for mine, other in zip(ours, ordinary, strict=True):
        assert (mine - other).norm() <= 2e-6 * other.norm()


@pytest.mark.parametrize("bias", [False, True])
def test_bf16_is_as_near_to_the_truth_as_the_ordinary_loss(bias):
    """The truth is in float64, from what the head's product is given: hidden states and weights in bf16."""
    head, (hidden, labels) = Head(bias), made()
    count = torch.tensor(413)
    exact = Head(bias)
    for mine, its in zip(exact.parameters(), head.parameters(), strict=True):
        mine.data = its.data.bfloat16().double()
    exact.double()
    truth = gradients(exact, hidden.bfloat16().double(), labels, count, False, torch.float32)
    ours, ordinary = (gradients(head, hidden, labels, count, chunked, torch.bfloat16) for chunked in (True, False))
    # The loss is a sum of rounded losses; a single rounded sum, which PyTorch would give, is off by up to 2^-9.
    assert abs(float(ours[0] / truth[0]) - 1) < 2.0**-12
    for mine, other, true in zip(ours[1:], ordinary[1:], truth[1:], strict=True):
        # Each is rounded twice: the gradient of the logits, and the gradient that comes of it.
        assert all((found - true).norm() <= 2 * 2.0**-9 * true.norm() for found in (mine, other))
        # No share by which all of it is off.
        assert abs(float((mine * true).sum() / true.square().sum()) - 1) < 2.0**-11


def test_in_fp16_the_products_are_in_fp32_and_the_evidence_says_so():
    trained = train_tiny(tiny_settings("--max_steps", "6", FLAG, config="accelerate_configs/fp16.yaml"))
    assert trained.evidence["loss_products"] == "float32" and trained.evidence["compute_dtype"] == "float16"
    assert all(loss > 0 for loss in trained.losses) and trained.proof.verify(trained.steps[-1])


WAYS = {
    "plain": [],
    "accumulation": ["--gradient_accumulation_steps", "4"],
    "checkpointing": ["--gradient_checkpointing"],
    "all": ["--gradient_accumulation_steps", "4", "--gradient_checkpointing", "--fused_activation"],
    "adapters": ["--use_peft", "--lora_r", "4"],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rows", [None, ragged_rows])
def test_training_is_the_same(way, rows):
    runs = [
        train_tiny(tiny_settings("--max_steps", "6", *flags, *WAYS[way]), rows and rows(), sgd=True)
        for flags in ([], [FLAG])
    ]
    assert runs[1].losses == pytest.approx(runs[0].losses, abs=1e-6)
    assert [s.grad_norm for s in runs[1].steps] == pytest.approx([s.grad_norm for s in runs[0].steps], rel=1e-5)
    assert largest_difference(runs[0].weights, runs[1].weights) < 1e-6
    assert runs[1].evidence["whole_logits"] is False and runs[1].evidence["loss_products"] == "float32"
    assert runs[0].evidence["whole_logits"] is True and not runs[0].evidence["linear_cross_entropy"]


def test_bf16_follows_the_ordinary_loss():
    plain, chunked = (train_tiny(tiny_settings("--max_steps", "6", *flags, config=BF16)) for flags in ([], [FLAG]))
    assert chunked.losses == pytest.approx(plain.losses, rel=2.0**-10)
    assert chunked.evidence["loss_products"] == "bfloat16" and chunked.evidence["compute_dtype"] == "bfloat16"


@pytest.mark.parametrize("config", [FP32, BF16])
def test_no_tensor_as_large_as_the_logits_is_allocated_in_a_step(config):
    """Forward and backward, in fp32 or in half of it; the ordinary loss has several."""

    def logits(*flags):
        trained = train_tiny(tiny_settings("--max_steps", "4", *APART, *flags, config=config))
        row = torch.randint(200, (16, 32))
        with allocations(torch.device("cpu")) as changes, trained.accelerator.autocast():
            trained.prepared(input_ids=row, labels=row, num_items_in_batch=torch.tensor(496)).loss.backward()
        sizes = [taken for _, taken in changes]
        return sum(sizes.count(size * 16 * 32 * 200) for size in (2, 4))

    assert logits(FLAG) == 0 and logits() >= 2


def test_without_labels_the_logits_are_there_and_evaluation_is_the_same():
    plain, chunked = (train_tiny(tiny_settings("--max_steps", "4", *flags), sgd=True) for flags in ([], [FLAG]))
    row = torch.randint(128, (2, 32))
    with torch.no_grad():
        logits = [run.model(input_ids=row).logits for run in (plain, chunked)]
    assert logits[1].shape == (2, 32, 128) and (logits[0] - logits[1]).abs().max() < 1e-5
    batches = [{"input_ids": row, "labels": torch.where(row < 9, -100, row)}]
    losses = [evaluate(run.accelerator, run.prepared, batches) for run in (plain, chunked)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6)


@pytest.mark.breadth(2, of="compiled code")
def test_the_graph_break_is_counted_and_compiled_training_is_the_same(tmp_path):
    flags = ["--config", FP32, *TINY, "--max_steps", "5"]
    eager = ablate_here(tmp_path / "eager", *flags)
    compiled = ablate_here(tmp_path / "compiled", *flags, FLAG, "--fused_activation", "--torch_compile")
    assert compiled["status"] == "ok" and compiled["evidence"]["whole_logits"] is False
    assert compiled["loss"]["trajectory"] == pytest.approx(eager["loss"]["trajectory"], abs=1e-5)
    # Before the loss and behind it; dynamo notes the break in each frame that it lies in.
    assert compiled["compile"]["graphs"] == 2 and compiled["compile"]["recompiles"] == 0
    assert compiled["compile"]["graph_breaks"] >= 1
    [reason] = compiled["compile"]["graph_break_reasons"]
    assert "torch.compiler.disable" in reason and "linear_cross_entropy.py" in reason


def test_a_run_is_saved_as_an_ordinary_model_and_goes_on(tmp_path):
    flags = ["--config", FP32, *TINY, FLAG, "--fused_activation", "--max_steps", "6", "--checkpointing_steps", "3"]
    whole = ablate_here(tmp_path / "whole", *flags, "--save_model")
    resumed = ablate_here(
        tmp_path / "resumed", *flags, "--resume_from_checkpoint", str(tmp_path / "whole/checkpoint-3")
    )
    assert resumed["loss"]["trajectory"] == whole["loss"]["trajectory"]
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "whole/model")
    assert saved(input_ids=torch.arange(8)[None]).logits.shape == (1, 8, 128)
    assert json.loads((tmp_path / "whole/model/config.json").read_text())["activation_function"] == "gelu_new"


SMALL = "vocab_size=128,hidden_size=32,intermediate_size=64,num_hidden_layers=2,num_attention_heads=2"
CHANGED = {
    ("gemma2", f"{SMALL},num_key_value_heads=2,head_dim=16"): "final_logit_softcapping 30.0",
    ("cohere", f"{SMALL},num_key_value_heads=2"): "logit_scale 0.0625",
    ("granite", f"{SMALL},num_key_value_heads=2,logits_scaling=8.0"): "logits_scaling 8.0",
    ("bert", f"{SMALL},is_decoder=true"): None,
}


@pytest.mark.parametrize("family", CHANGED)
def test_a_model_that_changes_its_logits_is_refused_by_name(family, tmp_path):
    kind, overrides = family
    flags = ["--config", FP32, "--model_type", kind, "--config_overrides", overrides, "--block_size", "32"]
    flags += ["--dataset_name", "synthetic", "--report_to", "none", "--max_steps", "4"]
    code = ablate.main([*flags, FLAG, "--output_dir", str(tmp_path)])
    result = read_result(tmp_path)
    assert code == bool(CHANGED[family])
    if CHANGED[family]:
        assert (
            result["status"] == "skipped" and f"by {CHANGED[family]}, which {FLAG} would leave out" in result["reason"]
        )
    else:
        assert result["status"] == "ok" and result["evidence"]["linear_cross_entropy"]


class Scaled(GPT2LMHeadModel):
    """Doubles its logits, under no name that a config would have."""

    def forward(self, input_ids, labels=None, **kwargs):
        logits = 2 * self.lm_head(self.transformer(input_ids).last_hidden_state)
        return {"loss": self.loss_function(logits, labels, vocab_size=self.config.vocab_size), "logits": logits}


def test_a_model_that_changes_its_logits_in_silence_is_refused_too():
    from rungwise.techniques import linear_cross_entropy

    settings = tiny_settings(FLAG)
    config = GPT2Config(vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    own = GPT2LMHeadModel(config)
    own.loss_function = lambda logits, labels, **_: logits.mean()
    head = GPT2LMHeadModel(config)
    head.lm_head = nn.Sequential(head.lm_head)
    for model, words in (
        (Scaled(config), "Scaled changes its logits between its head and its loss"),
        (own, "the loss of GPT2LMHeadModel is not Transformers' causal one"),
        (head, "GPT2LMHeadModel has a Sequential as its head, not a linear layer"),
    ):
        with pytest.raises(UnavailableTechnique, match=words):
            linear_cross_entropy.apply(model, settings)


def test_a_label_without_the_thing_is_missed(monkeypatch):
    settings = tiny_settings("--max_steps", "4", *APART)
    trained = train_tiny(settings, claims={"linear_cross_entropy": True})
    with pytest.raises(InactiveTechnique, match="was asked for: True; it was computed so: False"):
        trained.proof.verify(trained.steps[-1])
    chunked = tiny_settings("--max_steps", "4", *APART, FLAG)
    trained = train_tiny(chunked, claims={"linear_cross_entropy": False})
    with pytest.raises(InactiveTechnique, match="was asked for: False; it was computed so: True"):
        trained.proof.verify(trained.steps[-1])
    # The operator's reference, which holds everything.
    operator = nn.functional.linear_cross_entropy
    monkeypatch.setattr(nn.functional, "linear_cross_entropy", lambda *a, **k: operator(*a, **{**k, "options": None}))
    trained = train_tiny(chunked)
    with pytest.raises(InactiveTechnique, match="held all logits at once"):
        trained.proof.verify(trained.steps[-1])
