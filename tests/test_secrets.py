"""No key, token or home folder reaches what is recorded: each file and all that W&B is sent is looked through."""

import json
import os
import re
import signal
import subprocess
import sys

from rungwise.ladder import identity
from rungwise.ladder import ladder as ladders
from rungwise.redact import HIDDEN, redacted
from rungwise.tracking import wandb_run

import ladder as recipe
import pytest
from commands import TINY, clone, run
from hypothesis import given
from hypothesis import strategies as st
from wandb_server import serving

USER = "alice-liddell"
KEYS = {
    "WANDB_API_KEY": "5ecre7" + "0f" * 17,
    "HF_TOKEN": "hf_plantedPlantedPlanted0123",
    "AWS_SECRET_ACCESS_KEY": "plantedAws/Secret+Key==",
    "MY_SERVICE_PASSWORD": "planted-password",
}
ADDRESS = "https://planted-user:plantedPassw0rd@example.org/path?token=plantedQuery&page=2"
PLANTED = (USER, "planted", *KEYS.values())
# Where W&B keeps a table until it is sent: its own file says so, and stays on this machine.
STAGED = re.compile(rb"\x02.?[^\n]{0,4}/[^\x00-\x1f]*/wandb/artifacts/staging/\w+")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The home of somebody who keeps keys in the environment, with a clone in it whose remote has one, too."""
    home = tmp_path / "home" / USER
    (home / "clone").mkdir(parents=True)
    clone(home / "clone")
    (home / "book.txt").write_text("all that is to be learnt\n" * 300, encoding="utf-8")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org"]
    for command in (
        ["init", "-q"],
        ["remote", "add", "origin", ADDRESS],
        ["commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run([*git, *command], cwd=home / "clone", check=True)
    for name, value in {"HOME": str(home), **KEYS}.items():
        monkeypatch.setenv(name, value)
    return home


def leaks(folder):
    """Each file below a folder that tells something, with what it tells."""
    found = {}
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            content = STAGED.sub(b"", content) if path.suffix == ".wandb" else content
            told = [word for word in PLANTED if word.encode() in content]
            found |= {str(path.relative_to(folder)): told} if told else {}
    return found


def flags(home, name):
    config = home / "one.yaml"
    config.write_text("mixed_precision: 'no'\n", encoding="utf-8")
    flags = ["--config", str(config), *TINY[:-1], "5", "--train_file", str(home / "book.txt"), "--group", ADDRESS]
    return [*flags, "--checkpointing_steps", "3", "--save_model", "--output_dir", str(home / "runs" / name)]


def test_a_run_that_is_sent_to_wandb_tells_nothing(home):
    with serving() as server:
        online = {"WANDB_BASE_URL": server.url, "WANDB_MODE": "online"}
        done = run(home / "clone", sys.executable, "recipes/ablate.py", *flags(home, "sent"), environment=online)
    assert done.returncode == 0, done.stderr
    # Beside our own words W&B has none: not that it has found a key, nor what becomes of a table.
    assert "wandb: " not in done.stderr
    assert "127.0.0.1" in done.stdout  # it was sent
    told = [word for word in PLANTED if word.encode() in server.sent]
    assert not told, [
        server.sent[max(0, at - 80) : at + 40] for at in (server.sent.find(word.encode()) for word in told)
    ]
    # What is recorded was sent, and what is hidden shows that it is.
    assert b"~/book.txt" in server.sent and b"https://***@example.org/path?token=***&page=2" in server.sent
    assert not leaks(home / "runs")
    assert not [word for word in PLANTED if word in done.stdout]


def test_a_ladder_and_a_rung_that_fails_tell_nothing(home, monkeypatch, capsys):
    """Its list of commands, its logs, its report, and a traceback with the paths of the person's own code."""
    (home / "rungs.yaml").write_text(LADDER.replace("HOME", str(home)), encoding="utf-8")
    ladder = ["recipes/ladder.py", "--ladder", str(home / "rungs.yaml"), "--output_dir", str(home / "runs" / "all")]
    environment = {"PYTHONPATH": str(home / "clone")}
    # Python imports it before all else: a fault in the person's own code.
    (home / "clone" / "sitecustomize.py").write_text(FAULT, encoding="utf-8")
    done = run(home / "clone", sys.executable, *ladder, environment=environment)
    assert done.returncode == 1, done.stderr
    made = {path.name for path in (home / "runs" / "all").rglob("*")}
    assert made >= {"ladder.json", "report.md", "report.json", "ladder.csv", "result.json", "log.txt"}
    assert not leaks(home / "runs")
    for name, words in {
        "ladder.json": "~/book.txt",
        "b/round-1/result.json": f"no memory at ~/x with {HIDDEN}",
    }.items():
        assert words in (home / "runs" / "all" / name).read_text(encoding="utf-8")
    # What is compared when it goes on is what was kept; what the tests of this process have switched is not.
    known = json.loads((home / "runs" / "all" / "ladder.json").read_text(encoding="utf-8"))
    monkeypatch.setattr(identity, "machine", lambda: known["machine"])
    monkeypatch.chdir(home / "clone")
    monkeypatch.setattr(sys, "argv", ladder)
    monkeypatch.setattr(ladders, "run_rung", lambda *_: signal.raise_signal(signal.SIGINT))
    assert recipe.main() == 130 and "a: finished before (ok)" in capsys.readouterr().out


