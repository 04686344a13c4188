"""The guide to adapting the recipe is a program that runs, and no flag of it is recorded and does nothing."""

import json
import re
import sys
from types import SimpleNamespace

from rungwise import tracking
from rungwise.settings.fields import FIELDS
from rungwise.techniques.seen import UnavailableTechnique

import pytest
from accelerate.state import AcceleratorState, GradientState
from commands import LAUNCH, clone, result_of, run
from harness import ROOT
from needs import EVERY_N_LAYERS, LOSS_IN_CHUNKS, marked

OWN = ("model", "data", "evaluation")


@pytest.fixture(scope="module")
def guide():
    text = (ROOT / "recipes" / "own_model.md").read_text(encoding="utf-8")
    return text[text.index("## Adapt it") :]


@pytest.fixture(scope="module")
def program(guide):
    [program] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    return program


def test_the_guide_runs_as_it_stands(guide, program, tmp_path):
    [command] = re.findall(r"```bash\n(.*?)```", guide, re.DOTALL)
    assert program.count("\n") < 60
    home = clone(tmp_path)
    (home / "mine.py").write_text(program, encoding="utf-8")
    done = run(home, *LAUNCH[:1], *command.split()[1:], "--report_to", "none")
    assert done.returncode == 0, done.stderr
    result = result_of(home, "bf16-accum4-ckpt")
    assert result["status"] == "ok"
    # Every technique was active in somebody else's model, which was learnt and stopped early.
    evidence = result["evidence"]
    assert evidence["compute_dtype"] == "bfloat16" and evidence["recomputed_blocks"] == 2 * 4
    losses = result["loss"]["trajectory"]
    assert losses[-1] < 0.5 < losses[-2] and len(losses) < 200
    assert result["memory"]["parameters_mib"] < 1
    # What stands in the result is what acted: no data set of ours.
    assert result["settings"]["dataset_name"] is None and result["origins"]["dataset_name"] == "the script's own"


TINY = {"config": "accelerate_configs/fp32.yaml", "block_size": 16, "global_batch_size": 4, "max_steps": 4}
TINY |= {"untimed_steps": 2, "report_to": "none", "plots": "false"}


@pytest.fixture
def mine(program, tmp_path, monkeypatch):
    """Runs a version of the program in this process; returns its exit code, files and result."""
    monkeypatch.setattr("rungwise.run.measurement.matmul_flops_per_second", lambda *_: 1e9)

    def call(text=program, **flags):
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        given = {**TINY, "output_dir": tmp_path / "run", **flags}
        monkeypatch.setattr(sys, "argv", ["mine.py", *(str(w) for n, v in given.items() for w in (f"--{n}", v))])
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, "mine.py", "exec"), {"__name__": "mine"})
        folder, rows = given["output_dir"], []
        if ended.value.code != 2:
            rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((folder / "result.json").read_text()) if rows or ended.value.code == 1 else {}
        return SimpleNamespace(code=ended.value.code, folder=folder, rows=rows, **result)

    return call


@pytest.fixture
def plain(mine):
    return mine()


