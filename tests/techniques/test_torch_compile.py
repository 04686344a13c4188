"""The real compiler on the CPU: what it did is noted, what it did not do is found."""

import os
import time
from pathlib import Path

from rungwise.model.model import build_model, save_model
from rungwise.run.configure import check
from rungwise.settings.choices import COMPILE_MODES
from rungwise.techniques import gradient_checkpointing, torch_compile
from rungwise.techniques.compile_record import CompileRecord
from rungwise.techniques.compiler_cache import CompilerCache
from rungwise.techniques.seen import InactiveTechnique, UnavailableTechnique

import pytest
import torch
from harness import TINY, largest_difference, tiny_settings, train_tiny
from needs import needs
from torch import nn
from torch._inductor import compile_fx, cpp_builder
from torch._inductor import config as inductor
from torch._inductor.codecache import CppCodeCache
from torch._inductor.runtime.cache_dir_utils import default_cache_dir, triton_cache_dir
from transformers import AutoModelForCausalLM
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

FLAGS = ["--max_steps", "6", "--torch_compile", "--gradient_checkpointing"]
BF16 = "accelerate_configs/bf16_accum4.yaml"
NO_GRAPHS = "max-autotune-no-cudagraphs"
# What a launcher leaves behind; none of it may reach the compiled model.
LAUNCHED = {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR", "ACCELERATE_DYNAMO_USE_DYNAMIC": "true"}


CPU = torch.device("cpu")


def at_work(monkeypatch, action):
    """Does something whenever Inductor makes code of a graph, once for its forward and once for its backward pass."""
    make = compile_fx.fx_codegen_and_compile

    def acted(*args, **kwargs):
        action()
        return make(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "fx_codegen_and_compile", acted)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("inductor"))


@pytest.fixture(scope="module")
def compiled(cache, tmp_path_factory):
    """One compiled run, whole model, bf16, accumulated and checkpointed."""
    settings = tiny_settings(*FLAGS, "--torch_compile_cache_dir", cache, config=BF16)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LAUNCHED.items():
            patch.setenv(name, value)
        at_work(patch, lambda: made.append("code"))
        trained = train_tiny(settings)
    trained.made = len(made)
    trained.proof.verify(trained.steps[-1])
    trained.notes = trained.compiled.result()
    trained.compiled.close()
    trained.folder = tmp_path_factory.mktemp("saved")
    save_model(trained.accelerator, trained.prepared, trained.folder)
    return trained


def test_compiled_code_is_shown_to_be_compiled_half_precision_and_recomputing(compiled):
    assert compiled.evidence["compiled_graphs"] == 1
    assert compiled.evidence["compiled_parameters"] == 1.0
    assert compiled.evidence["compute_dtype"] == "bfloat16"
    assert compiled.evidence["recomputed_blocks"] == 2


def test_compile_seconds_are_those_of_the_step_that_compiled(compiled):
    assert 0 < compiled.notes["seconds"] < compiled.steps[0].seconds
    assert compiled.notes["cache"].startswith("cold: ")


def test_blocks_of_one_size_are_compiled_once_whatever_the_launcher_set(compiled):
    notes = compiled.notes
    assert (notes["graphs"], notes["graph_breaks"], notes["recompiles"]) == (1, 0, 0)
    assert notes["graph_break_reasons"] == notes["recompile_reasons"] == []


def test_compiled_training_equals_eager(compiled):
    """At dropout 0 the compiler only fuses; it keeps in fp32 what eager rounds to bf16 between two operations."""
    eager = train_tiny(tiny_settings("--max_steps", "6", "--gradient_checkpointing", config=BF16))
    assert compiled.losses == pytest.approx(eager.losses, abs=2e-3)


def test_a_model_that_was_compiled_is_saved_as_any_other(compiled):
    loaded, found = AutoModelForCausalLM.from_pretrained(compiled.folder, output_loading_info=True)
    assert not any(found.values()), found
    assert largest_difference(loaded.state_dict(), compiled.weights) == 0


@needs("compiled code is found again by the process that made it", torch="2.13")
def test_the_same_cache_again_is_a_warm_start_and_labelled(compiled, cache, monkeypatch):
    made = []
    at_work(monkeypatch, lambda: made.append("code"))
    again = train_tiny(tiny_settings(*FLAGS, "--torch_compile_cache_dir", cache, config=BF16))
    again.proof.verify(again.steps[-1])
    notes = again.compiled.result()
    assert notes["cache"] == f"warm: {cache}"
    # In the process that made it, Inductor does not find every graph again.
    assert len(made) < compiled.made == 2
    assert again.losses == compiled.losses


