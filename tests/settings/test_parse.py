"""Flags, file, launcher and defaults to one set of settings; everything wrong with a call in one list."""

import dataclasses
import json

from rungwise.settings.fields import FIELDS, Settings
from rungwise.settings.parse import parse

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

FP32 = "accelerate_configs/fp32.yaml"
BF16 = "accelerate_configs/bf16.yaml"


def resolved(*flags, config=FP32, environ=None):
    settings, errors = parse(["--config", config, *flags], environ or {})
    assert errors == []
    return settings


def errors(*flags, config=FP32, environ=None):
    return parse(["--config", config, *flags], environ or {})[1]


def test_defaults_are_the_design():
    settings = resolved()
    expected = {
        "mixed_precision": "no",
        "block_size": 256,
        "global_batch_size": 16,
        "micro_batch_size": 16,
        "gradient_accumulation_steps": 1,
        "dataset_name": "python-stdlib",
        "max_steps": 20,
        "untimed_steps": 3,
        "learning_rate": 1e-3,
        "max_grad_norm": 1.0,
        "optim": "adamw_torch",
        "report_to": "wandb",
        "run_name": "fp32",
        "output_dir": "runs/fp32",
        "num_processes": 1,
    }
    assert {name: getattr(settings, name) for name in expected} == expected
    assert set(settings.origins) == set(FIELDS)


def test_where_each_value_came_from():
    settings = resolved("--max_steps", "30", config="accelerate_configs/bf16_accum4.yaml")
    assert settings.micro_batch_size == 4
    assert settings.run_name == "bf16-accum4"
    origins = {name: settings.origins[name] for name in ("max_steps", "mixed_precision", "seed", "micro_batch_size")}
    assert origins == {
        "max_steps": "flag",
        "mixed_precision": "accelerate_configs/bf16_accum4.yaml",
        "seed": "default",
        "micro_batch_size": "derived",
    }
    overridden = resolved("--gradient_accumulation_steps", "2", config="accelerate_configs/bf16_accum4.yaml")
    assert overridden.gradient_accumulation_steps == 2
    assert overridden.origins["gradient_accumulation_steps"] == "flag"


def test_names_are_made_from_what_is_studied():
    flags = ["--gradient_checkpointing", "--torch_compile", "--torch_compile_scope", "regional"]
    assert resolved(*flags, config=BF16).run_name == "bf16-ckpt-compile_regional"
    assert resolved("--model_type", "llama").run_name == "llama-fp32"
    assert resolved(environ={"WORLD_SIZE": "2"}).run_name == "fp32-x2"
    assert resolved("--run_name", "mine").output_dir == "runs/mine"


