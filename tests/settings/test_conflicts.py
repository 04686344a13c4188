"""Flags that would not act in a call: every one of them is refused, unless there is no such call."""

from rungwise.settings.fields import FIELDS
from rungwise.settings.needs import OUR_LOOP
from rungwise.settings.parse import parse

import pytest

FP32, FSDP2 = "accelerate_configs/fp32.yaml", "accelerate_configs/fsdp2.yaml"
TWO = {"WORLD_SIZE": "2"}

# For each flag that needs something: the flag as it is given, what makes it act, and calls in which it would not, each
# with a word of the message.
COMPILE, LORA, EVALUATION, SYNTHETIC = "--torch_compile", "--use_peft", "--eval_steps 5", "--dataset_name synthetic"
FILE, NO_TRACKER = "--train_file README.md", "--report_to none"
NEEDY = {
    "config_overrides": ("n_layer=1", "", {"--model_name_or_path x": "beside --model_name_or_path"}),
    "dataset_config_name": ("x", "--dataset_name a/b", {"": "name a data set", SYNTHETIC: "", FILE: "files"}),
    "dataset_split": ("x", "--dataset_name a/b", {"": "", SYNTHETIC: "", FILE: "", "--dataset_name README.md": ""}),
    "text_column": ("x", "--train_file a.csv", {"": "no columns", SYNTHETIC: "", FILE: "on plain text"}),
    "tokenizer_name": ("x", "", {SYNTHETIC: "made of tokens"}),
    "append_eos": ("false", "", {SYNTHETIC: "made of tokens"}),
    "ignore_mismatched_weights": ("true", "--model_name_or_path x", {"": "without --model_name_or_path; add it"}),
    "packing": ("false", "", {SYNTHETIC: "on synthetic rows"}),
    "streaming": ("true", "", {SYNTHETIC: "made in memory", f"{SYNTHETIC} {EVALUATION} --validation_file x": ""}),
    "eval_steps": ("5", "", {"--max_steps 4": "beyond the run's --max_steps 4; lower it"}),
    "validation_file": ("x", EVALUATION, {"": "without --eval_steps; add it"}),
    "validation_split_percentage": (
        "9",
        EVALUATION,
        {
            "": "without --eval_steps",
            f"{EVALUATION} --validation_file x": "beside --validation_file",
            f"{EVALUATION} --streaming": "use --max_eval_samples",
        },
    ),
    "max_eval_samples": ("9", EVALUATION, {"": "without --eval_steps; add it"}),
    "sync_each_batch": (
        "true",
        "--gradient_accumulation_steps 2",
        {"": "without several processes and accumulation"},
    ),
    "gradient_checkpointing_kwargs": (
        '{"use_reentrant":false}',
        "--gradient_checkpointing",
        {"": "without --gradient_checkpointing; add it"},
    ),
    "tf32": ("true", "", {"--dtype bfloat16": "on products in bf16; take accelerate_configs/fp32.yaml, or drop"}),
    "torch_compile_mode": ("reduce-overhead", COMPILE, {"": "without --torch_compile; add it"}),
    "torch_compile_scope": ("regional", COMPILE, {"": "without --torch_compile; add it"}),
    "torch_compile_cache_dir": ("x", COMPILE, {"": "without --torch_compile; add it"}),
    "activation_memory_budget": ("0.5", COMPILE, {"": "without --torch_compile; add it"}),
    "eager_run": ("x", COMPILE, {"": "without --torch_compile; add it"}),
    "fsdp_reshard_after_forward": ("false", None, {"": "without FSDP, which the config asks for"}),
    "lora_r": ("16", LORA, {"": "without --use_peft; add it, or drop this"}),
    "lora_alpha": ("4", LORA, {"": "without --use_peft; add it"}),
    "lora_target_modules": ("x", LORA, {"": "without --use_peft; add it"}),
    "warmup_steps": ("3", "--lr_scheduler_type linear", {"": "use --lr_scheduler_type constant_with_warmup"}),
    "checkpointing_steps": ("5", "", {"--max_steps 4": "beyond the run's --max_steps 4; lower it"}),
    "save_total_limit": ("5", "--checkpointing_steps 5", {"": "without --checkpointing_steps; add it"}),
    "resume_from_checkpoint": ("x", "", {}),
    "save_model": ("true", "", {}),
    "project": ("x", "", {NO_TRACKER: "with --report_to none", "--report_to tensorboard": "which has none"}),
    "group": ("x", "", {NO_TRACKER: "with --report_to none", "--report_to tensorboard": "which has none"}),
}
# Those that act in every call, with a value.
ALWAYS = {
    "model_name_or_path": "x",
    "config_name": "x",
    "model_type": "llama",
    "trust_remote_code": "true",
    "attn_implementation": "sdpa",
    "dtype": "bfloat16",
    "dataset_name": "synthetic",
    "train_file": "x",
    "block_size": "4",
    "global_batch_size": "4",
    "gradient_accumulation_steps": "4",
    "gradient_checkpointing": "true",
    "fused_activation": "true",
    "linear_cross_entropy": "true",
    "use_liger_kernel": "true",
    "torch_compile": "true",
    "use_peft": "true",
    "optim": "adamw_torch_fused",
    "max_steps": "99",
    "untimed_steps": "4",
    "learning_rate": "0.5",
    "lr_scheduler_type": "linear",
    "weight_decay": "0.5",
    "max_grad_norm": "0.5",
    "seed": "4",
    "report_to": "none",
    "forecast": "false",
    "plots": "false",
    "run_name": "x",
    "output_dir": "x",
}


