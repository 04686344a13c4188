"""Each thing that a run reads is opened once in a process, and said as it was read."""

import collections
import json

from rungwise.data import opened, sources, texts
from rungwise.ladder.ladder import Ladder
from rungwise.ladder.ladder_file import Rung
from rungwise.model import config
from rungwise.run.configure import check

import pytest
from commands import ablate_here
from harness import word_tokenizer
from transformers import GPT2Config

FLAGS = ["--config", "accelerate_configs/fp32.yaml", "--report_to", "none", "--block_size", "8"]
SHORT = ["--max_steps", "3", "--untimed_steps", "2"]
ONCE = {"config": 1, "tokenizer": 1, "text": 2, "builder": 1}


class Counted:
    """In place of a class of Transformers, whose own calls of one another do not count."""

    def __init__(self, own, count):
        self.own, self.count = own, count

    def from_pretrained(self, *args, **kwargs):
        self.count()
        return self.own.from_pretrained(*args, **kwargs)


@pytest.fixture
def counted(monkeypatch):
    """How often each kind of thing is opened."""
    counts = collections.Counter()

    def count(owner, name, kind):
        own = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: counts.update([kind]) or own(*args, **kwargs))

    for owner, name, kind in ((sources, "AutoTokenizer", "tokenizer"), (config, "AutoConfig", "config")):
        monkeypatch.setattr(owner, name, Counted(getattr(owner, name), lambda kind=kind: counts.update([kind])))
    count(texts, "_open", "text")
    count(texts.datasets, "load_dataset_builder", "builder")
    return counts


@pytest.fixture
def call(tmp_path):
    """Flags for a config, a tokenizer, a folder of one file of rows, and another file of rows."""
    GPT2Config(
        vocab_size=128, n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=None, eos_token_id=None
    ).save_pretrained(tmp_path / "c")
    tokenizer = word_tokenizer(tmp_path / "t", 64, eos_token="w63")
    (tmp_path / "rows").mkdir()
    for path in (tmp_path / "rows" / "a.jsonl", tmp_path / "held.jsonl"):
        path.write_text("".join(json.dumps({"body": f"w{n % 60} w2 w3"}) + "\n" for n in range(99)) + '{"body": ""}\n')
    flags = ["--config_name", str(tmp_path / "c"), "--tokenizer_name", tokenizer]
    flags += ["--dataset_name", str(tmp_path / "rows"), "--validation_file", str(tmp_path / "held.jsonl")]
    return [*FLAGS, *flags, "--eval_steps", "2"]


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_run_opens_each_thing_once(tmp_path, counted, call, capsys, streaming):
    result = ablate_here(tmp_path / "run", *call, *SHORT, "--streaming", streaming)
    assert counted == ONCE
    data = result["data"]["train"]
    assert (data["reader"], data["column"], data["columns"]) == ("json", "body", ["body"])
    block = " ".join(capsys.readouterr().out.split())
    assert "read as json; column body" in block and 'first row: "w0 w2 w3 w63 w1 w2 w3 w63"' in block
    if streaming == "false":
        counts = {"texts": 100, "empty": 1, "missing": 0, "tokens": 396, "rows": 49, "end_of_text": "w63"}
        assert data.items() >= counts.items() and data["dropped"] == {"tokens of a last incomplete block": 4}
        said = "100 texts (1 empty); 396 tokens; w63 behind each document; 49 rows; dropped: 4 tokens of a last"
        assert said in block


def test_a_ladder_opens_each_thing_once_for_all_rungs(tmp_path, counted, call):
    rungs = [Rung(f"r{n}", (*call, "--learning_rate", f"1e-{n}", "--run_name", f"r{n}")) for n in (2, 3, 4)]
    with Ladder("test", rungs, tmp_path / "l", "group"):
        assert counted == ONCE


@pytest.mark.parametrize("flag, value", [("--block_size", "16"), ("--packing", "false"), ("--streaming", "true")])
def test_what_decides_how_a_text_is_read_opens_it_anew(counted, call, flag, value):
    opening = opened.Opening()
    for flags in (call, [*call, flag, value]):
        assert check(flags, {}, opening=opening)[1] == []
    assert counted["text"] == 4 and counted["tokenizer"] == counted["config"] == 1


def test_what_cannot_be_opened_is_said_for_each_call_and_tried_once(counted, call):
    opening = opened.Opening()
    broken = [*call, "--tokenizer_name", "/no/such"]
    found = [check(broken, {}, opening=opening)[1] for _ in range(2)]
    assert found[0] == found[1] and len(found[0]) == 1 and "no tokenizer in /no/such" in found[0][0]
    assert counted["tokenizer"] == 1


def test_what_a_script_decides_itself_is_not_opened(counted):
    _, errors, inputs = check([*FLAGS[:4]], {}, own=["model", "data", "evaluation"])
    assert (inputs.config, inputs.data, errors) == (None, None, []) and not counted
