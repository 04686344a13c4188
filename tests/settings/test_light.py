"""The settings chapter answers without what takes seconds to import."""

import resource
import subprocess
import sys

import pytest
from harness import ENVIRONMENT

PROGRAM = """
import sys
from rungwise.settings.parse import parse
try:
    print(parse(sys.argv[1:], {}, "A description."))
except SystemExit:
    pass
print([name for name in ("torch", "accelerate", "transformers", "datasets", "numpy", "wandb") if name in sys.modules])
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
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert answer in process.stdout and process.stdout.endswith("[]\n"), process.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5