BAD = {
    "--max_step 5": "unknown argument --max_step 5 (did you mean --max_steps?)",
    "--grad": "(did you mean --group?); flags are written in full",
    "stray": "unknown argument stray",
    "--max_steps": "--max_steps: needs a value",
    "--max_steps x": "--max_steps: must be a whole number, not 'x'",
    "--max_steps 2.5": "must be a whole number",
    "--max_steps -4": "must be at least 1 and finite, not -4",
    "--learning_rate fast": "--learning_rate: must be a number",
    "--learning_rate nan": "--learning_rate: must be at least 0 and finite",
    "--learning_rate inf": "--learning_rate: must be at least 0 and finite",
    "--optim adam": "--optim: 'adam' does not exist",
    "--report_to mlflow": "use one of wandb, trackio, tensorboard, none",
    "--gradient_checkpointing maybe": "must be true or false, not 'maybe'",
    "--gradient_checkpointing_kwargs {}": "has no effect without --gradient_checkpointing",
    "--gradient_checkpointing --gradient_checkpointing_kwargs nonsense": "must be a JSON object",
    '--gradient_checkpointing --gradient_checkpointing_kwargs {"use_reentrent":true}': "(did you mean use_reentrant?)",
    '--gradient_checkpointing --gradient_checkpointing_kwargs {"every_n_layers":0}': "of at least 1, not 0",
    "--global_batch_size 17 --gradient_accumulation_steps 4": "the nearest that do: 16 or 20",
    "--global_batch_size 3 --gradient_accumulation_steps 4": "the nearest that do: 4",
    "--model_type llama --config_name x": "--config_name and --model_type each name a model",
    "--model_name_or_path x --config_overrides a=1": "--config_overrides has no effect beside --model_name_or_path",
    "--seed 4294967296": "--seed: must be from 0 to 4294967295, not 4294967296",
    "--seed -1": "--seed: must be from 0 to 4294967295, not -1",
    "--train_file x --dataset_name synthetic": "each name the data",
    "--dataset_name synthetic --streaming": "no effect on synthetic rows, which are made in memory; drop it",
    "--dataset_name synthetic --packing false": "no effect on synthetic rows, which are made of tokens; drop it",
    "--eval_steps 0": "--eval_steps: must be at least 1",
    "--validation_file x": "--validation_file has no effect without --eval_steps; add it",
    "--max_eval_samples 9": "--max_eval_samples has no effect without --eval_steps; add it",
    "--eval_steps 5 --validation_split_percentage 100": "must be from 1 to 99, not 100",
    "--eval_steps 5 --validation_split_percentage 9 --validation_file x": "has no effect beside --validation_file",
    "--eval_steps 5 --validation_split_percentage 9 --streaming": "use --max_eval_samples",
    "--warmup_steps 3": "use --lr_scheduler_type constant_with_warmup",
    "--warmup_steps 20 --lr_scheduler_type linear": "--warmup_steps 20: the run's --max_steps 20 end before",
    "--max_steps 3": "leaves no step to time",
    "--untimed_steps 1": "--untimed_steps: must be at least 2",
    "--dtype float16": "--dtype: 'float16' does not exist",
    "--run_name a/b": "it names a folder",
    "--run_name ..": "it names a folder",
    "--max_steps 3000000000": "--max_steps: must be at most 2147483647, not 3000000000",
    "--global_batch_size 1000000000000000000000000000000": "must be at most 2147483647",
    "--output_dir README.md": "--output_dir README.md: a file stands in the way",
    "--output_dir README.md/deeper": "a file stands in the way",
}


@pytest.mark.parametrize("line", BAD)
def test_each_bad_flag_has_one_message_with_its_remedy(line):
    found = errors(*line.split())
    assert len(found) == 1 and BAD[line] in found[0], found


def test_pure_bf16_is_named_as_such_and_stands_without_autocast():
    pure = resolved("--dtype", "bfloat16")
    assert (pure.run_name, pure.mixed_precision, pure.precision) == ("pure_bf16", "no", "bf16")
    assert resolved("--dtype", "bfloat16", "--gradient_checkpointing").run_name == "pure_bf16-ckpt"
    assert (resolved().precision, resolved(config=BF16).precision) == ("no", "bf16")
    [problem] = errors("--dtype", "bfloat16", config=BF16)
    assert f"{BF16} says mixed_precision bf16" in problem and "use accelerate_configs/fp32.yaml" in problem
    assert errors("--dtype", "float32", config=BF16) == []


def test_all_problems_of_a_call_are_listed_together(config):
    file = config("mixed_precision: bf61\nnonsense: 1\n")
    found = errors(
        "--max_step",
        "5",
        "--learning_rate",
        "x",
        "--global_batch_size",
        "7",
        "--optim",
        "a",
        "--gradient_accumulation_steps",
        "2",
        config=file,
    )
    assert len(found) == 6


def test_config_is_required():
    assert parse([], {})[1] == ["--config is required; for example --config accelerate_configs/bf16.yaml"]
    assert errors(config="")[0] == "--config: needs a value"


