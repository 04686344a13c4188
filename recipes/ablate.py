"""One rung: train a causal language model under one Accelerate config, and measure memory, speed and loss.

    accelerate launch recipes/ablate.py --config accelerate_configs/bf16.yaml
    accelerate launch recipes/ablate.py --config accelerate_configs/bf16_accum4.yaml --gradient_checkpointing
    python recipes/ablate.py --config accelerate_configs/fp32.yaml --torch_compile --report_to none

To train your own model on your own data, copy this file and change the lines that build them.
"""

from collections.abc import Sequence
from pathlib import Path

from rungwise.data.loader import build_dataloader, build_datasets, build_eval_dataloader
from rungwise.loop import evaluate, train
from rungwise.model.model import build_model, save_model
from rungwise.run.run import Run, configure, exit_on_problems
from rungwise.techniques.apply import (
    apply_checkpointing,
    apply_compile,
    apply_lora,
    build_accelerator,
    build_optimizer,
)

from accelerate.utils import set_seed
from transformers import get_scheduler


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one rung; returns the exit code."""
    settings = configure(argv, description=__doc__)
    with exit_on_problems():
        rows, held_out = build_datasets(settings)  # of block_size tokens
    with Run(settings, rows, held_out) as run:
        accelerator = run.start(build_accelerator(settings))
        set_seed(settings.seed)
        dataloader = build_dataloader(rows, settings)
        if held_out is not None:
            held_out = accelerator.prepare_data_loader(build_eval_dataloader(held_out, settings))
        with run.building():
            model = build_model(settings)  # fp32 master weights
            apply_checkpointing(model, settings, accelerator.device)
            model = apply_lora(model, settings)
            compiled = apply_compile(model, settings)
            optimizer = build_optimizer(model, settings)
            scheduler = get_scheduler(settings.lr_scheduler_type, optimizer, settings.warmup_steps, settings.max_steps)
            run.watch(model, optimizer, compiled)
            model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        done = run.resume(scheduler)  # steps that a checkpoint has behind it
        dataloader = accelerator.skip_first_batches(dataloader, done * settings.gradient_accumulation_steps)
        steps = train(
            accelerator,
            model,
            optimizer,
            scheduler,
            dataloader,
            run.meter,
            first_step=done + 1,
            max_steps=settings.max_steps,
            max_grad_norm=settings.max_grad_norm,
        )
        for step in steps:
            run.log(step)
            if held_out is not None and step.number % settings.eval_steps == 0:
                with run.evaluating() as log:
                    log(evaluate(accelerator, model, held_out))
            run.save_checkpoint(scheduler)
        if settings.save_model:
            save_model(accelerator, model, Path(settings.output_dir) / "model")
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
