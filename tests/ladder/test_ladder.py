"""Ladder files, and what is run again, left alone or refused."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

from rungwise.errors import SettingsError
from rungwise.ladder import identity, ladder, processes
from rungwise.ladder.ladder import Ladder, group_of
from rungwise.ladder.ladder_file import Rung, read_rungs
from rungwise.run.configure import check

import pytest
from harness import ROOT
from needs import LOSS_IN_CHUNKS, marked
from results import result

SHIPPED = sorted(Path("recipes/ladders").glob("*.yaml")) or sorted((ROOT / "recipes" / "ladders").glob("*"))
WITH_THE_LOSS_IN_CHUNKS = dict.fromkeys(("leave_one_out", "memory.yaml", "speed"), LOSS_IN_CHUNKS)


@pytest.mark.parametrize("file", marked(SHIPPED, WITH_THE_LOSS_IN_CHUNKS), ids=[file.stem for file in SHIPPED])
def test_every_shipped_ladder_can_be_run(file):
    for rung in read_rungs(str(file), [], "group"):
        settings, errors, _ = check(rung.arguments, environ={"WORLD_SIZE": str(rung.processes)})
        assert errors == rung.launch_errors() == []
        assert (settings.run_name, settings.group) == (rung.name, "group")
        # Fewer timed steps than a speed is claimed from would leave the report without speeds.
        assert settings.max_steps - settings.untimed_steps >= 10


def test_the_default_ladder_adds_one_technique_a_rung():
    settings = [check(rung.arguments, environ={})[0] for rung in read_rungs("recipes/ladders/default.yaml", [], None)]
    climbed = [
        (s.mixed_precision, s.gradient_accumulation_steps, s.gradient_checkpointing, s.torch_compile) for s in settings
    ]
    assert climbed == [
        ("no", 1, False, False),
        ("bf16", 1, False, False),
        ("fp16", 1, False, False),
        ("bf16", 4, False, False),
        ("bf16", 4, True, False),
        ("bf16", 4, True, True),
    ]


def write(tmp_path, text):
    path = tmp_path / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


GOOD = """
flags: {config: accelerate_configs/fp32.yaml, max_steps: 20}
rungs:
  plain: {}
  nothing:
  ckpt: {gradient_checkpointing: true, gradient_checkpointing_kwargs: {use_reentrant: true}, save_model: false}