@given(st.lists(st.text(min_size=1, max_size=12), max_size=4))
def test_no_command_line_makes_a_traceback(words):
    assume(not any(word in ("-h", "--help") or word.startswith("-h") for word in words))
    settings, found = parse(words, {})
    assert isinstance(settings, Settings) and all(isinstance(problem, str) for problem in found)


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 4))
def test_the_global_batch_is_kept_or_refused(rows, accumulation, processes):
    flags = ["--config", FP32, "--global_batch_size", str(rows), "--gradient_accumulation_steps", str(accumulation)]
    settings, found = parse(flags, {"WORLD_SIZE": str(processes)})
    if found:
        assert rows % (accumulation * processes)
        # Each size that the message names is one that works.
        for size in found[0].rsplit(": ", 1)[1].split(" or "):
            assert int(size) % (accumulation * processes) == 0 and int(size) > 0
    else:
        assert settings.micro_batch_size * accumulation * processes == rows


def test_reentrant_checkpointing_with_ddp_is_refused():
    flags = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}']
    assert errors(*flags) == []
    [problem] = errors(*flags, environ={"WORLD_SIZE": "2"})
    assert "use_reentrant: true fails with several processes" in problem


def test_sharding_needs_processes_and_follows_the_file():
    fsdp = "accelerate_configs/fsdp2.yaml"
    two = {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}
    settings = resolved(config=fsdp, environ=two)
    assert settings.fsdp and settings.fsdp_reshard_after_forward and settings.run_name == "bf16-fsdp2-x2"
    assert settings.origins["fsdp"] == settings.origins["fsdp_reshard_after_forward"] == fsdp
    assert not resolved("--fsdp_reshard_after_forward", "false", config=fsdp, environ=two).fsdp_reshard_after_forward
    [problem] = errors(config=fsdp)
    assert "shards over processes, and 1 started; launch with `accelerate launch --config_file" in problem


def test_settings_are_plain_values():
    values = resolved("--gradient_checkpointing").as_dict()
    assert json.loads(json.dumps(values)) == values
    # What reads results does not work the precision out again.
    assert set(values) == {f.name for f in dataclasses.fields(Settings)} - {"origins"} | {"precision"}
    assert values["precision"] == "no"


NO_NAMES = {
    "a name": (["--train_file", "a" * 256], "--train_file: its 256 bytes are too many"),
    "a name in UTF-8": (["--train_file", "é" * 128], "--train_file: its 256 bytes are too many"),
    "a folder": (["--output_dir", f"a/{'b' * 256}/c"], "--output_dir: its 260 bytes are too many"),
    "a path": (["--output_dir", "a/" * 512], "--output_dir: its 1024 bytes are too many"),
    "a run": (["--run_name", "a" * 256], "--run_name: its 256 bytes are too many"),
    "a made name": (["--model_type", "a" * 255], "too long for the name of a folder; give a shorter one"),
    "no text": (["--train_file", "\udcff.txt"], "--train_file: '\\udcff.txt' is not UTF-8; rename it"),
    "a NUL": (["--group", "a\0b"], "--group: 'a\\x00b' has a NUL in it; drop that"),
    "depth": (["--gradient_checkpointing", "--gradient_checkpointing_kwargs", "[" * 50_000], "must be a JSON object"),
}


@pytest.mark.parametrize("case", NO_NAMES)
def test_what_can_name_nothing(case):
    flags, words = NO_NAMES[case]
    [problem] = errors(*flags)
    assert words in problem
    # A list of changes is no name.
    assert errors("--config_overrides", ",".join(["n_layer=2"] * 200)) == []


@pytest.mark.parametrize("size", ["x", "", "0", "-2", "1.5", " 2", "9999999"])
def test_a_launcher_that_has_started_no_number_of_processes(size):
    found = errors(environ={"WORLD_SIZE": size})
    assert found[0] == f"WORLD_SIZE={size}: must be the number of processes that a launcher started; unset it"
