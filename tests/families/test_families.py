"""Every family of models through every technique, small and with random weights."""

import dataclasses
import logging
import re
from pathlib import Path

from rungwise.families import tables
from rungwise.families.families import FAMILIES, Family, small_config
from rungwise.families.tables import Cell, Tried, counts, in_words, table_of_named, whole_table
from rungwise.model import model as models
from rungwise.result_file import read_result

import ablate
import families
import pytest
from families import EAGER, judge, try_family
from harness import tiny_settings, train_tiny
from needs import JAMBA, NEWER_TYPES, OLMO2, marked
from results import result
from torch import nn
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

BF16_ACCUM4 = "accelerate_configs/bf16_accum4.yaml"
STEPS = ["--max_steps", "3", "--untimed_steps", "2", "--global_batch_size", "8"]
every_family = pytest.mark.parametrize(
    "family", marked(FAMILIES, {"'olmo2'": OLMO2}), ids=lambda family: family.model_type
)


class Kept(logging.Handler):
    """Keeps what a library would say on the terminal."""

    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


@pytest.fixture
def said():
    handler, logger = Kept(), logging.getLogger("transformers")
    logger.addHandler(handler)
    yield handler.messages
    logger.removeHandler(handler)


@pytest.mark.breadth(5)
@every_family
def test_all_techniques_together_are_active_and_quiet(family, said):
    settings = tiny_settings(*family.flags, *STEPS, "--gradient_checkpointing", config=BF16_ACCUM4)
    assert models.validate(settings) == []
    trained = train_tiny(settings)
    evidence = trained.proof.verify(trained.steps[-1])
    assert type(trained.model).__name__ == family.model_class
    assert (evidence["compute_dtype"], evidence["parameter_dtype"]) == ("bfloat16", "float32")
    assert evidence["recomputed_blocks"] == 4 * trained.model.config.num_hidden_layers
    assert said == []


@pytest.mark.breadth(5)
@every_family
def test_four_micro_batches_equal_one_big_batch(family):
    """In fp32, to 1e-6 of each loss, 17 units of rounding: experts, windows and scans see rows one by one."""
    big = train_tiny(tiny_settings(*family.flags, *STEPS))
    split = train_tiny(tiny_settings(*family.flags, *STEPS, "--gradient_accumulation_steps", "4"))
    assert split.losses == pytest.approx(big.losses, rel=1e-6)


def test_a_model_that_cannot_be_checkpointed_is_skipped(tmp_path):
    tiny = ["--model_type", "openai-gpt", "--config_overrides", "vocab_size=256,n_embd=32,n_layer=2,n_head=2"]
    flags = [*STEPS, "--block_size", "32", "--dataset_name", "synthetic", "--report_to", "none"]
    config = ["--config", "accelerate_configs/fp32_cpu.yaml", "--output_dir", str(tmp_path)]
    assert ablate.main([*config, *tiny, *flags, "--gradient_checkpointing"]) == 1
    found = read_result(tmp_path)
    assert (found["status"], found["loss"]) == ("skipped", {})
    assert found["reason"] == (
        "OpenAIGPTLMHeadModel does not support gradient checkpointing; leave --gradient_checkpointing out"
    )


def test_a_cell_is_ok_only_if_the_losses_follow():
    baseline = result(losses=[4.0, 3.0])
    assert judge("accumulation", result(losses=[4.0, 3.0]), baseline).text == "ok"
    assert judge("accumulation", result(losses=[4.0, 3.001]), baseline).text.startswith("failed: losses are 3.3e-04")
    # Ten times what accumulation makes of rounding, which is held to the bound itself.
    further = result(losses=[4.0, 3.00015])
    assert judge("chunked loss", further, baseline, 4e-6).text.startswith("failed: losses are 5.0e-05")
    assert judge("chunked loss", further, baseline, 6e-6).text.startswith("ok: 5.0e-05 from fp32, in a model that")
    assert judge("bf16", result(losses=[4.01, 3.1]), baseline).text == "ok"
    assert judge("bf16", result(losses=[4.1, 3.0]), baseline).text.startswith("failed: losses are 2.5e-02")
    compiled = result(losses=[4.0, 3.0], torch_compile=True)
    assert judge("compile", compiled, baseline).text == "ok: 1 graph, 0 graph breaks"
    assert judge("compile", result(status="skipped", reason="why\nso"), baseline).text == "skipped: why so"
    assert judge("compile", result(status="diverged", reason="nan"), baseline).text == "failed: nan"
    inactive = result(status="failed", reason="InactiveTechnique: computed in float32")
    assert judge("bf16", inactive, baseline).text == "refused: computed in float32"
    mixed = result(status="failed", reason="RuntimeError: index_add_(): must have the same scalar type")
    assert judge("bf16", mixed, baseline).text.startswith("refused: its own code does not run under autocast: Runtime")
    assert judge("accumulation", mixed, baseline).text.startswith("failed: RuntimeError")
    baseline["evidence"]["dropout"] = True
    assert judge("accumulation", result(losses=[5.0, 2.0]), baseline).text.startswith("ok: it draws other numbers")