"""


def test_flags_from_everywhere_are_arguments_that_can_be_typed(tmp_path):
    rungs = read_rungs(write(tmp_path, GOOD), ["--max_steps", "30", "--global_batch_size", "32"], "g")
    assert [rung.name for rung in rungs] == ["plain", "nothing", "ckpt"]
    assert rungs[0].arguments == (
        "--config", "accelerate_configs/fp32.yaml", "--max_steps", "30", "--global_batch_size", "32",
        "--run_name", "plain", "--group", "g",
    )  # fmt: skip
    settings, errors, _ = check(rungs[2].arguments, environ={})
    assert errors == []
    assert settings.gradient_checkpointing_kwargs == {"use_reentrant": True} and settings.save_model is False
    assert rungs[0].command(Path("d"))[-2:] == ["--output_dir", "d"]


BAD = {
    "": "needs `rungs:`",
    "[1]": "needs `rungs:`",
    "rungs: {}": "needs `rungs:`",
    "rungs: [fp32]": "needs `rungs:`",
    "rungs: {a: {config: true}}": "a: names no config",
    "rungs: {a: {config: [x]}}": "a: names no config",
    "rungs: {a: {config: 2001-01-01}}": "which YAML reads as date; write it in quotes",
    "a: b: c": "not YAML near line 1",
    "rung: {a: {}}\nrungs: {a: {}}": "unknown key 'rung' (did you mean rungs?)",
    "rungs: {a/b: {}}": "name a folder",
    "rungs: {..: {}}": "name a folder",
    "rungs: {no: {}}": "a name must be text",
    "rungs: {flags: {}}": "not `flags`",
    "rungs: {a: 3}": "a: must be `flag: value` lines, not 3",
    "rungs: {a: {max_step: 3}}": "a: no flag 'max_step' (did you mean max_steps?)",
    "flags: {sed: 3}\nrungs: {a: {}}": "flags: no flag 'sed' (did you mean seed?)",
    "rungs: {a: {run_name: x}}": "no flag 'run_name'",
    "rungs: {a: {mixed_precision: bf16}}": "no flag 'mixed_precision'",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_ladder_files(tmp_path, text):
    with pytest.raises(SettingsError) as caught:
        read_rungs(write(tmp_path, text), [], None)
    [problem] = caught.value.errors
    assert BAD[text] in problem


def test_flags_that_would_undo_the_ladder_are_refused(tmp_path):
    extra = ["--gradient_checkpointing", "--run_name", "x", "--max_step", "2"]
    with pytest.raises(SettingsError) as caught:
        read_rungs(write(tmp_path, GOOD), extra, None)
    text = str(caught.value)
    assert (
        "the rungs differ in it" in text
        and "the ladder makes it itself" in text
        and "did you mean --max_steps" in text
    )


@pytest.mark.parametrize("wrong", ["recipes/ladders/defualt.yaml", "recipes/ladders/default.yml", "default"])
def test_a_missing_ladder_names_the_nearest_and_the_shipped_ones(wrong):
    with pytest.raises(SettingsError) as caught:
        read_rungs(wrong, [], None)
    [problem] = caught.value.errors
    assert "no such file (did you mean recipes/ladders/default.yaml?)" in problem
    assert "shipped here: " in problem


MIXED = """
flags: {config: accelerate_configs/fp32.yaml, torch_compile_mode: max-autotune, lora_r: 4, report_to: none}
rungs:
  plain: {}
  compiled: {torch_compile: true}
  lora: {use_peft: true, lora_target_modules: [q_proj, v_proj]}
  two: {config: accelerate_configs/ddp_cpu.yaml, gradient_accumulation_steps: 2}
