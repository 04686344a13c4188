"""The settings chapter answers without what takes seconds to import."""

import json
import subprocess
import sys

import pytest
from harness import ENVIRONMENT, packages

PROGRAM = """
import json, sys
before = set(sys.modules)
from rungwise.settings.parse import parse
try:
    print(parse(sys.argv[1:], {}, "A description."))
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules.keys() - before)))
"""
BF16 = ["--config", "accelerate_configs/bf16.yaml"]
FSDP = ["--config", "accelerate_configs/fsdp2.yaml"]


@pytest.mark.parametrize(
    "argv, answer",
    [
        (["--help"], "--gradient_checkpointing"),
        ([*BF16, "--lora_r", "4", "--max_step", "3"], "did you mean --max_steps"),
        (["--config", "accelerate_configs/bf17.yaml"], "did you mean accelerate_configs/bf16.yaml"),
        (FSDP, "shards over processes"),
    ],
)
def test_help_and_mistakes_are_answered_at_once(argv, answer):
    """Nothing is imported for it but the standard library and what reads YAML."""
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    *_, loaded = process.stdout.splitlines()
    assert answer in process.stdout, process.stdout
    assert packages(json.loads(loaded)) == {"yaml"}
