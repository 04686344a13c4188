"""The files that `accelerate config` writes, made by Accelerate's own code, and what is taken from them."""

from rungwise.settings.accelerate_yaml import read
from rungwise.settings.parse import parse

import pytest
from accelerate.commands.config import cluster, config_utils
from accelerate.commands.config.default import write_basic_config

# Answers by a part of the question; every other question is answered by pressing the return key.
GPUS = {"type of machine": "multi-GPU", "How many GPU(s)": "2"}
UNITS = GPUS | {"FullyShardedDataParallel": "yes"}
FSDP = UNITS | {"_no_split_modules": "yes"}
DYNAMO = {"torch dynamo": "yes"}
INDUCTOR = DYNAMO | {"dynamo backend": "inductor"}
ONE = {"mixed_precision": "no", "use_cpu": False, "num_processes": 1}
TWO = ONE | {"num_processes": 2}
SHARDED = TWO | {
    "fsdp": True,
    "fsdp_reshard_after_forward": True,
    "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_cpu_ram_efficient_loading": True,
}
COMPILED = ONE | {"torch_compile": True}
TAKEN = {
    "one device": ({}, ONE),
    "a CPU": ({"CPU only": "yes"}, ONE | {"use_cpu": True}),
    "some GPUs of one machine": (GPUS | {"by id": "0,1", "numa efficiency": "yes", "checked while": "yes"}, TWO),
    "a precision": ({"mixed precision": "bf16"}, ONE | {"mixed_precision": "bf16"}),
    "another precision": ({"mixed precision": "fp16"}, ONE | {"mixed_precision": "fp16"}),
    "several CPUs": ({"type of machine": "multi-CPU", "How many processes": "2"}, TWO | {"use_cpu": True}),
    "several CPUs by MPI": (
        {"type of machine": "multi-CPU", "How many processes": "2", "launch mpirun": "yes"},
        TWO | {"use_cpu": True},
    ),
    "Intel's GPUs": ({"type of machine": "multi-XPU", "How many XPU(s)": "2"}, TWO),
    "several machines": (
        GPUS
        | {
            "different machines": "2",
            "rank of this machine": "1",
            "IP address": "10.0.0.1",
            "What is the port": "29500",
        },
        TWO,
    ),
    "machines far apart": (
        GPUS
        | {"different machines": "2", "IP address": "10.0.0.1", "What is the port": "29500"}
        | {"same local network": "no", "rendezvous": "c10d"},
        TWO,
    ),
    "compiled": (INDUCTOR, COMPILED),
    "compiled as it likes": (INDUCTOR | {"customize": "yes"}, COMPILED),
    "compiled in another mode, by blocks": (
        INDUCTOR | {"customize": "yes", "Which mode": "max-autotune", "regional": "yes"},
        COMPILED | {"torch_compile_mode": "max-autotune", "torch_compile_scope": "regional"},
    ),
    "sharded": (FSDP, SHARDED),
    "sharded, and gathered once": (FSDP | {"resharding": "no"}, SHARDED | {"fsdp_reshard_after_forward": False}),
    "sharded, saved whole": (
        FSDP | {"state dict type": "FULL_STATE_DICT"},
        SHARDED | {"fsdp_state_dict_type": "FULL_STATE_DICT"},
    ),
    "sharded, loaded by each": (FSDP | {"RAM efficient": "no"}, SHARDED | {"fsdp_cpu_ram_efficient_loading": False}),
    "sharded, checkpointed": (FSDP | {"activation checkpointing": "yes"}, SHARDED | {"gradient_checkpointing": True}),
    "sharded by classes": (
        FSDP | {"_no_split_modules": "no", "class names": "GPT2Block"},
        SHARDED | {"fsdp_transformer_layer_cls_to_wrap": "GPT2Block"},
    ),
    "sharded by no class": (FSDP | {"_no_split_modules": "no"}, SHARDED),
}
REFUSED = {
    "TPU": ({"type of machine": "TPU"}, "distributed_type 'XLA' has no recipe here; use one of NO, MULTI_CPU"),
    "Ascend": ({"type of machine": "multi-NPU"}, "distributed_type 'MULTI_NPU' has no recipe here"),
    "another compiler": (DYNAMO | {"dynamo backend": "eager"}, "backend 'EAGER' has no recipe here; use INDUCTOR"),
    "one graph": (INDUCTOR | {"customize": "yes", "fullgraph": "yes"}, "use_fullgraph has no recipe here"),
    "any shape": (INDUCTOR | {"customize": "yes", "dynamic shape": "yes"}, "use_dynamic has no recipe here"),
    "FSDP1": (FSDP | {"FSDP version": "1"}, "fsdp_version must be 2, not 1 (FSDP1 has no recipe here)"),
    "offloading": (FSDP | {"offload parameters": "yes"}, "fsdp_offload_params must be false, not True"),
    "units by size": (
        UNITS | {"auto wrap policy": "SIZE_BASED_WRAP"},
        "fsdp_auto_wrap_policy must be TRANSFORMER_BASED_WRAP, not 'SIZE_BASED_WRAP'",
    ),
    "no units": (UNITS | {"auto wrap policy": "NO_WRAP"}, "not 'NO_WRAP'"),
    "more dimensions": (FSDP | {"parallelism config?": "yes"}, "parallelism_config has no recipe here"),
    "Megatron": (GPUS | {"Megatron": "yes"}, "distributed_type 'MEGATRON_LM' has no recipe here"),
    "DeepSpeed": (GPUS | {"use DeepSpeed": "yes"}, "distributed_type 'DEEPSPEED' has no recipe here"),
}