# What a flag changes in the run, beside standing in its result; with it, flags that it needs.
ACTS = {
    "config": ({"config": "accelerate_configs/bf16.yaml"}, lambda r, b: r.evidence["compute_dtype"] == "bfloat16"),
    "block_size": ({"block_size": 32}, lambda r, b: r.rows[0]["train/tokens"] == 4 * 31),
    "global_batch_size": ({"global_batch_size": 8}, lambda r, b: r.rows[0]["train/tokens"] == 8 * 15),
    "gradient_accumulation_steps": (
        {"gradient_accumulation_steps": 2},
        lambda r, b: r.evidence["micro_batches"] == 2,
    ),
    "gradient_checkpointing": ({"gradient_checkpointing": True}, lambda r, b: r.evidence["recomputed_blocks"] == 2),
    "gradient_checkpointing_kwargs": (
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"every_n_layers": 2}'},
        lambda r, b: r.evidence["recomputed_blocks"] == 1,
    ),
    "linear_cross_entropy": ({"linear_cross_entropy": True}, lambda r, b: r.evidence["loss_products"] == "float32"),
    "use_peft": ({"use_peft": True}, lambda r, b: r.evidence["trained_parameters"] < 0.5),
    "lora_r": ({"use_peft": True, "lora_r": 1}, lambda r, b: r.evidence["trained_parameters"] < 0.05),
    "lora_alpha": ({"use_peft": True, "lora_alpha": 320}, lambda r, b: r.loss["last"] < b(use_peft=True).loss["last"]),
    "lora_target_modules": (
        {"use_peft": True, "lora_target_modules": "q_proj"},
        lambda r, b: r.memory["gradients_mib"] < b(use_peft=True).memory["gradients_mib"],
    ),
    "optim": ({"optim": "adamw_torch_fused"}, lambda r, b: r.evidence["optimizer"] == "adamw_torch_fused"),
    "max_steps": ({"max_steps": 5}, lambda r, b: len(r.rows) == 5),
    "untimed_steps": ({"untimed_steps": 3}, lambda r, b: r.throughput["timed_steps"] == 1),
    "learning_rate": ({"learning_rate": 1e-2}, lambda r, b: r.rows[0]["train/learning_rate"] == 1e-2),
    "lr_scheduler_type": (
        {"lr_scheduler_type": "linear"},
        lambda r, b: r.rows[1]["train/learning_rate"] == pytest.approx(0.75e-3),
    ),
    "warmup_steps": (
        {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2},
        lambda r, b: [row["train/learning_rate"] for row in r.rows[:3]] == [0, 0.5e-3, 1e-3],
    ),
    "weight_decay": ({"weight_decay": 50.0}, lambda r, b: r.loss["last"] != b().loss["last"]),
    "max_grad_norm": ({"max_grad_norm": 1e-6}, lambda r, b: r.loss["last"] != b().loss["last"]),
    "seed": ({"seed": 1}, lambda r, b: r.loss["first"] != b().loss["first"]),
    "checkpointing_steps": ({"checkpointing_steps": 2}, lambda r, b: (r.folder / "checkpoint-4").is_dir()),
    "save_total_limit": (
        {"checkpointing_steps": 2, "save_total_limit": 1},
        lambda r, b: [path.name for path in r.folder.glob("checkpoint-*")] == ["checkpoint-4"],
    ),
    "save_model": ({"save_model": True}, lambda r, b: (r.folder / "model" / "model.safetensors").is_file()),
    "run_name": ({"run_name": "other"}, lambda r, b: r.name == "other"),
    "plots": ({"plots": "true"}, lambda r, b: (r.folder / "memory_step.png").is_file()),
    "output_dir": ({}, lambda r, b: (r.folder / "result.json").is_file()),
}
WANTING = {"gradient_checkpointing_kwargs": EVERY_N_LAYERS, "linear_cross_entropy": LOSS_IN_CHUNKS}
# What the whole command is not meant for: the reason is said, and nothing is recorded.
NEEDS = {
    "sync_each_batch": (True, "has no effect without several processes"),
    "fsdp_reshard_after_forward": ("false", "has no effect without FSDP"),
    "activation_memory_budget": (0.5, "has no effect without --torch_compile"),
    "eager_run": ("runs/fp32", "has no effect without --torch_compile"),
    "use_liger_kernel": ("true", "this run is on the CPU; leave it out"),
    "tf32": ("true", "acts on NVIDIA GPUs alone"),
}
COMPILER = {"torch_compile": True, "torch_compile_mode": "max-autotune", "torch_compile_scope": "regional"}
COMPILER |= {"torch_compile_cache_dir": "cache"}
TRACKER = {"report_to": "wandb", "project": "mine", "group": "ours"}


def test_every_flag_of_the_guide_is_looked_at():
    flags = {name for name, field in FIELDS.items() if field.metadata["group"] not in (None, *OWN)}
    # Of a script's own model there is no forecast to leave out.
    flags -= {"forecast"}
    assert flags == {*ACTS, *NEEDS, *COMPILER, *TRACKER, "resume_from_checkpoint", "fused_activation"}


@pytest.mark.parametrize("flag", marked(ACTS, WANTING))
def test_a_flag_of_the_guide_acts(flag, mine, capsys):
    flags, acted = ACTS[flag]
    result = mine(**flags)
    assert (result.code, result.status) == (0, "ok"), result.reason
    assert acted(result, mine)


def test_a_run_of_the_guide_goes_on_from_its_checkpoint(mine):
    whole = mine(checkpointing_steps=2).loss["trajectory"]
    resumed = mine(resume_from_checkpoint=mine(checkpointing_steps=2).folder / "checkpoint-2")
    assert resumed.code == 0 and resumed.loss["trajectory"] == whole and len(resumed.rows) == 4


def test_a_technique_that_the_guides_model_has_no_use_for_is_refused_in_words(mine):
    """A Llama's activation is one kernel."""
    result = mine(fused_activation="true")
    assert (result.code, result.status) == (1, "skipped")
    assert "its activations are one kernel each already" in result.reason


@pytest.mark.parametrize("flag", NEEDS)
def test_a_flag_that_would_do_nothing_in_this_call_is_refused(flag, mine, capsys):
    value, words = NEEDS[flag]
    assert mine(**{flag: value}).code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("flag", [name for name, field in FIELDS.items() if field.metadata["group"] in OWN])
