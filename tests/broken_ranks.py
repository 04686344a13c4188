"""Started in two processes: trains with what keeps them together broken, and saves verdicts.

In each configuration that is named, as in "ddp fp16".
"""

import sys
from contextlib import contextmanager

from rungwise import __version__  # noqa: F401 (sets what PyTorch reads when it is imported)
from rungwise.techniques.seen import InactiveTechnique

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from harness import masked_rows, tiny_settings, train_tiny

DDP, FSDP = "accelerate_configs/ddp_cpu.yaml", "accelerate_configs/fsdp2_cpu.yaml"
CONFIGURATIONS = {
    "plain": [],
    "warm-up": ["--lr_scheduler_type", "constant_with_warmup", "--warmup_steps", "2"],
    "fp16": [],
    "accumulation": ["--gradient_accumulation_steps", "4"],
    "checkpointing": ["--gradient_checkpointing"],
    "lora": ["--use_peft", "--lora_r", "4"],
    "resume": [],
}


def whole(accelerator):
    """Nothing is broken."""


def no_all_reduce(accelerator):
    """As within no_sync in each micro-batch, the last included."""

    @contextmanager
    def accumulate(model):
        accelerator._do_sync()
        with model.no_sync() if hasattr(model, "no_sync") else _unsharded_gradients(model):
            yield

    accelerator.accumulate = accumulate


@contextmanager
def _unsharded_gradients(model):
    model.set_requires_gradient_sync(False)
    yield


def a_model_that_is_not_wrapped(accelerator):
    accelerator.prepare_model = lambda model, **_: model


def the_same_rows(accelerator):
    accelerator.prepare_data_loader = lambda loader, **_: loader


def synchronised_each_time(accelerator):
    accelerator._do_sync = lambda: accelerator.gradient_state._set_sync_gradients(True)


def verdict(broken, name, config):
    PartialState(cpu=True).distributed_type = DistributedType.MULTI_CPU

    def hook(accelerator):
        if accelerator.scaler:
            accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
        broken(accelerator)

    flags = ["--max_steps", "24" if name == "fp16" else "6", "--untimed_steps", "2", "--global_batch_size", "8"]
    changes = {"mixed_precision": "fp16"} if name == "fp16" else {}
    settings = tiny_settings(*flags, *CONFIGURATIONS[name], config=config, **changes)
    before = train_tiny(tiny_settings("--max_steps", "3", *flags[2:], config=config)) if name == "resume" else None
    trained = train_tiny(settings, accelerator_hook=hook, resume=before)
    try:
        if trained.proof.decided:
            return f"shown: {trained.proof.verify(trained.steps[-1])['engine']}"
    except InactiveTechnique as error:
        return str(error)
    return f"undecided: {trained.proof.undecided}"


saved = {}
for case in sys.argv[2:]:
    engine, name = case.split(" ")
    ways = [whole, the_same_rows]
    if engine == "ddp":
        ways += [no_all_reduce, a_model_that_is_not_wrapped]
        ways += [synchronised_each_time] if name == "accumulation" else []
    elif name != "fp16":
        # Without any gradient the scaler of fp16 itself refuses to step.
        ways.append(no_all_reduce)
    for broken in ways:
        saved[case, broken.__name__] = verdict(broken, name, {"ddp": DDP, "fsdp2": FSDP}[engine])

# Windows that carry no loss, in one process alone or in both.
PartialState(cpu=True).distributed_type = DistributedType.MULTI_CPU
settings = tiny_settings("--max_steps", "6", "--untimed_steps", "2", "--global_batch_size", "4", config=DDP)
trained = train_tiny(settings, masked_rows(settings, windows=(2, 5), half=3))
saved["masked"] = [(step.tokens, step.skipped, step.loss) for step in trained.steps]
verdicts = [None, None]
torch.distributed.all_gather_object(verdicts, saved)
if PartialState().is_main_process:
    torch.save(verdicts, sys.argv[1])
