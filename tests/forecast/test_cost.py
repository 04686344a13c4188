"""What a forecast costs: in operators, in memory and in processor time, none of which hangs on a machine's load."""

import json
import subprocess
import sys

from rungwise.metrics.memory import MIB

import pytest
from cost import counted
from harness import ENVIRONMENT, HANGS, ROOT, tiny_settings
from transformers import LlamaConfig

FLAGS = ["--config", "accelerate_configs/bf16_accum4.yaml", "--gradient_checkpointing", "--block_size", "2048"]
FLAGS += ["--dataset_name", "synthetic", "--report_to", "none", "--model_type", "llama", "--config_overrides"]
# By name: the sizes, how many parameters these are, and the most seconds of processor time.
MODELS = {
    "SmolLM2-135M": (
        "vocab_size=49152,hidden_size=576,intermediate_size=1536,num_hidden_layers=30,num_attention_heads=9,"
        "num_key_value_heads=3,tie_word_embeddings=true,max_position_embeddings=8192",
        134_515_008,
        3,
    ),
    "Llama-3-70B": (
        "vocab_size=128256,hidden_size=8192,intermediate_size=28672,num_hidden_layers=80,num_attention_heads=64,"
        "num_key_value_heads=8,max_position_embeddings=8192",
        70_553_706_496,
        5,
    ),
}


@pytest.mark.breadth(1)
@pytest.mark.parametrize("model", MODELS)
def test_a_forecast_takes_seconds_and_hardly_any_memory(model):
    overrides, parameters, seconds = MODELS[model]
    command = [sys.executable, "tests/forecast/cost.py", *FLAGS, overrides]
    ran = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=HANGS, check=True)
    found = json.loads(ran.stdout)
    assert found["owners"]["parameters"] * MIB == 4 * parameters
    # Some 26,300 operators and 5,100 allocations, whatever the model's size.
    assert 10_000 < found["operators"] < 30_000
    assert 2_000 < found["allocations"] < 6_000
    assert found["rss"] < 2**30
    assert found["seconds"] < seconds


def test_depth_costs_no_operators():
    settings = tiny_settings(gradient_checkpointing=True)
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    (few, counts), (many, as_many) = (
        counted(settings, LlamaConfig(**sizes, num_hidden_layers=depth, use_cache=False)) for depth in (6, 60)
    )
    assert counts == as_many
    assert many.owners["parameters"] > 5 * few.owners["parameters"]
