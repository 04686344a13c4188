"""What stands beside the fields, and who is told of it."""

from rungwise.report.rung_result import differing
from rungwise.run.status import outcome
from rungwise.settings.fields import FIELDS, NAMING
from rungwise.settings.parse import parse

import pytest

FP32 = "accelerate_configs/fp32.yaml"


def parsed(*flags, environ=None):
    settings, errors = parse(["--config", FP32, *flags], environ or {})
    assert errors == []
    return settings


def test_a_run_out_of_memory_is_told_what_saves_memory():
    _, reason, _ = outcome(MemoryError("too much"), [])
    assert "; raise --gradient_accumulation_steps, or add --gradient_checkpointing, or add " in reason
    named = [name for name, field in FIELDS.items() if field.metadata["saves_memory"]]
    assert all(f"--{name}" in FIELDS[name].metadata["saves_memory"] for name in named)


def test_where_a_run_is_put_makes_no_other_rung_of_it():
    before = parsed().as_dict()
    for name in NAMING:
        assert differing(before, before | {name: "another"}, "dtype") == set()
    assert differing(before, before | {"seed": 3, "dtype": "bfloat16"}, "dtype") == {"seed", "dtype"}


def test_how_a_model_is_compiled_goes_with_whether_it_is():
    before, how = parsed().as_dict(), {"torch_compile_mode": "max-autotune", "activation_memory_budget": 0.5}
    assert differing(before, before | how | {"torch_compile": True}, "torch_compile") == {"torch_compile"}
    assert differing(before, before | how, "torch_compile") == how.keys()
    assert differing(before, before | how | {"torch_compile": True}, "seed") == {"torch_compile", *how}


NAMES = {
    "": "fp32",
    "--torch_compile --torch_compile_mode max-autotune": "fp32-compile-max-autotune",
    "--torch_compile --torch_compile_scope regional --activation_memory_budget 0.5": "fp32-compile_regional-budget0.5",
    "--use_peft --lora_r 4 --gradient_accumulation_steps 2": "fp32-accum2-lora4",
    "--model_name_or_path a/b:c/ --dtype bfloat16": "b-c-pure_bf16",
}


@pytest.mark.parametrize("line", NAMES)
def test_a_name_is_made_of_the_fields_labels(line):
    assert parsed(*line.split()).run_name == NAMES[line]


def test_a_variable_of_the_tracker_goes_before_a_default_of_ours():
    variables = {"WANDB_PROJECT": "theirs", "WANDB_RUN_GROUP": "together"}
    settings = parsed(environ=variables)
    assert (settings.project, settings.group) == ("theirs", "together")
    assert (settings.origins["project"], settings.origins["group"]) == ("WANDB_PROJECT", "WANDB_RUN_GROUP")
    assert parsed("--project", "mine", environ=variables).project == "mine"
    assert parsed(environ={"WANDB_PROJECT": ""}).origins["project"] == "default"
    # They are W&B's; another tracker, or none, does not know of them.
    assert parsed("--report_to", "none", environ=variables).origins["project"] == "default"
