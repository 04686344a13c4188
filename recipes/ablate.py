"""One rung: train a causal language model under one Accelerate config, and measure memory, speed and loss.

    accelerate launch recipes/ablate.py --config accelerate_configs/bf16.yaml
    accelerate launch recipes/ablate.py --config accelerate_configs/bf16_accum4.yaml --gradient_checkpointing
    python recipes/ablate.py --config accelerate_configs/fp32.yaml --torch_compile --report_to none

To train your own model on your own data, copy this file and change the lines that build them.
"""

from collections.abc import Sequence

import rungwise


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one rung; returns the exit code."""
    settings, inputs = rungwise.configure(argv, description=__doc__)
    rows, held_out = rungwise.build_datasets(settings, inputs)  # of block_size tokens
    with rungwise.Run(settings, inputs.data) as run:
        accelerator = run.start(rungwise.build_accelerator(settings))
        model = rungwise.build_model(settings, inputs.config)  # fp32 master weights
        model, compiled = rungwise.apply_techniques(model, settings, accelerator.device)
        optimizer = rungwise.build_optimizer(model, settings)
        scheduler = rungwise.build_scheduler(optimizer, settings)
        batches = rungwise.build_dataloader(rows, settings)
        model, optimizer, batches = run.prepare(model, optimizer, scheduler, batches, compiled)
        if held_out is not None:
            held_out = accelerator.prepare_data_loader(rungwise.build_eval_dataloader(held_out, settings))
        steps = rungwise.train(
            accelerator,
            model,
            optimizer,
            scheduler,
            batches,
            run.meter,
            first_step=run.first_step,
            max_steps=settings.max_steps,
            max_grad_norm=settings.max_grad_norm,
        )
        for step in steps:
            run.log(step)
            if held_out is not None and step.number % settings.eval_steps == 0:
                with run.evaluating() as log:
                    log(rungwise.evaluate(accelerator, model, held_out))
            run.save_checkpoint()
        run.save_model(model)
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