@pytest.fixture
def answered(monkeypatch, tmp_path):
    """Answers Accelerate's questionnaire and returns the path of the file that it writes."""
    monkeypatch.setattr(cluster, "is_deepspeed_available", lambda: True)
    monkeypatch.setattr(cluster, "is_mps_available", lambda *_: False)

    def write(answers):
        left, asked = dict(answers), set()

        def answer(question):
            assert question not in asked, f"asked again, so the answer was none: {question}"
            asked.add(question)
            part = next((part for part in answers if part.lower() in question.lower()), None)
            left.pop(part, None)
            return answers.get(part, "")

        def choose(question, options, convert, default=0):
            chosen = [str(option) for option in options].index(answer(question) or str(options[default]))
            return convert(chosen)

        monkeypatch.setattr("builtins.input", answer)
        for module in (cluster, config_utils):
            monkeypatch.setattr(module, "_ask_options", choose)
        path = tmp_path / "config.yaml"
        cluster.get_cluster_input().to_yaml_file(path)
        assert not left, f"not asked: {', '.join(left)}"
        return str(path)

    return write


@pytest.mark.parametrize("case", TAKEN)
def test_an_answer_for_which_there_is_a_recipe_is_taken(case, answered):
    answers, values = TAKEN[case]
    assert read(answered(answers)) == (values, [])


@pytest.mark.parametrize("case", REFUSED)
def test_an_answer_for_which_there_is_none_is_refused_by_name(case, answered):
    answers, message = REFUSED[case]
    path = answered(answers)
    errors = read(path)[1]
    assert len([problem for problem in errors if message in problem]) == 1, errors
    assert all(path in problem for problem in errors)
    if case != "Megatron":  # which has a config of its own beside its type
        assert len(errors) == 1, errors


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_the_basic_file_is_taken(precision, tmp_path):
    path = str(write_basic_config(precision, str(tmp_path / "default_config.yaml")))
    values, errors = read(path)
    assert errors == [] and values["mixed_precision"] == precision and values["num_processes"] >= 1


def test_what_is_done_in_another_way_is_said(answered):
    """One process loads for all by default there; here each loads by itself."""
    path = answered(FSDP)
    settings, errors = parse(["--config", path], {"WORLD_SIZE": "2", "ACCELERATE_USE_FSDP": "true"})
    assert errors == [] and settings.fsdp_cpu_ram_efficient_loading is False
    assert settings.origins["fsdp_cpu_ram_efficient_loading"] == (
        f"{path} says true; here every process loads the weights by itself"
    )
