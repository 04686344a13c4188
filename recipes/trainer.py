"""One rung as `ablate.py` has it, trained by transformers.Trainer: the same flags, model, rows and files.

    accelerate launch recipes/trainer.py --config accelerate_configs/bf16.yaml
    python recipes/trainer.py --config accelerate_configs/fp32.yaml --torch_compile --report_to none

In a ladder's YAML, `engine: trainer` among a rung's flags has this script run it. Flags that are not served here are
refused. To measure a Trainer of your own, give it a `rungwise.trainer.MeasureCallback`.
"""

from collections.abc import Sequence

import rungwise


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one rung; returns the exit code."""
    settings, inputs = rungwise.configure(argv, description=__doc__, engine="trainer")
    rows, _ = rungwise.build_datasets(settings, inputs)  # of block_size tokens
    with rungwise.Run(settings, inputs.data) as run:
        args = rungwise.training_arguments(settings)
        run.begin(args.device)
        model = rungwise.build_model(settings, inputs.config)  # fp32 master weights
        model = rungwise.apply_before_trainer(model, settings)
        rungwise.RungTrainer(model, args, rows, run).train()
    return run.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
