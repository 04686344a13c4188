"""TRL's SFTTrainer with the same line."""

import os

from rungwise.trainer import MeasureCallback

import pytest
from datasets import Dataset
from harness import word_tokenizer
from needs import marked, needs
from trainers import SIZES, lines, read, same
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, TrainerCallback, set_seed

trl = pytest.importorskip("trl", reason="needs trl: pip install 'rungwise[trl]'")


class Batches(TrainerCallback):
    """Counts, independently, what each step learns from."""

    def __init__(self):
        self.tokens = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model.register_forward_pre_hook(self.look, with_kwargs=True)

    def on_step_begin(self, *args, **kwargs):
        self.tokens.append(0)

    def look(self, model, args, kwargs):
        self.tokens[-1] += sum(int((row[1:] != -100).sum()) for row in kwargs["labels"])


def sft(folder, tokenizer, *callbacks, **arguments):
    set_seed(0)
    sizes = {"vocab_size": SIZES["vocab_size"], "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=2, bos_token_id=None, eos_token_id=1, pad_token_id=0)
    texts = [{"text": " ".join(f"w{(7 * n + k) % 100 + 2}" for k in range(5 + n % 20))} for n in range(64)]
    arguments = {"max_steps": 14, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **arguments}
    args = trl.SFTConfig(
        output_dir=str(folder),
        use_cpu=True,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **arguments,
    )
    trainer = trl.SFTTrainer(
        model=LlamaForCausalLM(config),
        args=args,
        train_dataset=Dataset.from_list(texts),
        processing_class=AutoTokenizer.from_pretrained(tokenizer),
        callbacks=list(callbacks),
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, {name: value.clone() for name, value in trainer.model.state_dict().items()}


@pytest.fixture
def tokenizer(tmp_path):
    special = {"pad_token": "w0", "eos_token": "w1", "unk_token": "w0"}
    return word_tokenizer(tmp_path / "tokenizer", SIZES["vocab_size"], **special)


FIRST = needs("first labels, which nothing predicts, are not counted", transformers="5.13")


@pytest.mark.parametrize("packing", marked([False, True], {"False": FIRST}))
def test_the_same_line_measures_an_sft_trainer(tmp_path, tokenizer, monkeypatch, packing):
    monkeypatch.setenv("CI", "1")  # no word to TRL of this
    arguments = {"bf16": True, "gradient_checkpointing": True, "packing": packing, "max_length": 24}
    batches = Batches()
    without, weights = sft(tmp_path / "without", tokenizer, **arguments)
    losses, measured = sft(tmp_path / "with", tokenizer, MeasureCallback(), batches, **arguments)
    assert os.environ["CI"] and losses == without and same(weights, measured)
    result, rows = read(tmp_path / "with" / "result.json"), lines(tmp_path / "with" / "metrics.jsonl")
    assert (result["status"], result["reason"]) == ("ok", None)
    assert result["evidence"]["compute_dtype"] == "bfloat16" and result["evidence"]["recomputed_blocks"] == 4
    assert result["evidence"]["micro_batches"] == 2 and result["evidence"]["items_per_token"] == 1
    assert [row["train/tokens"] for row in rows] == [sum(batches.tokens[: n + 1]) for n in range(14)]
    # Llama's labels are counted as they are shifted: the loss that TRL logs is a token's.
    assert [row["train/loss"] for row in rows] == pytest.approx(losses, rel=1e-6)
    assert result["memory"]["peak_allocated_mib"] > 0 and result["throughput"]["timed_steps"] == 11