def test_the_tables_that_are_shipped_are_of_these_families():
    readme, whole = (Path("recipes", name).read_text(encoding="utf-8") for name in ("own_model.md", "families.md"))
    table = readme.partition("<!-- families -->")[2].partition("<!-- /families -->")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")][2:]
    assert rows == [family.name for family in FAMILIES]
    # What was counted stands in both, and nothing failed.
    [line] = [line for line in table.splitlines() if line.startswith("Of ")]
    assert line in whole.splitlines()
    assert "failed" not in table + whole
    assert len([row for row in whole.splitlines() if row.startswith("| ")]) - 2 == int(line.split()[1])


# Of each kind one: latent attention and experts, layers of their own sizes, a scan beside attention, linear attention,
# a recurrence, blocks that run without gradients before they run with them, an encoder made a decoder, the text part
# of a model that sees; and of what is refused: a loss of its own, a leak, a config that makes no model.
SAMPLE = {
    "deepseek_v3": "ok",
    "gemma4_text": "ok",
    "bamba": "ok",
    "qwen3_next": "ok",
    "rwkv": "ok",
    "hrm_text": "ok",
    "bert": "ok",
    "gemma3": "ok",
    "bart": "refused: the model ignores num_items_in_batch",
    "cpmant": "refused: CpmAntForCausalLM is not causal",
    "gemma4_unified_assistant": "refused: cannot be made small from its config",
}


@pytest.mark.breadth(3)
@pytest.mark.parametrize("model_type", marked(SAMPLE, {"gemma4_text": NEWER_TYPES, "hrm_text": NEWER_TYPES}))
def test_a_sample_of_all_families_is_trained_or_refused_in_words(model_type, tmp_path):
    """The small model of any type that Transformers has: accumulated as one batch, and checkpointed."""
    techniques = [
        "accumulation",
        "checkpointing",
        *(["chunked loss"] if hasattr(nn, "LinearCrossEntropyOptions") else []),
    ]
    tried = try_family(Family(model_type, model_type), techniques, tmp_path, tmp_path)
    assert in_words(tried).startswith(SAMPLE[model_type]) and "failed" not in in_words(tried)
    assert (tried.status == "ok") == (len(tried.cells) == len(techniques))
    chunked = tried.cells.pop("chunked loss").text if "chunked loss" in tried.cells else "ok"
    assert chunked == "ok" or re.match(r"skipped: \w+ (changes its logits|has)", chunked)
    assert {cell.text for cell in tried.cells.values()} <= {"ok"}


@pytest.mark.parametrize("model_type", marked(["gemma3_text", "qwen3_next", "jamba", "olmo_hybrid"], {"jamba": JAMBA}))
def test_a_small_model_has_a_layer_of_each_kind(model_type):
    whole, small = CONFIG_MAPPING[model_type](), small_config(model_type)
    assert set(small.layer_types) == set(whole.layer_types) and len(set(small.layer_types)) > 1
    assert len(small.layer_types) == small.num_hidden_layers < whole.num_hidden_layers


def test_a_small_model_shares_heads_of_keys_where_the_whole_does():
    assert small_config("llama").num_key_value_heads == small_config("llama").num_attention_heads == 2
    assert (small_config("mixtral").num_key_value_heads, small_config("mixtral").num_attention_heads) == (1, 2)


