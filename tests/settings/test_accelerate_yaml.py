"""What is taken from an Accelerate file, and every way it can be wrong."""

import dataclasses
import typing
from pathlib import Path

from rungwise.settings import accelerate_keys
from rungwise.settings.accelerate_keys import KEYS
from rungwise.settings.accelerate_yaml import read
from rungwise.settings.cli import checked

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from hypothesis import given
from hypothesis import strategies as st

SHIPPED = {
    "fp32": {"mixed_precision": "no"},
    "bf16": {"mixed_precision": "bf16"},
    "fp16": {"mixed_precision": "fp16"},
    "bf16_accum4": {"mixed_precision": "bf16", "gradient_accumulation_steps": 4},
    "fp16_accum4": {"mixed_precision": "fp16", "gradient_accumulation_steps": 4},
    "one_process": {"mixed_precision": "no", "num_processes": 1},
    "fp32_cpu": {"mixed_precision": "no", "use_cpu": True, "num_processes": 1},
    "ddp": {"mixed_precision": "bf16"},
    "ddp_cpu": {"mixed_precision": "no", "use_cpu": True, "num_processes": 2},
    "fsdp2": {"mixed_precision": "bf16", "fsdp": True, "fsdp_reshard_after_forward": True},
    "fsdp2_cpu": {
        "mixed_precision": "no",
        "use_cpu": True,
        "num_processes": 2,
        "fsdp": True,
        "fsdp_reshard_after_forward": True,
    },
    "multi_node": {"mixed_precision": "bf16"},
}


def test_every_shipped_file_is_listed_here():
    assert {path.stem for path in Path("accelerate_configs").glob("*.yaml")} == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_files_say_what_their_names_say(name):
    path = f"accelerate_configs/{name}.yaml"
    assert read(path) == (SHIPPED[name], [])
    # Accelerate's own reader takes them, too.
    assert load_config_from_file(path).mixed_precision == SHIPPED[name]["mixed_precision"]


GOOD = {
    "gradient_accumulation_steps: 8": {"gradient_accumulation_steps": 8},
    "deepspeed_config: {gradient_accumulation_steps: 8}": {"gradient_accumulation_steps": 8},
    "use_cpu: true": {"use_cpu": True},
    "num_processes: 2": {"num_processes": 2},
    "dynamo_config: {dynamo_backend: INDUCTOR}": {"torch_compile": True},
    "dynamo_config: {dynamo_backend: 'NO'}": {"torch_compile": False},
    "dynamo_config: {backend: inductor, mode: max-autotune, use_regional_compilation: true}": {
        "torch_compile": True,
        "torch_compile_mode": "max-autotune",
        "torch_compile_scope": "regional",
    },
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2, fsdp_reshard_after_forward: false}": {
        "fsdp": True,
        "fsdp_reshard_after_forward": False,
    },
    "distributed_type: FSDP\nfsdp_config: {version: 2, state_dict_type: sharded_state_dict, offload_params: false}": {
        "fsdp": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    },
    "distributed_type: FSDP\nfsdp_config: {version: 2, transformer_layer_cls_to_wrap: 'A, B'}": {
        "fsdp": True,
        "fsdp_transformer_layer_cls_to_wrap": "A,B",
    },
    "distributed_type: FSDP\nfsdp_config: {version: 2, transformer_layer_cls_to_wrap: ''}": {"fsdp": True},
    "distributed_type: FSDP\nfsdp_config: {version: 2, activation_checkpointing: true}": {
        "fsdp": True,
        "gradient_checkpointing": True,
    },
    "machine_rank: 0\nnum_machines: 1\nmain_process_port: null\nfsdp_config: {}\ndebug: false": {},
    "downcast_bf16: 'no'\ngpu_ids: all\ntpu_env: []\ntpu_use_sudo: false\ntpu_name: null\nmpirun_config: {}": {},
    "fp16: false\ndynamo_backend: 'NO'\nfp8_config: {}\nmegatron_lm_config: {}\ndynamo_config: {}": {},
}


@pytest.mark.parametrize("text", GOOD)
def test_values(text, config):
    assert read(config(text)) == (GOOD[text], [])


