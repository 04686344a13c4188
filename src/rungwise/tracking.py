"""W&B and the other trackers behind one small interface, on top of Accelerate's own.

Names of metrics are given by the caller; a run that reports to nothing has a `Tracker` too, so no caller asks.
"""

import importlib.util
import os
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.tracking import GeneralTracker, TensorBoardTracker, TrackioTracker, WandBTracker

from .errors import closest
from .redact import HIDDEN, redacted
from .report.report import Report
from .report.table import conditions
from .result_file import PREFIXES
from .settings.fields import Settings

EXTRAS = {"wandb": "wandb", "trackio": "rungwise[trackio]", "tensorboard": "rungwise[tensorboard]"}
# What W&B takes: the words of WANDB_MODE, and of names the length and what a project's or a run's id must not have.
MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")
LONGEST_NAME = 128
NOT_IN_PROJECT = "/\\#?%:"
NOT_IN_ID = ":;,#?/'"
# How W&B is used, unless the person says otherwise in WANDB_SILENT and its like. What it collects by itself (the
# command, its paths, the repository's address, what is printed) may tell secrets; the config is redacted.
DEFAULTS = {"silent": True, "init_timeout": 30, "disable_job_creation": True}
DEFAULTS |= {"x_disable_meta": True, "disable_git": True, "disable_code": True, "console": "off"}
DEFAULTS |= {"host": HIDDEN, "program": HIDDEN}


class Tracker:
    """Reports to nothing. The others report to something."""

    # What a later process goes on with the same run by, and the last step that the run has from earlier ones.
    id: str | None = None
    known = 0

    def add(self, values: dict[str, Any], step: int) -> None:
        """Logs a row of metrics, unless the run has it from an earlier process."""
        if step > self.known:
            self.log(values, step=step)

    def log(self, values: dict[str, Any], step: int) -> None:
        """One row of metrics; steps must increase."""

    def summary(self, values: dict[str, Any]) -> None:
        """The figures of the whole run."""

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Rows of equal keys, where there are tables."""

    def finish(self, failed: bool) -> list[str]:
        """Ends the run. Returns lines that tell a person where it is."""
        return []


class AccelerateTracker(Tracker):
    """One of Accelerate's trackers. It has no summary of its own, so the figures are a last row."""

    def __init__(self, tracker: GeneralTracker, config: dict[str, Any], hint: str):
        self._tracker, self._hint, self._last = tracker, hint, 0
        tracker.start()
        tracker.store_init_configuration(config)

    def log(self, values: dict[str, Any], step: int) -> None:
        self._tracker.log(values, step=step)
        self._last = step

    def summary(self, values: dict[str, Any]) -> None:
        numbers = {key: value for key, value in values.items() if isinstance(value, int | float)}
        self._tracker.log({f"summary/{key}": value for key, value in numbers.items()}, step=self._last)

    def finish(self, failed: bool) -> list[str]:
        self._tracker.finish()
        return [self._hint]