def test_every_flag_is_looked_at():
    flags = {name for name, field in FIELDS.items() if field.metadata["group"] and name != "config"}
    assert flags == {*NEEDY, *ALWAYS} and not NEEDY.keys() & ALWAYS.keys()
    assert {name for name in flags if FIELDS[name].metadata["needs"]} == NEEDY.keys()


@pytest.mark.parametrize("name", [*NEEDY, *ALWAYS])
def test_every_flag_can_be_given(name):
    value, acting, _ = NEEDY.get(name) or (ALWAYS[name], "", {})
    config = FP32 if acting is not None else "accelerate_configs/fsdp2.yaml"
    processes = {} if name in ALWAYS or acting == COMPILE else TWO
    settings, errors = parse(["--config", config, f"--{name}", value, *(acting or "").split()], processes)
    assert errors == []
    assert settings.origins[name] == "flag" and getattr(settings, name) is not None


@pytest.mark.parametrize("name, call", [(name, call) for name, (_, _, calls) in NEEDY.items() for call in calls])
def test_a_flag_that_would_not_act_is_refused(name, call):
    value, _, calls = NEEDY[name]
    _, errors = parse(["--config", FP32, f"--{name}", value, *call.split()], {})
    [problem] = [problem for problem in errors if f"--{name} has no effect " in problem]
    assert calls[call] in problem and "{" not in problem


@pytest.mark.parametrize("name", [name for name, f in FIELDS.items() if OUR_LOOP in f.metadata["needs"]])
def test_a_flag_that_no_trainer_serves_is_refused(name):
    value, acting, _ = NEEDY[name]
    line = f"--{name} {value} {acting or ''}".split()
    _, errors = parse(["--config", FP32 if acting is not None else FSDP2, *line], TWO, engine="trainer")
    assert any(f"--{name} has no effect by transformers.Trainer" in problem for problem in errors)


# Given as it is anyway, or as what asks for nothing.
@pytest.mark.parametrize(
    "line",
    [
        "--packing true --dataset_name synthetic",
        "--streaming false --dataset_name synthetic",
        "--sync_each_batch false",
        "--fsdp_reshard_after_forward true",
        "--activation_memory_budget 1",
        "--warmup_steps 0",
    ],
)
def test_a_flag_that_asks_for_nothing_is_fine(line):
    assert parse(["--config", FP32, *line.split()], {})[1] == []


def test_a_flag_acts_on_what_is_evaluated_on_alone(tmp_path):
    line = f"{SYNTHETIC} {EVALUATION} --validation_file x.csv --text_column a --tokenizer_name b --packing false"
    assert parse(["--config", FP32, *line.split()], {})[1] == []


def test_what_the_config_says_needs_the_same(config):
    path = config("dynamo_config: {mode: max-autotune, use_regional_compilation: true}\n")
    _, errors = parse(["--config", path], {})
    assert len(errors) == 2
    assert f"{path}: torch_compile_mode has no effect without --torch_compile; add it, or drop this" in errors
    settings, errors = parse(["--config", path, "--torch_compile"], {})
    assert errors == [] and settings.torch_compile_mode == "max-autotune"


def test_what_the_config_says_of_a_technique_goes_with_it(config):
    """No setting stands in a result that did not act."""
    path = config("dynamo_config: {backend: INDUCTOR, mode: max-autotune}\n")
    settings, errors = parse(["--config", path, "--torch_compile", "false"], {})
    assert errors == [] and settings.torch_compile_mode == "default"
    assert settings.origins["torch_compile_mode"] == f"default: {path}'s goes with --torch_compile"


def test_all_that_would_not_act_is_listed_together():
    line = "--lora_r 4 --torch_compile_mode max-autotune --dataset_split x --text_column a --warmup_steps 2000"
    _, errors = parse(["--config", FP32, *line.split(), "--checkpointing_steps", "500", "--max_steps", "4"], {})
    assert [problem.split()[0] for problem in errors] == [
        "--dataset_split", "--text_column", "--torch_compile_mode", "--lora_r", "--warmup_steps",
        "--checkpointing_steps",
    ]  # fmt: skip