LADDER = """
flags:
  report_to: none
  config: accelerate_configs/fp32.yaml
  config_overrides: vocab_size=256,n_positions=32,n_embd=32,n_layer=2,n_head=2
  block_size: 32
  max_steps: 4
  forecast: false
  train_file: HOME/book.txt
rungs: {a: {}, b: {optim: sgd}}
"""
FAULT = """
import os, torch
def fail(*_, **__):
    raise RuntimeError(f"no memory at {os.environ['HOME']}/x with {os.environ['HF_TOKEN']}")
torch.optim.SGD.step = fail
"""


WHAT = {
    "https://user:pass@host/x": "https://***@host/x",
    "https://token@host/x?a=1": "https://***@host/x?a=1",
    "see https://host/x?api_key=abc&b=2#c": "see https://host/x?api_key=***&b=2#c",
    "https://s3/x?X-Amz-Signature=abc&X-Amz-Credential=def": "https://s3/x?X-Amz-Signature=***&X-Amz-Credential=***",
    "/home/me/models/a": "~/models/a",
    "at /home/me: gone": "at ~: gone",
    "/home/men/a": "/home/***/a",
    "/Users/somebody/a b": "/Users/***/a b",
    "/data/home/x": "/data/home/x",
    "runs/home/x": "runs/home/x",
    "a planted-key b": "a *** b",
    "hf_abcdefghijklmnopqrstuv": "***",
    "AKIAABCDEFGHIJKLMNOP": "***",
    "hf-internal-testing/tiny-random-gpt2": "hf-internal-testing/tiny-random-gpt2",
    "16 tokens": "16 tokens",
}


@pytest.fixture
def me(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    for name in [name for name in os.environ if "KEY" in name or "TOKEN" in name]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SOME_API_KEY", "planted-key")
    # Neither is a secret: a switch, and a word that is no key.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "16 tokens")
    monkeypatch.setenv("USE_KEY", "true")


@pytest.mark.parametrize("text", WHAT)
def test_what_stands_for_a_secret(me, text):
    assert redacted(text) == WHAT[text]
    assert redacted({text: [text, {"a": (text, 3, None)}]}) == {WHAT[text]: [WHAT[text], {"a": [WHAT[text], 3, None]}]}


@given(text=st.text() | st.sampled_from(sorted(WHAT)))
def test_what_was_read_again_stays_as_it_is(text):
    """What is compared later has been through it once more."""
    assert redacted(redacted(text)) == redacted(text)


def test_what_wandb_collects_by_itself_is_switched_off_unless_it_is_asked_for():
    import wandb

    for name in ("x_disable_meta", "disable_git", "disable_code"):
        assert wandb_run.DEFAULTS[name] is True and name in wandb.Settings.model_fields
    assert wandb_run.DEFAULTS["console"] == "off"
