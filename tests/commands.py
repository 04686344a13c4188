"""Commands as a person types them, in a folder that looks like a clone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ablate
from accelerate.state import AcceleratorState, GradientState
from harness import MODEL, ROOT

BIN = Path(sys.executable).parent
LAUNCH = [str(BIN / "accelerate"), "launch"]
TINY = [
    "--config_overrides",
    MODEL.replace("vocab_size=128", "vocab_size=256"),
    "--block_size",
    "32",
    "--max_steps",
    "14",
]


def clone(folder: Path) -> Path:
    """Makes a folder look like a clone, so that no run of the person who tests is overwritten."""
    for name in ("recipes", "accelerate_configs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def run(home: Path, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command in such a folder and waits for it."""
    environment = {**os.environ, "COLUMNS": "200", **options.pop("environment", {})}
    return subprocess.run(
        command,
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=options.pop("timeout", 300),
        check=False,
        **options,
    )


def ablate_here(folder: Path, *flags: str) -> dict[str, Any]:
    """The result of `recipes/ablate.py` with these flags, run to its end in this process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    assert ablate.main([*flags, "--output_dir", str(folder)]) == 0
    return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def result_of(home: Path, name: str) -> dict[str, Any]:
    """The result of a run in such a folder."""
    return json.loads((home / "runs" / name / "result.json").read_text(encoding="utf-8"))