"""


def test_shared_flags_go_to_the_rungs_on_which_they_act(tmp_path):
    rungs = read_rungs(write(tmp_path, MIXED), ["--sync_each_batch", "--eval_steps", "5"], "g")
    given = {rung.name: {word for word in rung.arguments if word.startswith("--")} for rung in rungs}
    assert [name for name in given if "--torch_compile_mode" in given[name]] == ["compiled"]
    assert [name for name in given if "--lora_r" in given[name]] == ["lora"]
    assert [name for name in given if "--sync_each_batch" in given[name]] == ["two"]
    assert all("--eval_steps" in flags and "--group" not in flags for flags in given.values())
    for rung in rungs:
        assert not any("no effect" in p for p in check(rung.arguments, {"WORLD_SIZE": str(rung.processes)})[1])


def test_a_shared_flag_that_acts_on_no_rung_is_refused(tmp_path):
    with pytest.raises(SettingsError) as caught:
        read_rungs(write(tmp_path, GOOD), ["--torch_compile_mode", "max-autotune", "--lora_r", "4"], "g")
    assert len(caught.value.errors) == 2
    assert "--torch_compile_mode has no effect without --torch_compile; add it" in caught.value.errors[0]


def test_a_rungs_own_flag_that_does_not_act_is_left_for_it_to_refuse(tmp_path):
    text = "rungs: {a: {config: accelerate_configs/fp32.yaml, lora_r: 4}}"
    [rung] = read_rungs(write(tmp_path, text), [], None)
    [problem] = check(rung.arguments, {})[1]
    assert "--lora_r has no effect without --use_peft" in problem


@pytest.mark.parametrize(
    "yaml, typed",
    [
        ("{use_peft: true, lora_target_modules: [q_proj, v_proj]}", "q_proj,v_proj"),
        ("{use_peft: true, lora_target_modules: 'q_proj,v_proj'}", "q_proj,v_proj"),
        ("{config_overrides: [n_layer=2, n_head=2]}", "n_layer=2,n_head=2"),
        ("{config_overrides: {n_layer: 2, tie_word_embeddings: false}}", "n_layer=2,tie_word_embeddings=false"),
    ],
)
def test_a_list_is_understood_where_a_flag_takes_a_list(tmp_path, yaml, typed):
    text = f"flags: {{config: accelerate_configs/fp32.yaml}}\nrungs: {{a: {yaml}}}"
    [rung] = read_rungs(write(tmp_path, text), [], None)
    assert typed in rung.arguments


def test_a_list_where_a_flag_takes_one_value_is_no_value(tmp_path):
    text = "rungs: {a: {config: accelerate_configs/fp32.yaml, seed: [1, 2]}}"
    [rung] = read_rungs(write(tmp_path, text), [], None)
    assert check(rung.arguments, {})[1] == ["--seed: must be a whole number, not '[1, 2]'"]


class Steps:
    """Stands in for the processes: gives each rung the statuses that a test wrote down, one a run."""

    def __init__(self, monkeypatch, **statuses):
        self.statuses = {name: list(given) for name, given in statuses.items()}
        self.ran = []
        monkeypatch.setattr(ladder, "run_rung", self.run)

    def run(self, rung, folder):
        self.ran.append((rung.name, folder.name))
        status = (self.statuses.get(rung.name, []) and self.statuses[rung.name].pop(0)) or "ok"
        if status == "interrupt":
            raise KeyboardInterrupt
        folder.mkdir(parents=True, exist_ok=True)
        made = result(status=status, reason=None if status == "ok" else "a reason")
        (folder / "result.json").write_text(json.dumps(made), encoding="utf-8")
        return made


FP32 = "accelerate_configs/fp32.yaml"


def rungs_of(*names, **flags):
    extra = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    return [Rung(name, ("--config", FP32, "--report_to", "none", *extra, "--run_name", name)) for name in names]


def climb(folder, rungs, repeats=1, fresh=False):
    with Ladder("test", rungs, folder, "group", fresh) as climbed:
        list(climbed.run(repeats))
    return climbed.exit_code


def test_rungs_take_turns_round_after_round(tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    climb(tmp_path / "l", rungs_of("a", "b"), repeats=3)
    assert steps.ran == [(name, f"round-{n}") for n in (1, 2, 3) for name in ("a", "b")]


def test_a_stopped_ladder_continues_and_runs_nothing_twice(tmp_path, monkeypatch):
    steps = Steps(monkeypatch, b=["interrupt"])
    assert climb(tmp_path / "l", rungs_of("a", "b", "c")) == 130
    assert steps.ran == [("a", "round-1"), ("b", "round-1")]
    assert climb(tmp_path / "l", rungs_of("a", "b", "c")) == 0
    assert steps.ran[2:] == [("b", "round-1"), ("c", "round-1")]
    climb(tmp_path / "l", rungs_of("a", "b", "c"), repeats=2)
    assert steps.ran[4:] == [(name, "round-2") for name in "abc"]


def test_which_statuses_are_final(tmp_path, monkeypatch):
    names = ("ok", "out_of_memory", "diverged", "skipped", "failed")
    steps = Steps(monkeypatch, **{name: [name] for name in names})
    climb(tmp_path / "l", rungs_of(*names))
    assert len(steps.ran) == 5
    climb(tmp_path / "l", rungs_of(*names))
    assert steps.ran[5:] == [("failed", "round-1")]


def test_changed_settings_configs_and_versions_are_never_mixed(tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    folder = tmp_path / "l"
    climb(folder, rungs_of("a", "b"))
    # More rungs are no change.
    climb(folder, rungs_of("a", "b", "c"))
    with pytest.raises(SettingsError) as caught:
        climb(folder, rungs_of("a", seed=3))
    assert "--seed 3" in str(caught.value) and "--fresh" in str(caught.value)
    monkeypatch.setattr(identity, "machine", lambda: {"torch": "9.9"})
    with pytest.raises(SettingsError, match=r"torch: it was .* and is now 9.9"):
        climb(folder, rungs_of("a"))
    monkeypatch.undo()
    steps = Steps(monkeypatch)
    known = json.loads((folder / "ladder.json").read_text(encoding="utf-8"))
    known["rungs"]["a"]["config"] += "# another line\n"
    (folder / "ladder.json").write_text(json.dumps(known), encoding="utf-8")
    with pytest.raises(SettingsError, match="its Accelerate file has changed"):
        climb(folder, rungs_of("a"))
    assert steps.ran == []
    climb(folder, rungs_of("a", seed=3), fresh=True)
    assert steps.ran == [("a", "round-1")]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "ladder.json"]


def test_results_that_no_ladder_knows_are_not_taken_over(tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    folder = tmp_path / "l"
    climb(folder, rungs_of("a"))
    (folder / "ladder.json").write_text('{"cut', encoding="utf-8")
    with pytest.raises(SettingsError, match="is damaged"):
        climb(folder, rungs_of("a"))
    (folder / "ladder.json").unlink()
    with pytest.raises(SettingsError, match="results of no known ladder"):
        climb(folder, rungs_of("a"))
    (folder / "kept.txt").write_text("not the ladder's")
    climb(folder, rungs_of("a"), fresh=True)
    assert len(steps.ran) == 2 and (folder / "kept.txt").exists()


def test_a_flag_that_configs_differ_in_is_refused_too():
    with pytest.raises(
        SettingsError, match="--gradient_accumulation_steps cannot be given to every rung: the rungs differ"
    ):
        read_rungs("recipes/ladders/default.yaml", ["--gradient_accumulation_steps", "8"], None)
    assert read_rungs("recipes/ladders/precision.yaml", ["--gradient_accumulation_steps", "8"], None)


def test_two_ladders_in_one_folder_do_not_meet(tmp_path, monkeypatch):
    Steps(monkeypatch)
    with Ladder("one", rungs_of("a"), tmp_path / "l", "group"):
        with pytest.raises(SettingsError, match="another ladder runs in"):
            climb(tmp_path / "l", rungs_of("a"))
        climb(tmp_path / "elsewhere", rungs_of("a"))
    climb(tmp_path / "l", rungs_of("a"))


def test_bad_settings_of_any_rung_stop_all_before_anything_is_made(tmp_path):
    rungs = [
        *rungs_of("a", block_size=999),
        *rungs_of("b", block_size=999, optim="adam"),
        *rungs_of("c", block_size=999),
    ]
    with pytest.raises(SettingsError) as caught:
        climb(tmp_path / "l", rungs)
    errors = caught.value.errors
    # What is wrong with all of them is said once; what is wrong with one, with its name.
    assert len(errors) == 2
    assert errors[0].startswith("--block_size 999") and errors[1].startswith("b: --optim: 'adam'")
    assert list(tmp_path.iterdir()) == []


def test_one_group_for_an_interrupted_ladder(tmp_path):
    assert group_of("default", tmp_path, fresh=False).startswith("default-2")
    (tmp_path / "ladder.json").write_text('{"group": "default-then"}')
    assert group_of("default", tmp_path, fresh=False) == "default-then"
    assert group_of("default", tmp_path, fresh=True) != "default-then"


@pytest.mark.parametrize("flag", ["train_file", "validation_file"])
@pytest.mark.parametrize("moment", ["between two calls", "between two rungs"])
def test_data_that_changes_under_a_ladder_is_refused(tmp_path, monkeypatch, flag, moment):
    for name in ("train_file", "validation_file"):
        (tmp_path / name).write_text("some text that is long enough for a row or two of eight\n")
    flags = {"train_file": tmp_path / "train_file", "validation_file": tmp_path / "validation_file"}
    rungs = rungs_of("a", "b", eval_steps=2, block_size=8, **flags)
    steps, changed = Steps(monkeypatch), tmp_path / flag

    def change(*_):
        changed.write_text(changed.read_text().replace("long", "lang"))
        os.utime(changed, (1, 1))  # a file system's clock may not have ticked since

    if moment == "between two calls":
        climb(tmp_path / "l", rungs[:1])
        change()
        refused = pytest.raises(SettingsError, match=rf"made otherwise \(a: --{flag} {changed} has changed \(it was ")
        with refused:
            climb(tmp_path / "l", rungs)
    else:
        refused = pytest.raises(SettingsError, match=rf"b: --{flag} {changed} has changed \(.* since the ladder began")
        with refused, Ladder("test", rungs, tmp_path / "l", "group") as climbed:
            for _ in climbed.run(1):
                change()
    assert steps.ran == [("a", "round-1")]


def test_a_ladder_of_unknown_data_is_not_gone_on_with(tmp_path, monkeypatch):
    Steps(monkeypatch)
    climb(tmp_path / "l", rungs_of("a"))
    known = json.loads((tmp_path / "l" / "ladder.json").read_text(encoding="utf-8"))
    del known["rungs"]["a"]["data"]
    (tmp_path / "l" / "ladder.json").write_text(json.dumps(known), encoding="utf-8")
    with pytest.raises(SettingsError, match="a: what its data was is not known"):
        climb(tmp_path / "l", rungs_of("a"))


def test_rungs_are_not_one_run_of_the_tracker(tmp_path, monkeypatch):
    """What a shell presets of one W&B run stays out of them; a key, a mode, a folder do not."""
    given = {}

    def popen(*_, env, **__):
        given.update(env)
        raise KeyboardInterrupt

    for name in ("WANDB_RUN_ID", "WANDB_RESUME", "WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.setenv(name, "preset")
    # The ladder's own; git is asked for the commit, too.
    monkeypatch.setattr(processes, "subprocess", SimpleNamespace(Popen=popen, DEVNULL=None, STDOUT=None))
    assert climb(tmp_path / "l", rungs_of("a")) == 130
    assert {name for name, value in given.items() if value == "preset"} == {"WANDB_MODE", "WANDB_API_KEY"}
    assert given["PATH"]


def test_a_rung_without_a_config_is_refused_by_its_name(tmp_path):
    """Whatever else the file says; a config may also be shared, or given on the command line."""
    path = tmp_path / "bare.yaml"
    path.write_text(
        "rungs: {a: {max_steps: 13}, b: {config: accelerate_configs/fp32.yaml}, c: {}}\n", encoding="utf-8"
    )
    with pytest.raises(SettingsError) as caught:
        read_rungs(str(path), [], None)
    assert [error.split(":")[1].strip() for error in caught.value.errors] == ["a", "c"]
    assert all("names no config; write config: accelerate_configs/fp32.yaml" in error for error in caught.value.errors)
    path.write_text("flags: {config: accelerate_configs/bf16.yaml}\nrungs: {a: {max_steps: 13}}\n", encoding="utf-8")
    assert [rung.config for rung in read_rungs(str(path), [], None)] == ["accelerate_configs/bf16.yaml"]


def test_a_flag_beside_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "some.yaml").write_text("rungs: {a: {no_such_flag: 1}}", encoding="utf-8")
    with pytest.raises(SettingsError, match="no flag 'no_such_flag'"):
        read_rungs(str(tmp_path / "some.yaml"), ["--max_steps", "4"], None)


@pytest.mark.parametrize("folder", ["README.md", "README.md/deeper", "a" * 256])
def test_a_folder_that_cannot_be_is_refused_before_there_is_one(folder, tmp_path):
    with pytest.raises(SettingsError, match="--output_dir"), Ladder("l", [], Path(folder), "g"):
        pass
