"""What a launcher left in the environment, beside what the file says."""

from rungwise.settings.launcher import default_config_file
from rungwise.settings.parse import parse

import pytest

FP32 = "accelerate_configs/fp32.yaml"
BF16 = "accelerate_configs/bf16.yaml"


def resolved(config=FP32, **environ):
    settings, errors = parse(["--config", config], environ)
    assert errors == []
    return settings


def errors(config=FP32, **environ):
    return parse(["--config", config], environ)[1]


@pytest.fixture
def home(tmp_path):
    """Writes the user's own default Accelerate file and returns the HF_HOME it lies in."""

    def write(text):
        (tmp_path / "accelerate").mkdir()
        (tmp_path / "accelerate" / "default_config.yaml").write_text(text, encoding="utf-8")
        return str(tmp_path)

    return write


DISAGREEING = {
    "ACCELERATE_MIXED_PRECISION": ("fp16", "the launcher was told mixed_precision fp16"),
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": ("8", "gradient_accumulation_steps 8, this run's are 1"),
    "ACCELERATE_DYNAMO_BACKEND": ("INDUCTOR", "add --torch_compile"),
    "ACCELERATE_USE_FSDP": ("true", "to use FSDP, accelerate_configs/bf16.yaml does not say so"),
    "ACCELERATE_USE_DEEPSPEED": ("true", "DEEPSPEED"),
}


@pytest.mark.parametrize("name", DISAGREEING)
def test_the_launcher_must_agree(name, tmp_path):
    value, message = DISAGREEING[name]
    [problem] = errors(BF16, HF_HOME=str(tmp_path), **{name: value})
    assert message in problem


def test_all_that_the_launcher_was_told_otherwise_is_listed_together(tmp_path):
    told = {name: value for name, (value, _) in DISAGREEING.items()}
    assert len(errors(BF16, HF_HOME=str(tmp_path), **told)) == len(told)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_launcher_that_was_told_nothing_or_the_same_agrees(precision, tmp_path):
    assert errors(BF16, HF_HOME=str(tmp_path), ACCELERATE_MIXED_PRECISION=precision) == []


def test_the_users_default_file_does_not_stop_the_readme_command(home):
    """The launcher reads that file when it is given none; nobody chose it for this run."""
    settings = resolved(BF16, HF_HOME=home("mixed_precision: fp16\n"), ACCELERATE_MIXED_PRECISION="fp16")
    assert settings.mixed_precision == "bf16"
    assert settings.origins["mixed_precision"].endswith("before Accelerate's default file (fp16)")


def test_the_users_default_dynamo_does_not_stop_it_either(home):
    folder = home("dynamo_config: {dynamo_backend: INDUCTOR}\n")
    assert errors(BF16, HF_HOME=folder, ACCELERATE_DYNAMO_BACKEND="INDUCTOR") == []
    assert len(errors(BF16, HF_HOME=folder, ACCELERATE_DYNAMO_BACKEND="EAGER")) == 1


@pytest.mark.parametrize("content", ["[1]", "a: b: c", ""])
def test_a_default_file_that_is_none_is_left_to_accelerate(home, content):
    [problem] = errors(BF16, HF_HOME=home(content), ACCELERATE_MIXED_PRECISION="fp16")
    assert "the launcher was told mixed_precision fp16" in problem


@pytest.mark.parametrize("variables", [{}, {"HF_HOME": "/a"}, {"XDG_CACHE_HOME": "/b"}, {"HF_HOME": "~/c"}])
def test_the_default_file_is_where_accelerate_keeps_it(variables, monkeypatch):
    import importlib

    from accelerate.commands.config import config_args

    for name in ("HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    try:
        assert str(default_config_file(variables)) == importlib.reload(config_args).default_yaml_config_file
    finally:
        monkeypatch.undo()
        importlib.reload(config_args)


def test_processes_are_those_that_were_launched(config):
    two = config("num_processes: 2\n")
    [problem] = errors(two)
    assert "num_processes: 2, but 1 started" in problem and "--nproc_per_node 2" in problem
    assert resolved(two, WORLD_SIZE="2").num_processes == 2
    assert resolved(ACCELERATE_USE_CPU="True").use_cpu


@pytest.mark.parametrize("content", ["dynamo_config: [a]", "when: 2001-13-45", "[" * 20_000, "a: &a [*a]", "5"])
def test_a_default_file_that_says_nothing_is_none(content, tmp_path):
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text(content, encoding="utf-8")
    environ = {"HF_HOME": str(tmp_path), "ACCELERATE_DYNAMO_BACKEND": "inductor"}
    [problem] = parse(["--config", "accelerate_configs/fp32.yaml"], environ)[1]
    assert problem.startswith("the launcher was told to use dynamo")
