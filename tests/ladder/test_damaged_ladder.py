"""A ladder that goes on among damaged files: it runs again what is not whole, or says which file is damaged."""

import json
import sys

from rungwise.ladder import ladder
from rungwise.report import plots
from rungwise.result_file import write_result
from rungwise.run.files import Files
from rungwise.run.record import Record

import ladder as recipe
import malformed as bad
import pytest
from conftest import SEED
from harness import tiny_settings
from hypothesis import HealthCheck, given, seed, settings
from results import result

RUNGS = """
flags: {config: accelerate_configs/fp32.yaml, dataset_name: synthetic, block_size: 32, report_to: none,
        config_overrides: "vocab_size=128,n_positions=32,n_embd=32,n_layer=2,n_head=2"}
rungs: {a: {}, b: {gradient_accumulation_steps: 2}}
"""


@pytest.fixture
def climb(tmp_path, monkeypatch, capfd):
    """Runs the ladder, whose rungs train nothing. Returns its exit code, what it said and which rungs were run."""
    (tmp_path / "rungs.yaml").write_text(RUNGS, encoding="utf-8")
    monkeypatch.setattr(plots, "draw", lambda *_: [])

    def climbed():
        ran = []

        def run_rung(rung, folder):
            ran.append(rung.name)
            folder.mkdir(parents=True, exist_ok=True)
            write_result(folder, {**result(), "name": rung.name})
            return result()

        monkeypatch.setattr(ladder, "run_rung", run_rung)
        files = ["--ladder", str(tmp_path / "rungs.yaml"), "--output_dir", str(tmp_path / "runs")]
        monkeypatch.setattr(sys, "argv", ["ladder.py", *files])
        capfd.readouterr()
        code = recipe.main()
        said = "".join(capfd.readouterr())
        assert "Traceback" not in said
        return code, said, ran

    return climbed, tmp_path / "runs"


@pytest.mark.parametrize("content", [b"", b'{"schema": 1, "sta', b"[]", b"\xff\xfe", b'{"status": "ok"}'])
def test_a_damaged_result_is_made_anew(climb, content):
    climbed, folder = climb
    assert climbed()[2] == ["a", "b"]
    (folder / "a" / "round-1" / "result.json").write_bytes(content)
    code, _, ran = climbed()
    assert code in (0, 1) and ran == ["a"]
    assert climbed()[2] == []


@pytest.mark.parametrize(
    "content", [b"", b"ms,alloc", b"ms,allocated_mib\n1", b"ms,allocated_mib\n1,x\n", b"\x00\xff\n"]
)
def test_a_damaged_timeline_costs_its_picture(climb, content):
    climbed, folder = climb
    climbed()
    (folder / "a" / "round-1" / "memory_timeline.csv").write_bytes(content)
    code, _, ran = climbed()
    assert code in (0, 1) and ran == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"rungs": {"a": 1}, "machine": {}}'])
def test_a_damaged_list_of_rungs_is_said(climb, content):
    climbed, folder = climb
    climbed()
    path = folder / "ladder.json"
    kept = path.read_bytes()
    path.write_bytes(content)
    code, said, ran = climbed()
    assert (code, ran) == (2, []) and f"{path} is damaged; give another --output_dir, or --fresh" in said
    path.write_bytes(kept)
    assert climbed()[2] == []


@pytest.fixture
def begun(climb):
    """A ladder that was climbed, and what stands in its list."""
    climbed, folder = climb
    climbed()
    return climbed, folder, json.loads((folder / "ladder.json").read_text(encoding="utf-8"))


@settings(max_examples=60, database=None, suppress_health_check=list(HealthCheck), deadline=None)
@seed(SEED)
@given(data=bad.st.data())
def test_a_list_of_rungs_that_is_damaged_anywhere(begun, data):
    """It is refused, or what was damaged is nothing that a ladder goes by."""
    climbed, folder, whole = begun
    (folder / "ladder.json").write_bytes(data.draw(bad.damaged(whole)))
    code, said, _ = climbed()
    assert code in (0, 1) or (code == 2 and str(folder) in said)


def test_a_row_of_metrics_that_was_torn_is_no_row(tmp_path):
    """A Trainer that goes on keeps those before it."""
    rows = [json.dumps({"step": step, "train/loss": 1.0}) for step in (1, 2, 3)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows)[:-5], encoding="utf-8")
    files = Files(tmp_path)
    files.begin(Record(tiny_settings()), done=3)
    files.add(3, {"train/loss": 2.0})
    kept = [json.loads(row) for row in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["step"], row["train/loss"]) for row in kept] == [(1, 1.0), (2, 1.0), (3, 2.0)]