def test_a_flag_of_what_is_the_scripts_own_is_refused(flag, mine, capsys):
    choices = FIELDS[flag].metadata["choices"]
    value = choices[-1] if choices else {bool: "true", int: 3}.get(type(FIELDS[flag].default), "3")
    assert mine(**{flag: value}).code == 2
    assert f"--{flag} has no effect: the {FIELDS[flag].metadata['group']} of this script" in capsys.readouterr().err


def test_the_compiler_and_the_tracker_are_given_their_flags(mine, monkeypatch):
    class Compiler:
        def __init__(self, settings):
            raise UnavailableTechnique(str({name: getattr(settings, name) for name in COMPILER}))

    monkeypatch.setattr("rungwise.techniques.torch_compile.CompileRecord", Compiler)
    told = {}
    monkeypatch.setattr(tracking, "build_tracker", lambda _, config, *__: told.update(config) or tracking.Tracker())
    assert mine(**COMPILER, **TRACKER).reason == str(COMPILER)
    assert TRACKER.items() <= told.items()


# Lines of the program that a copy may have lost, and what the run then says of the flag that they serve.
FORGOTTEN = {
    "checkpoints": (
        ("        run.save_checkpoint()\n", ""),
        {"checkpointing_steps": 2},
        "--checkpointing_steps 2: no checkpoint after step 2; call run.save_checkpoint() after each step",
    ),
    "the last checkpoint": (
        ("        run.save_checkpoint()\n", ""),
        {"checkpointing_steps": 4},
        "--checkpointing_steps 4: no checkpoint after step 4",
    ),
    "the model": (
        ("    run.save_model(model)\n", ""),
        {"save_model": True},
        "--save_model: nothing was saved; call run.save_model(model) after the last step",
    ),
    "clipping": (
        ("settings.max_grad_norm,", "0.0,"),
        {},
        "max_grad_norm 1 was asked for, gradients were clipped at inf, which is not at all; tell the loop",
    ),
    "an evaluation": (
        (', "evaluation"]', "]"),
        {"eval_steps": 3},
        "--eval_steps 3: no evaluation after step 3; call `with run.evaluating() as log: log(evaluate(...))`",
    ),
    "adapters": (
        ("rungwise.apply_techniques(my_model(), settings, accelerator.device)", "my_model(), None"),
        {"use_peft": True},
        "adapters alone were asked for: True; trained are 100.0% of all",
    ),
    "checkpointing": (
        ("rungwise.apply_techniques(my_model(), settings, accelerator.device)", "my_model(), None"),
        {"gradient_checkpointing": True},
        "gradient checkpointing was asked for: True; blocks that were recomputed: 0",
    ),
    "the optimizer": (
        ("rungwise.build_optimizer(model, settings)", "torch.optim.SGD(model.parameters(), lr=1e-3)"),
        {"optim": "adamw_torch"},
        "optim adamw_torch was asked for, the optimizer has sgd",
    ),
    "sizes of rows": (
        ("my_rows(settings.block_size)", "my_rows(24)"),
        {},
        "micro-batches of 4 rows of 16 tokens were asked for, the model was given 4 x 24",
    ),
}


@pytest.mark.parametrize("case", FORGOTTEN)
def test_a_copy_that_forgets_a_line_is_told_which(case, program, mine, capsys):
    (line, instead), flags, words = FORGOTTEN[case]
    assert program.count(line) == 1
    result = mine(program.replace(line, instead), **flags)
    assert (result.code, result.status) == (1, "failed")
    assert words in result.reason


def test_a_copy_cannot_forget_to_clip(program, mine, capsys):
    result = mine(program.replace(', "max_grad_norm": settings.max_grad_norm', ""))
    assert "missing 1 required keyword-only argument: 'max_grad_norm'" in result.reason


@pytest.mark.parametrize("flags", [{"learning_rate": 0}, {"learning_rate": 1e-18}])
def test_a_run_that_changed_no_weight_is_no_success(flags, mine, capsys):
    """The first ever so little is a change; there is none in a step of 1e-18."""
    result = mine(**flags)
    assert (result.code, result.status) == (1, "failed")
    assert "no step changed a weight, so that nothing shows what the techniques do to training" in result.reason
    assert "engine" not in result.evidence and result.evidence["compute_dtype"] == "float32"


def test_a_copy_may_stop_early_and_freeze_by_hand(program, mine):
    """An evaluation or a checkpoint that was still to come is none that was forgotten."""
    frozen = program.replace(
        "    model.loss_function", "    model.model.embed_tokens.requires_grad_(False)\n    model.loss_function"
    )
    result = mine(frozen.replace("step.loss < 0.5", "step.number == 3"), checkpointing_steps=4)
    assert (result.code, len(result.rows)) == (0, 3)
    assert 0.5 < result.evidence["trained_parameters"] < 0.95
