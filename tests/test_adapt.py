"""The guide to adapting the recipe is a program that runs."""

import re

import pytest
from commands import LAUNCH, clone, result_of, run
from harness import ROOT


@pytest.fixture
def guide():
    text = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    return text[text.index("## Adapt it") :]


def test_the_guide_runs_as_it_stands(guide, tmp_path):
    [program] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    [command] = re.findall(r"```bash\n(.*?)```", guide, re.DOTALL)
    assert program.count("\n") < 60
    home = clone(tmp_path)
    (home / "mine.py").write_text(program, encoding="utf-8")
    done = run(home, *LAUNCH[:1], *command.split()[1:], "--report_to", "none", timeout=200)
    assert done.returncode == 0, done.stderr
    result = result_of(home, "bf16-accum4-ckpt")
    assert result["status"] == "ok"
    # Every technique was active in somebody else's model, which was learnt and stopped early.
    evidence = result["evidence"]
    assert evidence["compute_dtype"] == "bfloat16" and evidence["recomputed_blocks"] == 2 * 4
    losses = result["loss"]["trajectory"]
    assert losses[-1] < 0.5 < losses[-2] and len(losses) < 200
    assert result["memory"]["parameters_mib"] < 1
