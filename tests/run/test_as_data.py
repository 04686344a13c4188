"""Files are data: what is planted in a checkpoint, a data set or a ladder to run is never run."""

import json
import os
import pickle
import shutil
from pathlib import Path
from types import SimpleNamespace

from rungwise.ladder.ladder_file import Rung
from rungwise.ladder.processes import run_rung
from rungwise.run import as_data
from rungwise.run.saved_checkpoints import STEPS, sizes

import ablate
import pytest
import torch
import torch.distributed.checkpoint as distributed
from accelerate import Accelerator
from commands import TINY as ANY_BYTE
from commands import ablate_here
from harness import ROOT, TINY

FP32 = "accelerate_configs/fp32.yaml"
CALL = ["--config", FP32, *TINY, "--untimed_steps", "2"]


class Planted:
    """Makes a file, `made`, wherever it is unpickled."""

    def __init__(self, folder):
        self.path = str(folder / "made")

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint that can be gone on from."""
    folder = tmp_path_factory.mktemp("checkpoints")
    ablate_here(folder, *CALL, "--max_steps", "3", "--checkpointing_steps", "2")
    return folder / "checkpoint-2"


def shards(folder, value):
    """A distributed checkpoint, in which a value that is no tensor stands."""
    writer = distributed.FileSystemWriter(folder)
    distributed.save({"weight": torch.ones(3), "value": value}, storage_writer=writer, no_dist=True)


def goes_on(folder):
    """The exit code of a run that goes on from a checkpoint whose notes fit its files."""
    notes = folder / STEPS
    content = json.loads(notes.read_text(encoding="utf-8")) | {"files": sizes(folder)}
    notes.write_text(json.dumps(content), encoding="utf-8")
    flags = ["--max_steps", "4", "--resume_from_checkpoint", str(folder), "--output_dir", str(folder.parent / "on")]
    try:
        return ablate.main([*CALL, *flags])
    except SystemExit as ended:
        return ended.code


@pytest.mark.parametrize(
    "name", ["optimizer.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl", "shards/.metadata"]
)
def test_what_is_planted_in_a_checkpoint_is_not_run(name, whole, tmp_path, capsys):
    folder = tmp_path / "checkpoint-2"
    shutil.copytree(whole, folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(pickle.dumps(Planted(tmp_path)))
    assert goes_on(folder) == 2
    assert not (tmp_path / "made").exists() and str(folder) in "".join(capsys.readouterr())
    # It would have been, by a pickle.
    pickle.loads((folder / name).read_bytes())
    assert (tmp_path / "made").exists()


def test_whoever_loads_a_checkpoint_is_given_data_alone(whole, tmp_path, monkeypatch):
    """Also an Accelerate that asks PyTorch for more, as PyTorch's distributed checkpoints do."""
    shutil.copytree(whole, tmp_path / "checkpoint-2")
    planted = tmp_path / "planted"
    torch.save(Planted(tmp_path), planted)
    monkeypatch.setattr(Accelerator, "load_state", lambda *_: torch.load(planted, weights_only=False))
    assert goes_on(tmp_path / "checkpoint-2") == 2
    assert not (tmp_path / "made").exists()
    result = json.loads((tmp_path / "on" / "result.json").read_text(encoding="utf-8"))
    assert "it holds more than tensors and plain values, whose code is not run" in result["reason"]


def test_a_whole_checkpoint_is_loaded(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "checkpoint-2")
    assert goes_on(tmp_path / "checkpoint-2") == 0


def test_an_index_of_shards_is_told_from_a_program(tmp_path):
    shards(tmp_path, 3)
    assert as_data.foreign(tmp_path) == []
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"a": os.system}))
    [words] = as_data.foreign(tmp_path)
    assert words.startswith("its .metadata is none that is loaded unasked (posix.system is no part of")
    # A name inside a module that is taken is not.
    (tmp_path / ".metadata").write_bytes(
        b"\x80\x04\x8c\x27torch.distributed.checkpoint.filesystem\x8c\x09os.system\x93."
    )
    assert len(as_data.foreign(tmp_path)) == 1


def loaded(folder):
    """The value of such a distributed checkpoint."""
    state = {"weight": torch.zeros(3), "value": None}
    distributed.load(state, storage_reader=distributed.FileSystemReader(folder), no_dist=True)
    return state["value"]


@pytest.mark.parametrize("variables", [{}, {as_data.UNFORCED: "1"}])
def test_values_in_shards_are_loaded_as_data(variables, tmp_path, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    shards(tmp_path / "data", 0.1)
    shards(tmp_path / "code", SimpleNamespace(lr=0.1))
    assert loaded(tmp_path / "code").lr == 0.1  # PyTorch makes whatever stands there
    before = dict(os.environ)
    with as_data.weights_only():
        assert loaded(tmp_path / "data") == 0.1
    with pytest.raises(ValueError, match="more than tensors and plain values"), as_data.weights_only():
        loaded(tmp_path / "code")
    for path in (tmp_path / "data").glob("*.distcp"):
        path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises((RuntimeError, ValueError)), as_data.weights_only():
        loaded(tmp_path / "data")
    assert dict(os.environ) == before


def test_no_script_or_pickle_in_a_data_set_is_run(tmp_path, capsys):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "texts.py").write_text(f"open({str(tmp_path / 'made')!r}, 'w')\n", encoding="utf-8")
    for name in ("train.pkl", "train.pickle", "state.json"):
        (folder / name).write_bytes(pickle.dumps(Planted(tmp_path)))
        with pytest.raises(SystemExit) as ended:
            ablate.main(["--config", FP32, *ANY_BYTE, "--report_to", "none", "--dataset_name", str(folder)])
        assert ended.value.code == 2 and "--dataset_name" in capsys.readouterr().err
    assert not (tmp_path / "made").exists()


def test_a_rung_is_no_line_of_a_shell(tmp_path, monkeypatch):
    """Whatever stands in a ladder's file reaches the run as it is."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "accelerate_configs").symlink_to(ROOT / "accelerate_configs")
    words = "; touch made; $(touch made) `touch made` | touch made & touch made > made"
    tiny = ["wandb" if flag == "none" else flag for flag in TINY]
    flags = [*tiny, "--max_steps", "3", "--untimed_steps", "2", "--group", words]
    result = run_rung(Rung("a", ("--config", FP32, *flags)), tmp_path / "rung")
    assert (result["status"], result["settings"]["group"]) == ("ok", words), result["reason"]
    assert not [*tmp_path.rglob("made")]