def test_regions_are_compiled_once_and_equal_eager(cache):
    """In fp32 only the order of sums differs."""
    flags = ["--max_steps", "4", "--torch_compile_scope", "regional", "--torch_compile_cache_dir", cache]
    regional = train_tiny(tiny_settings("--torch_compile", *flags))
    evidence = regional.proof.verify(regional.steps[-1])
    assert evidence["compiled_graphs"] == 1 and evidence["compiled_parameters"] == 1.0
    assert regional.losses == pytest.approx(train_tiny(tiny_settings("--max_steps", "4")).losses, abs=1e-5)


class Small(nn.Module):
    """Two layers; what happens between them is a test's."""

    def __init__(self, between=lambda: None):
        super().__init__()
        self.first, self.second, self.between = nn.Linear(8, 8), nn.Linear(8, 8), between

    def forward(self, rows):
        kept = self.first(rows)
        self.between()
        return self.second(kept).sum()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_precision_of_a_graph_is_that_of_each_of_its_products(enabled, cache):
    """Not of the last alone, and not of what is fp32 in any case, as sums and norms."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.first, self.second = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, rows):
            with torch.autocast("cpu", enabled=enabled):
                rows = self.first(self.norm(rows))
            return self.second(rows).float().sum()

    notes = CompileRecord(tiny_settings("--torch_compile", "--torch_compile_cache_dir", cache))
    compiled = torch.compile(Block(), backend=lambda graph, _: notes._note(graph) or graph.forward)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(torch.randn(4, 8))
    notes.close()
    assert notes.dtypes == ({torch.bfloat16} if enabled else {torch.bfloat16, torch.float32})


class Deep(nn.Module):
    """Layers whose activations can be kept or computed again."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, rows):
        for layer in self.layers:
            rows = layer(rows).tanh()
        return rows


def record(model, cache, clock=time.perf_counter, **changes):
    made = CompileRecord(tiny_settings("--torch_compile", "--torch_compile_cache_dir", cache, **changes), clock)
    made.compile([model])
    return made


def test_compile_seconds_are_all_of_the_compilers_and_nobody_elses(tmp_path, monkeypatch):
    """Of two steps, which take 100 s before each pass and, in the first, 3 s for each pass that is compiled."""
    now = 0

    def passes(seconds):
        nonlocal now
        now += seconds

    at_work(monkeypatch, lambda: passes(3))
    model, rows = Small(), torch.randn(4, 8)
    notes = record(model, str(tmp_path), clock=lambda: now)
    for _ in range(2):
        passes(100)
        loss = model(rows)
        passes(100)
        loss.backward()
    assert notes.result()["seconds"] == 6 and now == 406
    notes.close()


@pytest.mark.parametrize("mode", COMPILE_MODES)
def test_a_mode_that_does_nothing_on_a_cpu_is_refused_there(mode, with_triton):
    """`reduce-overhead` is CUDA graphs alone; under its name the default's code would run."""
    settings = tiny_settings("--torch_compile", "--torch_compile_mode", mode)
    found = torch_compile.validate(settings, "cpu")
    assert len(found) == (mode == "reduce-overhead") and all("has no effect on the CPU" in error for error in found)
    assert torch_compile.validate(settings, "cuda") == []


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", NO_GRAPHS])
def test_modes(mode, cache):
    model, rows = Small(), torch.randn(4, 8)
    expected = model(rows).detach()
    notes = record(model, cache, torch_compile_mode=mode)
    torch.testing.assert_close(model(rows).detach(), expected)
    assert (notes.graphs, notes.recompiles) == (1, 0) and notes.compiled_share() == 1.0
    notes.close()


