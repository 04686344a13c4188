"""What is taken from an Accelerate file, and every way it can be wrong."""

from pathlib import Path

from rungwise.settings import accelerate_yaml as config_file
from rungwise.settings.accelerate_yaml import read
from rungwise.settings.cli import checked

import pytest
from accelerate.commands.config.config_args import load_config_from_file
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
    "machine_rank: 0\nnum_machines: 1\nmain_process_port: null\nfsdp_config: {}\ndebug: false": {},
}


@pytest.mark.parametrize("text", GOOD)
def test_values(text, config):
    assert read(config(text)) == (GOOD[text], [])


@pytest.mark.parametrize("key", config_file.FSDP_VALUES)
def test_what_sharding_may_be_told_in_several_ways_is_a_setting(key, config):
    """A value that is accepted and changes nothing would be a false label."""
    taken = []
    for option in config_file.FSDP_VALUES[key]:
        entries = {"version": 2, key: option}
        text = ", ".join(f"{name}: {str(value).lower()}" for name, value in entries.items())
        values, problems = read(config(f"distributed_type: FSDP\nfsdp_config: {{{text}}}"))
        assert problems == []
        assert all(checked(name, value, name, problems) == value for name, value in values.items())
        taken.append(values)
    assert all(taken.count(values) == 1 for values in taken)


BAD = {
    "mixed_precison: bf16": "unknown key 'mixed_precison' (did you mean mixed_precision?)",
    "mixed_precision: bf61": "mixed_precision 'bf61' does not exist (did you mean bf16?)",
    "mixed_precision: fp8": "'fp8' does not exist",
    "mixed_precision: no": "write mixed_precision: 'no'",
    "mixed_precision: 16": "mixed_precision must be text, not 16",
    "distributed_type: NO": "write distributed_type: 'NO'",
    "distributed_type: MEGATRON_LM": "distributed_type 'MEGATRON_LM' has no recipe here",
    "distributed_type: FSDP": "fsdp_version must be 2, not 1 (FSDP1 has no recipe here)",
    "distributed_type: FSDP\nfsdp_config: {fsdp_version: true}": "fsdp_version must be 2, not True",
    "distributed_type: FSDP\nfsdp_config: {version: 2, reshard_after_forward: FULL_SHARD}": "must be true or false",
    "distributed_type: FSDP\nfsdp_config: {version: 2, activation_checkpointing: true}": "use the flag --grad",
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
    "fp16: true": "fp16 has no recipe here",
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
    _, problems = read(config(text))
    assert len(problems) == 1 and BAD[text] in problems[0], problems


def test_all_problems_at_once(config):
    _, problems = read(config("mixed_precision: bf61\nnonsense: 1\nnum_processes: x\nfsdp_config: {a: 1}\n"))
    assert len(problems) == 4


def test_missing_file_names_the_shipped_ones():
    _, [problem] = read("accelerate_configs/bf17.yaml")
    assert "no such file" in problem and "accelerate_configs/bf16.yaml" in problem


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
keys = st.sampled_from(
    [*config_file.UNSUPPORTED, "mixed_precision", "dynamo_config", "deepspeed_config", "fsdp_config", "x", "use_cpu"]
)


@given(st.dictionaries(keys | st.integers(), yaml_values, max_size=6))
def test_whatever_a_file_holds_is_answered_in_words(tmp_path_factory, content):
    import yaml

    path = tmp_path_factory.mktemp("any") / "any.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    values, problems = read(str(path))
    assert all(isinstance(problem, str) and str(path) in problem for problem in problems)
    assert values.get("mixed_precision", "no") in config_file.PRECISIONS
