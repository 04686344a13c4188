"""Flags, file, launcher and defaults to one set of settings; everything wrong with a call in one list."""

import dataclasses
import json

from rungwise.settings import parse as resolve
from rungwise.settings.fields import FIELDS, Settings
from rungwise.settings.parse import parse

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

FP32 = "accelerate_configs/fp32.yaml"
BF16 = "accelerate_configs/bf16.yaml"


def resolved(*flags, config=FP32, environ=None):
    settings, problems = parse(["--config", config, *flags], environ or {})
    assert problems == []
    return settings


def problems(*flags, config=FP32, environ=None):
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
    "--model_name_or_path x --config_overrides a=1": "drop one",
    "--train_file x --dataset_name synthetic": "each name the data",
    "--dataset_name synthetic --streaming": "synthetic rows are in memory, drop it",
    "--dataset_name synthetic --packing false": "synthetic rows are full, drop it",
    "--eval_steps 0": "--eval_steps: must be at least 1",
    "--validation_file x": "--validation_file has no effect without --eval_steps; add it",
    "--max_eval_samples 9": "--max_eval_samples has no effect without --eval_steps; add it",
    "--eval_steps 5 --validation_split_percentage 100": "leaves no row to train on; use 1 to 99",
    "--eval_steps 5 --validation_split_percentage 9 --validation_file x": "has no effect beside --validation_file",
    "--eval_steps 5 --validation_split_percentage 9 --streaming": "use --max_eval_samples",
    "--warmup_steps 3": "use --lr_scheduler_type constant_with_warmup",
    "--max_steps 3": "leaves no step to time",
    "--untimed_steps 1": "--untimed_steps: must be at least 2",
    "--dtype float16": "--dtype: 'float16' does not exist",
    "--run_name a/b": "it names a folder",
    "--output_dir README.md": "--output_dir README.md: a file stands in the way",
    "--output_dir README.md/deeper": "a file stands in the way",
}


@pytest.mark.parametrize("line", BAD)
def test_each_bad_flag_has_one_message_with_its_mend(line):
    found = problems(*line.split())
    assert len(found) == 1 and BAD[line] in found[0], found


def test_pure_bf16_is_named_as_such_and_stands_without_autocast():
    pure = resolved("--dtype", "bfloat16")
    assert (pure.run_name, pure.mixed_precision, pure.precision) == ("pure_bf16", "no", "bf16")
    assert resolved("--dtype", "bfloat16", "--gradient_checkpointing").run_name == "pure_bf16-ckpt"
    assert (resolved().precision, resolved(config=BF16).precision) == ("no", "bf16")
    [problem] = problems("--dtype", "bfloat16", config=BF16)
    assert f"{BF16} says mixed_precision bf16" in problem and "use accelerate_configs/fp32.yaml" in problem
    assert problems("--dtype", "float32", config=BF16) == []