def test_graph_breaks_and_recompiles_are_counted_with_their_reasons(cache):
    model = Small(torch._dynamo.graph_break)
    notes = record(model, cache)
    model(torch.randn(4, 8)).backward()
    before = notes.compilations
    model(torch.randn(4, 8)).backward()
    assert notes.compilations == before
    assert notes.result()["recompiles"] == 0
    model(torch.randn(2, 8)).backward()
    found = notes.result()
    assert notes.compilations > before
    # Two frames, the one before the break and the one after it, each compiled for both shapes.
    assert (found["graphs"], found["graph_breaks"], found["recompiles"]) == (4, 2, 2)
    [why] = found["graph_break_reasons"]
    assert "graph_break" in why and "test_torch_compile.py" in why and "in forward" in why
    assert any("size mismatch" in why for why in found["recompile_reasons"])
    assert notes.compiled_share() == 1.0
    notes.close()


def test_what_an_evaluation_compiles_is_left_out(cache):
    model, rows = Small(), torch.randn(4, 8)
    notes = record(model, cache)
    model(rows).backward()
    before = notes.result()
    with notes.paused(), torch.no_grad():
        model.eval()
        model(rows[:2])
        model.train()
    model(rows).backward()
    after = notes.result()
    # The label is of the shared cache here, which other tests have filled.
    assert {**after, "cache": ""} == {**before, "cache": ""}
    assert notes.compilations > 0
    notes.close()


class Compiling(torch.optim.Optimizer):
    """Compiles a step of its own, as torchao's do."""

    def __init__(self):
        super().__init__([nn.Parameter(torch.zeros(1))], {})

    def step(self):
        torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(1))


@pytest.mark.parametrize("left_out", [False, True])
def test_what_an_optimizer_compiles_of_its_own_is_left_out(left_out, cache):
    record, optimizer = CompileRecord(tiny_settings(*FLAGS, "--torch_compile_cache_dir", cache)), Compiling()
    if left_out:
        record.leave_out(optimizer)
    optimizer.step()
    record.close()
    assert (record.compilations, record.seconds > 0) == ((0, False) if left_out else (1, True))


@torch._dynamo.config.patch(recompile_limit=2)
def test_a_frame_that_recompiles_for_ever_ends_the_run(cache):
    model = Small()
    notes = record(model, cache)
    with pytest.raises(Exception, match="recompile") as caught:
        for rows in range(1, 9):
            model(torch.randn(rows, 8))
    why = notes.why_given_up(caught.value)
    assert why.startswith("the compiler gave up after 1 recompiles (tensor 'rows' size mismatch")
    assert notes.why_given_up(ValueError("another")) is None
    notes.close()


@torch._dynamo.config.patch(suppress_errors=True)
def test_dynamo_may_not_swallow_an_error_and_go_on_in_eager_mode(cache, monkeypatch):
    model = Small()
    notes = record(model, cache)
    monkeypatch.setattr(notes, "_note", lambda graph: 1 / 0)
    with pytest.raises(Exception, match="division by zero"):
        model(torch.randn(4, 8))
    notes.close()


def test_a_model_that_mostly_fell_back_to_eager_is_found(cache):
    """A graph was compiled, for the head of the model alone: that is not what was asked for."""
    settings = tiny_settings("--max_steps", "4", "--torch_compile", "--torch_compile_cache_dir", cache)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.models.gpt2.modeling_gpt2.GPT2Model.forward", _never_compiled())
        trained = train_tiny(settings)
    assert trained.compiled.graphs > 0
    with pytest.raises(InactiveTechnique, match=r"13% of the parameters were used by compiled code.*in forward"):
        trained.proof.verify(trained.steps[-1])


def _never_compiled():
    from transformers.models.gpt2.modeling_gpt2 import GPT2Model

    return torch._dynamo.disable(GPT2Model.forward)


def test_a_smaller_memory_budget_keeps_less_for_the_backward_pass(cache):
    def kept(budget):
        torch.manual_seed(0)
        model = Deep()
        notes = record(model, cache, activation_memory_budget=budget)
        own = {parameter.data_ptr() for parameter in model.parameters()}
        saved = {}

        def note(tensor):
            if tensor.data_ptr() not in own:
                saved[tensor.data_ptr()] = tensor.nbytes
            return tensor

        rows = torch.randn(64, 32)
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = model(rows).sum()
        loss.backward()
        notes.close()
        return sum(saved.values()), model.layers[0].weight.grad

    (all_kept, gradient), (little, again) = kept(1.0), kept(0.0)
    assert little < 0.5 * all_kept
    torch.testing.assert_close(again, gradient)