@pytest.mark.parametrize("key", accelerate_keys.FSDP_VALUES)
def test_what_sharding_may_be_told_in_several_ways_is_a_setting(key, config):
    """A value that is accepted and changes nothing would be a false label."""
    taken = []
    for option in accelerate_keys.FSDP_VALUES[key]:
        entries = {"version": 2, key: option}
        text = ", ".join(f"{name}: {str(value).lower()}" for name, value in entries.items())
        values, errors = read(config(f"distributed_type: FSDP\nfsdp_config: {{{text}}}"))
        assert errors == []
        assert all(checked(name, value, name, errors) == value for name, value in values.items())
        taken.append(values)
    assert all(taken.count(values) == 1 for values in taken)


BAD = {
    "mixed_precison: bf16": "unknown key 'mixed_precison' (did you mean mixed_precision?)",
    "mixed_precision: bf61": "mixed_precision 'bf61' does not exist (did you mean bf16?)",
    "mixed_precision: fp8": "'fp8' has no recipe here; use one of 'no', 'bf16', 'fp16'",
    "mixed_precision: no": "write mixed_precision: 'no'",
    "mixed_precision: 16": "mixed_precision must be text, not 16",
    "distributed_type: NO": "write distributed_type: 'NO'",
    "distributed_type: MEGATRON_LM": "distributed_type 'MEGATRON_LM' has no recipe here",
    "distributed_type: FSDP": "fsdp_version must be 2, not 1 (FSDP1 has no recipe here)",
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: true}": "fsdp_version must be 2, not True",
    "distributed_type: FSDP\nfsdp_config: {version: 2, reshard_after_forward: FULL_SHARD}": "must be true or false",
    "distributed_type: FSDP\nfsdp_config: {version: 2, activation_checkpointing: 1}": "must be false or true, not 1",
    "distributed_type: FSDP\nfsdp_config: {version: 2, activation_checkpointing_offload: true}": "use --gradient_ch",
    "distributed_type: FSDP\nfsdp_config: {version: 2, transformer_layer_cls_to_wrap: [A]}": "must be text, not ['A']",
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: 1, backward_prefetch: X}": "FSDP1 has no recipe here",
    "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}": "'DEEPSPEED' has no recipe here; use one of NO",
    "distributed_type: FSDP\nfsdp_config: {version: 2, offload_params: true}": "fsdp_offload_params must be false",
    "distributed_type: FSDP\nfsdp_config: {version: 2, auto_wrap: x}": "fsdp_auto_wrap has no recipe here",
    "distributed_type: [1]": "distributed_type must be text",
    "gradient_accumulation_steps: four": "must be a whole number",
    "gradient_accumulation_steps: 2.5": "must be a whole number",
    "gradient_accumulation_steps: true": "must be a whole number",
    "gradient_accumulation_steps: 0": "at least 1, not 0",
    "deepspeed_config: {gradient_accumulation_steps: -1}": "at least 1, not -1",
    "deepspeed_config: {gradient_accumulation_steps: '4'}": "not '4'",
    "deepspeed_config: {zero_stage: 2}": "DeepSpeed is not used",
    "deepspeed_config: 4": "deepspeed_config must be a mapping",
    "gradient_accumulation_steps: 2\ndeepspeed_config: {gradient_accumulation_steps: 4}": "keep one",
    "num_processes: two": "num_processes must be a whole number, not 'two'",
    "use_cpu: 3": "use_cpu must be true or false",
    "commands: ls": "commands must be a list",
    "fsdp_config: {fsdp_version: 2}": "fsdp_config has no effect without distributed_type: FSDP",
    "fp16: true": "fp16 has no recipe here; write mixed_precision: fp16",
    "dynamo_backend: INDUCTOR": "dynamo_backend has no recipe here; write dynamo_config",
    "downcast_bf16: true": "downcast_bf16 has no recipe here and would have no effect; remove it",
    "downcast_bf16: 'yes'": "downcast_bf16 has no recipe here",
    "tpu_use_cluster: true": "tpu_use_cluster has no recipe here",
    "tpu_env: [A=1]": "tpu_env has no recipe here",
    "fp8_config: {backend: TE}": "fp8_config has no recipe here",
    "megatron_lm_config: {megatron_lm_tp_degree: 2}": "megatron_lm_config has no recipe here",
    "parallelism_config: {parallelism_config_tp_size: 2}": "parallelism_config has no recipe here",
    "gpu_ids: 0": "gpu_ids must be text, not 0",
    "compute_environment: AMAZON_SAGEMAKER": "must be LOCAL_MACHINE",
    "dynamo_config: {dynamo_backend: AOT_EAGER}": "use INDUCTOR or 'NO'",
    "dynamo_config: {dynamo_bakend: INDUCTOR}": "unknown key 'bakend' (did you mean backend?)",
    "dynamo_config: {dynamo_backend: INDUCTOR, dynamo_use_fullgraph: true}": "use_fullgraph has no recipe",
    "dynamo_config: {dynamo_use_dynamic: 3}": "use_dynamic must be true or false",
    "a: b: c": "not YAML near line 1",
    "- a\n- b": "holds list",
    "": "holds NoneType",
}


