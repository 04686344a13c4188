"""Two real ranks that stop and go on train as two that never stopped, to the last digit."""

import json

import pytest
from forked_ranks import on_ranks
from harness import largest_difference
from safetensors.torch import load_file
from selection import taken

CASES = [f"{engine}-{precision}" for engine in ("ddp", "fsdp2") for precision in ("no", "bf16", "fp16")]


@pytest.fixture(scope="module")
def two_ranks(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("resuming")
    cases = [params["case"] for params in taken(request, "test_two_ranks_that_go_on_equal_two_that_never_stopped")]
    on_ranks("resuming_ranks.py", 2, str(folder), *cases)
    return folder


@pytest.mark.breadth(3)
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_that_go_on_equal_two_that_never_stopped(two_ranks, case):
    """With dropout, accumulation, a schedule and evaluations; in fp16, the scale too."""
    results = [
        json.loads((two_ranks / case / name / "result.json").read_text(encoding="utf-8"))
        for name in ("whole", "resumed")
    ]
    whole, resumed = results
    for result in results:
        assert result["evidence"]["processes"] == 2 and result["evidence"]["dropout"]
        assert result["evidence"]["engine"] == {"ddp": "DDP", "fsdp2": "FSDP2"}[case.split("-")[0]]
    assert len(set(whole["loss"]["trajectory"])) == 6
    assert resumed["loss"] == whole["loss"] and len(whole["loss"]["eval"]) == 3
    assert resumed["amp"] == whole["amp"] and bool(whole["amp"]) == case.endswith("fp16")
    rows = [
        [json.loads(line) for line in (two_ranks / case / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("whole", "resumed")
    ]
    for name in ("train/grad_norm", "train/learning_rate", "train/tokens"):
        assert [row[name] for row in rows[0]] == [row[name] for row in rows[1]]
    weights = [load_file(two_ranks / case / name / "model" / "model.safetensors") for name in ("whole", "resumed")]
    assert largest_difference(*weights) == 0


def test_a_node_without_the_checkpoint_ends_the_run_on_all(two_ranks):
    """Its rank would start over, and average its gradients with those of a model that has been trained."""
    for rank in (0, 1):
        code, said = (two_ranks / f"said-{rank}.txt").read_text(encoding="utf-8").split("\n", 1)
        assert code == "2"
        assert "run/checkpoint-3: not found, or another one, by rank 1 (on " in said
    assert not (two_ranks / "node-0" / "run" / "metrics.jsonl").exists()