def test_a_fresh_cache_is_the_runs_own_and_goes_with_it(monkeypatch, tmp_path):
    """Inductor puts its default into the environment, and every process that is started from there inherits it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", default_cache_dir())
    notes = CompileRecord(tiny_settings("--torch_compile"))
    assert notes.result()["cache"] == "fresh"
    folder = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
    assert list(folder.iterdir()) == []
    notes.close()
    assert not folder.exists()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    notes = CompileRecord(tiny_settings("--torch_compile"))
    assert notes.result()["cache"] == f"cold: {tmp_path}"
    notes.close()


@pytest.mark.parametrize("before", [{}, {"TORCHINDUCTOR_CACHE_DIR": "mine", "TRITON_CACHE_DIR": "my-triton"}])
@pytest.mark.parametrize("folder", [None, "named"])
def test_a_runs_cache_does_not_reach_the_next_run_of_the_process(monkeypatch, tmp_path, before, folder):
    """Whatever Inductor and Triton write into the environment on their way."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        monkeypatch.setenv(name, "set, so that it is put back after the test")
        monkeypatch.delenv(name)
    for name, value in before.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    environment = dict(os.environ)
    seen = []
    for _ in range(2):
        cache = CompilerCache(folder and str(tmp_path / folder))
        seen.append((os.environ["TORCHINDUCTOR_CACHE_DIR"], cache.label()))
        triton = triton_cache_dir(0)  # as Inductor does for the first kernel
        os.environ["TRITON_CACHE_DIR"] = triton
        mine = "TRITON_CACHE_DIR" in before and folder is None
        assert triton == str(tmp_path / "my-triton") if mine else triton.startswith(cache.folder)
        cache.close()
        assert os.environ == environment
    if folder or before:
        named = str(tmp_path / (folder or "mine"))
        assert seen == [(named, f"cold: {named}")] * 2
    else:
        assert seen[0][0] != seen[1][0] and [label for _, label in seen] == ["fresh", "fresh"]


def test_a_second_run_of_the_process_finds_nothing_compiled_in_memory():
    CppCodeCache.cache["kernel of an earlier run"] = lambda: None
    CompilerCache(None).close()
    assert "kernel of an earlier run" not in CppCodeCache.cache


def test_regional_scope_of_a_model_without_named_blocks_is_refused():
    settings = tiny_settings("--torch_compile", "--torch_compile_scope", "regional")
    model = build_model(settings)
    model._no_split_modules = None
    with pytest.raises(UnavailableTechnique, match="use --torch_compile_scope model"):
        torch_compile.apply(model, settings, CPU)


def test_a_missing_compiler_is_found_before_training():
    call = ["--config", "accelerate_configs/fp32.yaml", *TINY]
    with inductor.patch({"cpp.cxx": (None, "no-such-compiler")}):
        cpp_builder.cpp_compiler_search.cache_clear()
        assert check(call)[1] == []
        [problem] = check([*call, "--torch_compile"])[1]
    cpp_builder.cpp_compiler_search.cache_clear()
    assert "none of no-such-compiler runs; install one (Debian: apt-get install g++" in problem


def test_missing_python_headers_are_found_before_training(monkeypatch, tmp_path):
    monkeypatch.setattr(torch_compile.sysconfig, "get_path", lambda name: str(tmp_path))
    [problem] = torch_compile.validate(tiny_settings("--torch_compile"), "cpu")
    assert f"{tmp_path} has no Python.h" in problem and "python3-dev" in problem


@pytest.fixture
def with_triton(monkeypatch):
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)


@pytest.mark.parametrize("mode", COMPILE_MODES)
def test_cuda_graphs_do_not_accumulate(mode, with_triton):
    """They keep their outputs in place, gradients among them, which the next micro-batch would overwrite."""
    flags = ["--torch_compile", "--torch_compile_mode", mode]
    assert torch_compile.validate(tiny_settings(*flags), "cuda") == []
    found = torch_compile.validate(tiny_settings(*flags, "--gradient_accumulation_steps", "4"), "cuda")
    assert len(found) == (mode in ("reduce-overhead", "max-autotune"))
    for problem in found:
        assert f"--torch_compile_mode {mode} has the compiler replay CUDA graphs" in problem
        assert "of 4 accumulated micro-batches; use --torch_compile_mode max-autotune-no-cudagraphs" in problem
    on_cpu = torch_compile.validate(tiny_settings(*flags, "--gradient_accumulation_steps", "4"), "cpu")
    assert not any("replay CUDA graphs" in error for error in on_cpu)