def test_tables_and_counts_say_what_came_of_each_family():
    one, other, last = (Family(name, name) for name in ("llama", "bart", "bert"))
    cells = {"bf16": Cell("ok", 1e-3), "accumulation": Cell("ok", 2e-7), "checkpointing": Cell("ok", 0.0)}
    cells |= {"fused activation": Cell("skipped: none"), "chunked loss": Cell("ok", 1e-7)}
    ok = Tried("ok", cells=cells)
    rows = {
        other: Tried("refused", "BartForCausalLM ignores a | sign, so that it is of no use"),
        one: ok,
        last: dataclasses.replace(ok, draws=True, trained=0.5),
    }
    assert counts(rows, EAGER) == (
        "Of 3 model types 2 are trained; bf16: 2 ok; accumulation: 2 ok; checkpointing: 2 ok; "
        "fused activation: 2 skipped; chunked loss: 2 ok; 1 refused: it ignores a | sign."
    )
    lines = whole_table(rows, EAGER, "(there)").splitlines()
    refused = "refused: BartForCausalLM ignores a \\| sign, so that it is of no use"
    assert f"| bart | `BartForCausalLM` | {refused} |  |  |  |  |  |" in lines
    assert (
        "| bert | `BertLMHeadModel` | ok, draws random numbers, trains 50.0% | ok | ok | ok | skipped: none | ok |"
        in lines
    )
    assert "| llama | `LlamaForCausalLM` | ok | ok | ok | ok | skipped: none | ok |" in lines
    assert (
        "relative to it: bf16 1.0e-03 (step 1), accumulation 2.0e-07, checkpointing 0.0e+00, chunked loss 1.0e-07."
        in "\n".join(lines)
    )
    compiled = dataclasses.replace(ok, cells={**cells, "compile": Cell("ok: 1 graph")})
    named = table_of_named({FAMILIES[0]: compiled}, families.TECHNIQUES)
    assert "| GPT-2 | `GPT2LMHeadModel` | ok | ok | ok | skipped: none | ok | ok: 1 graph |" in named.splitlines()


def test_words_of_many_families_are_said_once():
    cell = "skipped: {} has none; leave it out"
    rows = {f: Tried("ok", cells={"fused": Cell(cell.format(f.model_class))}) for f in FAMILIES[: tables.MANY]}
    lines = table_of_named(rows, ["fused"]).splitlines()
    assert [line.split(" | ")[2] for line in lines[2 : 2 + tables.MANY]] == ["skipped (1) |"] * tables.MANY
    assert "(1) it has none; leave it out" in lines
    del rows[FAMILIES[0]]
    assert "skipped: OPTForCausalLM has none" in table_of_named(rows, ["fused"])


def test_sizes_that_follow_from_others_follow_the_overrides():
    """A Llama of two heads has two heads of keys, not the 32 of the default config."""
    overrides = "vocab_size=256,hidden_size=32,num_attention_heads=2"
    config = models.load_config(tiny_settings("--model_type", "llama", "--config_overrides", overrides))
    assert (config.num_key_value_heads, config.head_dim) == (2, 16)


def test_special_tokens_outside_the_vocabulary_are_cleared():
    settings = tiny_settings("--model_type", "phi3", "--config_overrides", "vocab_size=256")
    config = models.load_config(settings)
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, None, None)
    kept = tiny_settings("--model_type", "phi3", "--config_overrides", "vocab_size=256,pad_token_id=7")
    assert models.load_config(kept).pad_token_id == 7


@pytest.mark.parametrize("model_type", ["mixtral", "qwen3_moe"])
def test_a_router_loss_is_off_and_refused(model_type):
    """It is a mean over each micro-batch, which Transformers adds to the loss as it is."""
    family = next(family for family in FAMILIES if family.model_type == model_type)
    overrides = family.config_overrides
    assert (
        models.load_config(tiny_settings(config_overrides=overrides, model_type=model_type)).output_router_logits
        is False
    )
    asked = tiny_settings(config_overrides=f"{overrides},output_router_logits=true", model_type=model_type)
    [problem] = models.validate(asked)
    assert "output_router_logits is true" in problem and "set output_router_logits=false" in problem


def test_a_checkpoint_with_a_router_loss_is_told_where_to_mend_it(tmp_path):
    family = next(family for family in FAMILIES if family.model_type == "mixtral")
    config = models.load_config(tiny_settings(*family.flags))
    config.output_router_logits = True
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    [problem] = models.validate(tiny_settings(config_overrides=None, model_name_or_path=str(tmp_path)))
    assert f"set output_router_logits=false in {tmp_path}/config.json" in problem
