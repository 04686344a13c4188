"""Started in two processes: runs the recipe whole and, from its own checkpoint half way, resumed, in the ways
that are named, as in ddp-bf16."""

import contextlib
import io
import os
import sys
from pathlib import Path

from rungwise import __version__  # noqa: F401 (sets what PyTorch reads when it is imported)

import ablate
import torch
from accelerate.state import AcceleratorState, GradientState
from harness import MODEL, ROOT

folder, rank = Path(sys.argv[1]), os.environ["RANK"]
DROPOUT = f"{MODEL},resid_pdrop=0.1,attn_pdrop=0.1,embd_pdrop=0.1"
CALL = ["--config_overrides", DROPOUT, "--block_size", "32", "--dataset_name", "synthetic", "--report_to", "none"]
CALL += ["--max_steps", "6", "--untimed_steps", "2", "--gradient_accumulation_steps", "2", "--save_model"]
CALL += ["--lr_scheduler_type", "linear", "--warmup_steps", "2", "--eval_steps", "2", "--forecast", "false"]
CALL += ["--plots", "false"]


def run(config: Path, output: Path | str, *flags: str) -> tuple[int, str]:
    """The exit code of one run of the recipe, and what it said. The process group stays."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = ablate.main(["--config", str(config), *CALL, *flags, "--output_dir", str(output)])
    return code, said.getvalue()


def main() -> None:
    # A scale that falls by the time of the checkpoint, in fp16.
    flags = ("--learning_rate", "0.02")
    for name in dict.fromkeys(("ddp-no", *sys.argv[2:])):
        engine, precision = name.split("-")
        text = (ROOT / "accelerate_configs" / f"{engine}_cpu.yaml").read_text(encoding="utf-8")
        case, config = folder / name, folder / f"{name}-{rank}.yaml"
        config.write_text(text.replace("mixed_precision: 'no'", f"mixed_precision: '{precision}'"))
        code, said = run(config, case / "whole", *flags, "--checkpointing_steps", "3")
        assert code == 0, said
        checkpoint = str(case / "whole" / "checkpoint-3")
        code, said = run(config, case / "resumed", *flags, "--resume_from_checkpoint", checkpoint)
        assert code == 0, said
    # Nodes whose folders are not shared: one has the checkpoint, the other has not.
    node = folder / f"node-{rank}"
    (node / "run").mkdir(parents=True)
    if rank == "0":
        (node / "run" / "checkpoint-3").symlink_to(folder / "ddp-no" / "whole" / "checkpoint-3")
    os.chdir(node)
    code, said = run(folder / f"ddp-no-{rank}.yaml", "run", *flags, "--resume_from_checkpoint", "latest")
    (folder / f"said-{rank}.txt").write_text(f"{code}\n{said}", encoding="utf-8")


main()
torch.distributed.barrier()