def test_cuda_graphs_by_the_environment_do_not_accumulate_either(with_triton):
    with inductor.patch({"triton.cudagraphs": True}):
        [found] = torch_compile.validate(
            tiny_settings("--torch_compile", "--gradient_accumulation_steps", "4"), "cuda"
        )
    assert "TORCHINDUCTOR_CUDAGRAPHS=1" in found and "unset it" in found


@pytest.mark.parametrize("half", [{"config": "accelerate_configs/bf16.yaml"}, {"dtype": "bfloat16"}])
def test_bf16_is_not_compiled_on_a_gpu_without_its_instructions(half, monkeypatch):
    """Inductor would leave every graph in eager mode with a warning. Such a rung is skipped before it trains."""
    monkeypatch.setattr(torch_compile, "device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch_compile, "native_precision", lambda device: ["fp32", "fp16"])
    settings = tiny_settings("--torch_compile", **half)
    with pytest.raises(UnavailableTechnique, match="leaves bf16 in eager mode on Tesla T4"):
        torch_compile.apply(build_model(settings), settings, torch.device("cuda"))
    for other in ("fp16", "fp32"):
        settings = tiny_settings("--torch_compile", config=f"accelerate_configs/{other}.yaml")
        torch_compile.apply(build_model(settings), settings, torch.device("cuda")).close()
    monkeypatch.setattr(torch_compile, "native_precision", lambda device: ["fp32", "fp16", "bf16"])
    settings = tiny_settings("--torch_compile", **half)
    torch_compile.apply(build_model(settings), settings, torch.device("cuda")).close()


def test_regions_of_a_release_that_checkpoints_around_them_are_refused():
    """Before Transformers 5.23 the checkpoint wraps a block's `__call__`, outside of what the block compiles."""

    class OldBlock(GPT2Block):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs)

    flags = ["--torch_compile", "--torch_compile_scope", "regional"]

    def compiled(*more):
        settings = tiny_settings(*flags, *more)
        model = build_model(settings)
        model._no_split_modules = ["OldBlock"]
        for block in model.transformer.h:
            block.__class__ = OldBlock
        gradient_checkpointing.apply(model, settings, CPU)
        torch_compile.apply(model, settings, CPU).close()

    compiled()
    with pytest.raises(UnavailableTechnique, match="checkpoints OldBlock from outside what regional compiling"):
        compiled("--gradient_checkpointing")


@needs("blocks that checkpoint inside of what regional compiling compiles", transformers="5.23")
def test_checkpointed_regions_recompute_inside_their_graph(cache):
    """Where they are not refused: no release may pass from one of the two to neither."""
    flags = ["--max_steps", "4", "--torch_compile_scope", "regional", "--torch_compile_cache_dir", cache]
    trained = train_tiny(tiny_settings("--torch_compile", "--gradient_checkpointing", *flags))
    assert trained.proof.verify(trained.accelerator)["recomputed_blocks"] > 0


@pytest.mark.gpu
@pytest.mark.parametrize(
    "mode, accumulation", [(m, "1") for m in COMPILE_MODES] + [("default", "4"), (NO_GRAPHS, "4")]
)
def test_modes_equal_eager_on_a_gpu(mode, accumulation, cache):
    flags = ["--max_steps", "4", "--gradient_accumulation_steps", accumulation]
    compiling = ["--torch_compile", "--torch_compile_mode", mode, "--torch_compile_cache_dir", cache]
    eager = train_tiny(tiny_settings(*flags, use_cpu=False))
    compiled = train_tiny(tiny_settings(*flags, *compiling, use_cpu=False))
    compiled.proof.verify(compiled.steps[-1])
    assert compiled.losses == pytest.approx(eager.losses, rel=1e-4)


@pytest.mark.parametrize("folder", ["README.md", "README.md/deeper"])
def test_a_cache_whose_folder_cannot_be(folder):
    settings = tiny_settings("--torch_compile", "--torch_compile_cache_dir", folder)
    assert f"--torch_compile_cache_dir {folder}: a file stands in the way; name a folder" in torch_compile.validate(
        settings, "cpu"
    )