def _wandb_mode() -> tuple[str, str]:
    """W&B's mode, and in words why it is not online: the user's own choice, else online if there is a key."""
    import wandb

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

    def __init__(self, project: str, folder: Path, config: dict[str, Any], **options: Any):
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        options |= {"config": config, "dir": os.environ.get("WANDB_DIR") or str(folder)}
        chosen = {name: value for name, value in DEFAULTS.items() if f"WANDB_{name.upper()}" not in os.environ}
        options["settings"] = wandb.Settings(**chosen)
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
        # Losses of rungs are compared at equal tokens; everything else stands over optimizer steps.
        self._run.define_metric("train/tokens")
        self._run.define_metric("train/*", step_metric="train/tokens")
        # W&B puts the last row of a metric into its summary, also after ours: these are the run's figures, or nothing.
        for prefix in PREFIXES.values():
            self._run.define_metric(f"{prefix}/*", summary="none")

    def log(self, values: dict[str, Any], step: int) -> None:
        self._tracker.log(values, step=step)

    def summary(self, values: dict[str, Any]) -> None:
        # W&B keeps no key without a value.
        self._run.summary.update(values)

    def table(self, name: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._run.log({name: _wandb_table(rows)})

    def finish(self, failed: bool) -> list[str]:
        if self._run.disabled:
            return ["W&B is disabled by WANDB_MODE"]
        self._run.finish(exit_code=int(failed))
        # What W&B notes for itself beside the run has its paths.
        for log in Path(self._run.settings.sync_dir, "logs").glob("*.log"):
            log.write_text(redacted(log.read_text(encoding="utf-8", errors="replace")), encoding="utf-8")
        if not self._run.offline:
            return [self._run.url]
        folder = os.path.relpath(self._run.settings.sync_dir)
        return [f"offline{self._why}; look: wandb leet {folder}", f"send it later: wandb sync {folder}"]

    def log_report(self, rows: list[dict[str, Any]], checks: dict[str, str], pictures: list[Path]) -> None:
        """A ladder's table, checks and pictures."""
        import wandb

        images = {f"report/{picture.stem}": wandb.Image(str(picture)) for picture in pictures}
        self._run.log({"report/table": _wandb_table(rows), **images})
        self._run.summary.update(checks)


def _wandb_table(rows: list[dict[str, Any]]) -> Any:
    import wandb

    columns = list(rows[0])
    return wandb.Table(columns=columns, data=[[row[column] for column in columns] for row in rows])


def validate(settings: Settings) -> list[str]:
    """A tracker that is asked for and not installed, or that would not take what it is told."""
    name = settings.report_to
    if name != "none" and not importlib.util.find_spec(name):
        return [f"--report_to {name}: not installed; pip install '{EXTRAS[name]}', or --report_to none"]
    return _wandb_problems(settings) if name == "wandb" else []


def _wandb_problems(settings: Settings) -> list[str]:
    """What W&B would refuse when the run begins: modes that there are not, names that it does not take."""
    found = []
    mode, run_id = os.environ.get("WANDB_MODE"), os.environ.get("WANDB_RUN_ID", "")
    if mode and mode not in MODES:
        found.append(f"WANDB_MODE={mode}: no such mode{closest(mode, MODES)}; use online, offline or disabled")
    project = _said_by("project", settings)
    if wrong := sorted({*settings.project} & {*NOT_IN_PROJECT}):
        found.append(f"{project}: W&B takes no {' '.join(wrong)} in a project's name; use letters, digits, - and _")
    if any(character in NOT_IN_ID for character in run_id) or run_id != run_id.strip():
        found.append(f"WANDB_RUN_ID={run_id!r}: W&B takes no blanks around a run's id and no {NOT_IN_ID} in it")
    names = {project: settings.project, _said_by("group", settings): settings.group, **_run_name(settings)}
    for said, name in names.items():
        if name and len(name) > LONGEST_NAME:
            found.append(f"{said}: W&B takes names of {LONGEST_NAME} characters, this has {len(name)}; shorten it")
    return found


def _said_by(name: str, settings: Settings) -> str:
    """A setting as the person gave it: by a flag or in a variable."""
    origin, value = settings.origins.get(name, "default"), getattr(settings, name)
    return f"{origin}={value}" if origin.startswith("WANDB_") else f"--{name} {value}"


def _run_name(settings: Settings) -> dict[str, str]:
    """Who names the run in W&B, and the name. A name that we made ourselves gives way to the person's variable."""
    named = os.environ.get("WANDB_NAME")
    if named and settings.origins.get("run_name") == "derived":
        return {f"WANDB_NAME={named}": named}
    return {f"--run_name {settings.run_name}": settings.run_name}


def build_tracker(settings: Settings, config: dict[str, Any], resumed: str | None = None) -> Tracker:
    """The tracker asked for. Call it in one process only, so that one training run is one tracked run.

    Args:
        settings: of the run.
        config: what is shown of them.
        resumed: the `id` of the tracker that had the run's earlier steps, to go on with.
    """
    if settings.report_to == "wandb":
        name, group = redacted([*_run_name(settings).values(), settings.group])
        names = {"name": name, "group": group, "job_type": os.environ.get("WANDB_JOB_TYPE") or "train"}
        if resumed:
            # A run that the user has named goes before the one that the checkpoint is of.
            names |= {"id": os.environ.get("WANDB_RUN_ID") or resumed, "resume": "allow"}
        return WandbTracker(redacted(settings.project), Path(settings.output_dir), config, **names)
    if settings.report_to == "trackio":
        hint = f"look: trackio show --project {settings.project}"
        tracker = TrackioTracker(redacted(settings.project), name=settings.run_name, group=redacted(settings.group))
        return AccelerateTracker(tracker, config, hint)
    if settings.report_to == "tensorboard":
        tracker = TensorBoardTracker(settings.run_name, logging_dir=settings.output_dir)
        flat = {k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in config.items()}
        return AccelerateTracker(tracker, flat, f"look: tensorboard --logdir {settings.output_dir}")
    return Tracker()


def track_report(report: Report, folder: Path, group: str) -> list[str]:
    """One W&B run of type `report` beside the rungs', if those were tracked there. Returns lines that say where it is.

    Args:
        report: written, so that its pictures are there.
        folder: of the ladder.
        group: of its rungs' runs.
    """
    tracked = [rung.settings for rung in report.rungs if rung.settings.get("report_to") == "wandb"]
    if not tracked:
        return []
    PartialState(cpu=True)  # Accelerate's trackers log through it; this process trains nothing.
    shared = conditions(report.rungs)
    # One report a group, also when a ladder is continued.
    names = {"name": "report", "group": group, "job_type": "report", "id": f"{group}-report", "resume": "allow"}
    tracker = WandbTracker(tracked[0]["project"], folder, {**shared["settings"], **shared}, **names)
    checks = {f"check/{c.claim} ({' to '.join(c.rungs)})": f"{c.verdict}: {c.measured}" for c in report.checks}
    paid = {f"break_even/{row['rung']}": f"{row['break_even']} ({row['eager']})" for row in report.compiled}
    tracker.log_report(report.rows, checks | paid, report.pictures)
    return tracker.finish(failed=report.failed)
