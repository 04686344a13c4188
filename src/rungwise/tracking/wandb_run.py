"""A run in W&B, on top of Accelerate's tracker."""

import contextlib
import os
from pathlib import Path
from typing import Any

from accelerate.tracking import WandBTracker

from ..redact import HIDDEN, redacted
from ..result_file import PREFIXES
from .tracker import Tracker

# What stands over tokens.
OF_TOKENS = ("train", "eval")
# How W&B is used, unless the person says otherwise in WANDB_SILENT and its like. What it collects by itself (the
# command, its paths, the repository's address, what is printed) may tell secrets; the config is redacted.
DEFAULTS = {"silent": True, "disable_job_creation": True}
# Seconds for a server that does not answer: who waits for it trains nothing, and what is kept can be sent later.
DEFAULTS |= {"init_timeout": 10, "finish_timeout": 30, "finish_timeout_raises": True}
DEFAULTS |= {"x_disable_meta": True, "disable_git": True, "disable_code": True, "console": "off"}
DEFAULTS |= {"host": HIDDEN, "program": HIDDEN}


def _unsaid(defaults: dict[str, Any]) -> dict[str, Any]:
    """Those of which the person has not said otherwise in a variable."""
    return {name: value for name, value in defaults.items() if f"WANDB_{name.upper()}" not in os.environ}


def _wandb_mode() -> tuple[str, str]:
    """W&B's mode, and in words why it is not online: the user's own choice, else online if there is a key."""
    import wandb

    # What it says outside of a run, as that it has found a key, goes by the settings of the process.
    wandb.setup(wandb.Settings(**_unsaid({"silent": True})))
    if os.environ.get("WANDB_MODE"):
        return os.environ["WANDB_MODE"], ""
    try:
        if wandb.login(prompt=False, verify=False):
            return "online", ""
    except wandb.errors.Error as error:
        return "offline", f" (the key is not usable: {str(error).splitlines()[0]})"
    return "offline", " (no key; `wandb login` stores one)"


class WandbTracker(Tracker):
    """A W&B run: online with a key, offline without one, never a prompt."""

    def __init__(self, project: str, folder: Path, config: dict[str, Any], several: bool = False, **options: Any):
        """Begins the run.

        Args:
            project: of the run.
            folder: for W&B's files, unless WANDB_DIR names one.
            config: what is shown of the run's settings.
            several: whether other runs that belong to this one lie beside its files.
            options: for `wandb.init`.
        """
        # Of its own troubles W&B sends tracebacks, which have paths, and at the end waits for who does not take them.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._several = several
        folder.mkdir(parents=True, exist_ok=True)
        options |= {"config": config, "dir": os.environ.get("WANDB_DIR") or str(folder)}
        options["settings"] = wandb.Settings(**_unsaid(DEFAULTS))
        mode, self._why = _wandb_mode()
        self._tracker = WandBTracker(project, mode=mode, **options)
        try:
            self._tracker.start()
        except wandb.errors.Error as error:
            if mode == "offline":
                raise
            self._why = f" (online failed: {str(error).splitlines()[0]})"
            self._tracker = WandBTracker(project, mode="offline", **options)
            self._tracker.start()
        self._run = self._tracker.tracker
        self.id = self._run.id
        # W&B drops rows whose step it has. An offline run knows of no earlier one, and is given all of them.
        self.known = max(0, self._run.starting_step - 1) if self._run.resumed else 0
        # W&B puts the last row of a metric into its summary, also after ours, where a name is to mean the whole run.
        # Losses of rungs are compared at equal tokens; everything else stands over optimizer steps. Of tokens the last
        # row has the run's, and without them in the summary `wandb leet` draws nothing over them.
        self._run.define_metric("train/tokens")
        for prefix in OF_TOKENS:
            self._run.define_metric(f"{prefix}/*", step_metric="train/tokens", summary="none")
        for prefix in PREFIXES.values():
            self._run.define_metric(f"{prefix}/*", summary="none")

    def log(self, values: dict[str, Any], step: int) -> None:
        self._tracker.log(values, step=step)

    def summary(self, values: dict[str, Any]) -> None:
        # W&B keeps no key without a value.
        self._run.summary.update(values)

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._run.log({name: wandb_table(rows)})

    def pictures(self, files: list[Path]) -> None:
        if files:
            # With the last row, and no row of their own.
            self._run.log(wandb_images("pictures", files), commit=False)

    def about(self) -> dict[str, Any]:
        if self._run.disabled:
            return {}
        return {"name": "wandb", "id": self.id, "url": None if self._run.offline else self._run.url}

    def finish(self, failed: bool) -> list[str]:
        if self._run.disabled:
            return ["W&B is disabled by WANDB_MODE"]
        try:
            self._run.finish(exit_code=int(failed))
            unsent = ""
        except TimeoutError:
            unsent = f" (not all was sent within {self._run.settings.finish_timeout:g} s)"
        # What W&B notes for itself beside the run has its paths.
        for log in Path(self._run.settings.sync_dir, "logs").glob("*.log"):
            log.write_text(redacted(log.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
        folder = Path(os.path.relpath(self._run.settings.sync_dir))
        if not self._run.offline:
            return [f"{self._run.url}{unsent}", *([f"send the rest later: wandb sync {folder}"] if unsent else [])]
        look, send = (folder.parent, folder.parent / "offline-run-*") if self._several else (folder, folder)
        return [f"offline{self._why}; look: wandb leet {look}", f"send it later: wandb sync {send}"]

    def abandon(self) -> None:
        import wandb

        # What W&B would do at the end of the process it does now, and has failed by then.
        with contextlib.suppress(Exception):
            wandb.teardown()


def wandb_table(rows: list[dict[str, Any]]) -> Any:
    """Rows of equal keys as one of W&B's tables."""
    import wandb

    columns = list(rows[0])
    return wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])


def wandb_images(group: str, files: list[Path]) -> dict[str, Any]:
    """Pictures as W&B shows them, by their names in a group."""
    import wandb

    return {f"{group}/{file.stem}": wandb.Image(str(file)) for file in files}