@pytest.mark.parametrize("text", BAD)
def test_problems(text, config):
    _, errors = read(config(text))
    assert len(errors) == 1 and BAD[text] in errors[0], errors


def test_all_problems_at_once(config):
    _, errors = read(config("mixed_precision: bf61\nnonsense: 1\nnum_processes: x\nfsdp_config: {a: 1}\n"))
    assert len(errors) == 4


@pytest.mark.parametrize("wrong", ["accelerate_configs/bf17.yaml", "accelerate_configs/bf16.yml", "bf16.yaml", "bf16"])
def test_a_missing_file_names_the_nearest_and_the_shipped_ones(wrong):
    _, [problem] = read(wrong)
    assert "no such file (did you mean accelerate_configs/bf16.yaml?)" in problem
    assert "shipped here: accelerate_configs/bf16.yaml" in problem


def test_a_file_beside_the_wrong_name_is_nearer_than_a_shipped_one(config):
    right = Path(config(name="mine.yml"))
    assert f"(did you mean {right}?)" in read(str(right.with_suffix(".yaml")))[1][0]
    assert f"(did you mean {right}?)" in read(str(right.with_name("min.yml")))[1][0]
    assert "did you mean" not in read(str(right.with_name("quite another")))[1][0]


FIELDS = {field.name: field for field in dataclasses.fields(ClusterConfig)}


def test_the_keys_are_those_of_the_installed_accelerate():
    """A key that is not in the table is looked up there, which takes the import of PyTorch."""
    assert FIELDS.keys() <= KEYS.keys()
    hints = typing.get_type_hints(ClusterConfig)
    for name in FIELDS.keys() - {"compute_environment", "distributed_type", "downcast_bf16"}:
        options = typing.get_args(hints[name]) if typing.get_origin(hints[name]) is typing.Union else (hints[name],)
        assert KEYS[name].kind in {typing.get_origin(option) or option for option in options}, name


@pytest.mark.parametrize("name", FIELDS)
def test_a_default_of_accelerate_changes_nothing(name, config):
    default = FIELDS[name].default
    # -1 stands for a number that Slurm knows; no file holds it.
    if default is dataclasses.MISSING or default == -1:
        assert KEYS[name].read or KEYS[name].launcher
        return
    assert read(config(yaml.safe_dump({name: default}))) == ({}, [])


def test_a_key_that_only_a_newer_accelerate_has_is_looked_up_there(config, monkeypatch):
    for name in ("tpu_use_sudo", "gpu_ids", "rdzv_backend"):
        monkeypatch.delitem(KEYS, name)
    assert read(config("tpu_use_sudo: false\ngpu_ids: null\nrdzv_backend: static\n")) == ({}, [])
    _, [problem] = read(config("rdzv_backend: c10d\n"))
    assert "rdzv_backend has no recipe here and would have no effect; remove it" in problem


def test_a_folder_and_bytes_that_are_no_text(tmp_path):
    assert "cannot be read" in read(str(tmp_path))[1][0]
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "not YAML" in read(str(binary))[1][0]


yaml_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from([*KEYS, "x"])


@given(st.dictionaries(keys | st.integers(), yaml_values, max_size=6))
def test_whatever_a_file_holds_is_answered_in_words(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    values, errors = read(str(path))
    assert all(isinstance(problem, str) and str(path) in problem for problem in errors)
    assert values.get("mixed_precision", "no") in accelerate_keys.PRECISIONS