def test_all_problems_of_a_call_are_listed_together(config):
    file = config("mixed_precision: bf61\nnonsense: 1\n")
    found = problems(
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
    assert problems(config="")[0] == "--config: needs a value"


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


@pytest.mark.parametrize("name", [name for name, f in FIELDS.items() if f.metadata["group"] and name != "config"])
def test_every_flag_can_be_given(name):
    given_value = {
        bool: "true",
        int: "4",
        float: "0.5",
        str: "word",
        "json": json.dumps({"use_reentrant": False}),
    }
    field, extra = FIELDS[name], []
    value = (
        field.metadata["choices"][-1]
        if field.metadata["choices"]
        else given_value[type(field.default)]
        if field.default is not None
        else given_value["json" if name.endswith("kwargs") else int if name.endswith(("_steps", "_limit")) else str]
    )
    if name == "gradient_checkpointing_kwargs":
        extra = ["--gradient_checkpointing"]
    if name == "lora_target_modules":
        extra = ["--use_peft"]
    if name in ("activation_memory_budget", "eager_run"):
        extra = ["--torch_compile"]
    if name in ("validation_file", "validation_split_percentage", "max_eval_samples"):
        extra = ["--eval_steps", "5"]
    environ = None
    if name == "sync_each_batch":
        extra, environ = ["--gradient_accumulation_steps", "2"], {"WORLD_SIZE": "2"}
    if name == "warmup_steps":
        extra = ["--lr_scheduler_type", "linear"]
    if name == "max_steps":
        value = "99"
    settings = resolved(f"--{name}", value, *extra, environ=environ)
    assert settings.origins[name] == "flag"
    assert getattr(settings, name) is not None


def test_the_launcher_must_agree(monkeypatch):
    monkeypatch.setattr(resolve, "default_config_file", "/nowhere")
    assert problems(config=BF16, environ={"ACCELERATE_MIXED_PRECISION": "no"}) == []
    assert problems(config=BF16, environ={"ACCELERATE_MIXED_PRECISION": "bf16"}) == []
    cases = {
        "ACCELERATE_MIXED_PRECISION": ("fp16", "the launcher was told mixed_precision fp16"),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("8", "gradient_accumulation_steps 8, this run's are 1"),
        "ACCELERATE_DYNAMO_BACKEND": ("INDUCTOR", "add --torch_compile"),
        "ACCELERATE_USE_FSDP": ("true", "to use FSDP, accelerate_configs/bf16.yaml does not say so"),
        "ACCELERATE_USE_DEEPSPEED": ("true", "DEEPSPEED"),
    }
    for name, (value, message) in cases.items():
        [problem] = problems(config=BF16, environ={name: value})
        assert message in problem
    assert len(problems(config=BF16, environ={name: value for name, (value, _) in cases.items()})) == len(cases)


def test_the_users_default_file_does_not_stop_the_readme_command(monkeypatch, config):
    """The launcher reads that file when it is given none; nobody chose it for this run."""
    monkeypatch.setattr(resolve, "default_config_file", config("mixed_precision: fp16\n", "default.yaml"))
    settings = resolved(config=BF16, environ={"ACCELERATE_MIXED_PRECISION": "fp16"})
    assert settings.mixed_precision == "bf16"
    assert settings.origins["mixed_precision"].endswith("before Accelerate's default file (fp16)")


def test_the_users_default_dynamo_does_not_stop_it_either(monkeypatch, config):
    monkeypatch.setattr(
        resolve, "default_config_file", config("dynamo_config: {dynamo_backend: INDUCTOR}\n", "d.yaml")
    )
    assert problems(config=BF16, environ={"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}) == []
    assert len(problems(config=BF16, environ={"ACCELERATE_DYNAMO_BACKEND": "EAGER"})) == 1


def test_reentrant_checkpointing_with_ddp_is_refused():
    flags = ["--gradient_checkpointing", "--gradient_checkpointing_kwargs", '{"use_reentrant": true}']
    assert problems(*flags) == []
    [problem] = problems(*flags, environ={"WORLD_SIZE": "2"})
    assert "use_reentrant: true fails with several processes" in problem


def test_sharding_needs_processes_and_follows_the_file():
    fsdp = "accelerate_configs/fsdp2.yaml"
    two = {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"}
    settings = resolved(config=fsdp, environ=two)
    assert settings.fsdp and settings.fsdp_reshard_after_forward and settings.run_name == "bf16-fsdp2-x2"
    assert settings.origins["fsdp"] == settings.origins["fsdp_reshard_after_forward"] == fsdp
    assert not resolved("--fsdp_reshard_after_forward", "false", config=fsdp, environ=two).fsdp_reshard_after_forward
    [problem] = problems(config=fsdp)
    assert "shards over processes, and 1 started; launch with `accelerate launch --config_file" in problem


def test_exchanging_gradients_more_often_needs_processes_and_accumulation():
    [problem] = problems("--sync_each_batch")
    assert "has no effect without several processes and accumulation" in problem
    [problem] = problems("--sync_each_batch", environ={"WORLD_SIZE": "2"})
    assert "has no effect" in problem
    flags = ("--sync_each_batch", "--gradient_accumulation_steps", "2")
    assert problems(*flags, environ={"WORLD_SIZE": "2"}) == []


def test_what_is_the_compilers_needs_the_compiler():
    [problem] = problems("--activation_memory_budget", "0.5")
    assert "has no effect without --torch_compile" in problem
    [problem] = problems("--eager_run", "runs/fp32")
    assert "add --torch_compile, or drop it" in problem
    [problem] = problems("--torch_compile", "--activation_memory_budget", "1.5")
    assert "must be from 0 to 1, not 1.5" in problem
    assert problems("--torch_compile", "--activation_memory_budget", "0") == []


def test_processes_are_those_that_were_launched(config):
    two = config("num_processes: 2\n")
    [problem] = problems(config=two)
    assert "num_processes: 2, but 1 started" in problem and "--nproc_per_node 2" in problem
    assert resolved(config=two, environ={"WORLD_SIZE": "2"}).num_processes == 2
    assert resolved(environ={"ACCELERATE_USE_CPU": "True"}).use_cpu


def test_settings_are_plain_values():
    values = resolved("--gradient_checkpointing").as_dict()
    assert json.loads(json.dumps(values)) == values
    # What reads results does not work the precision out again.
    assert set(values) == {f.name for f in dataclasses.fields(Settings)} - {"origins"} | {"precision"}
    assert values["precision"] == "no"
