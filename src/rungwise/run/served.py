"""Whether the script does what its flags say: one that stands in `result.json` and did nothing is a false label."""

from ..settings.fields import Settings
from ..techniques.evidence import Evidence
from ..techniques.seen import InactiveTechnique
from .record import Record


class Served:
    """Takes notes of what a script does between its steps, and compares them with its flags.

    Attributes:
        before: steps that a checkpoint had behind it.
        saved: the last step after which a checkpoint was saved.
        saved_model: whether the model was saved.
    """

    def __init__(self, settings: Settings):
        self.before, self.saved, self.saved_model = 0, 0, False
        self._settings = settings

    def check(self, record: Record) -> None:
        """Call before a step is kept: whatever was due after the one before it has been done by then.

        Raises:
            InactiveTechnique: something was not; the message names each flag and the line that serves it.
        """
        missed = self._missed(record, len(record.steps))
        if missed:
            raise InactiveTechnique("; ".join(missed))

    def finish(self, record: Record, evidence: Evidence | None) -> InactiveTechnique | None:
        """Why a run that has come to its end is not what its settings say, if so."""
        # After the last step of a run that its script ends early, nothing is due.
        early = len(record.steps) < self._settings.max_steps
        missed = [] if early else self._missed(record, len(record.steps))
        if self._settings.save_model and not self.saved_model:
            missed.append(
                "--save_model: nothing was saved; call run.save_model(model) after the last step, or drop the flag"
            )
        # Of steps that were all skipped, the outcome says why.
        if evidence and not all(step.skipped for step in record.steps):
            missed += evidence.undecided
        return InactiveTechnique("; ".join(missed)) if missed else None

    def _missed(self, record: Record, step: int) -> list[str]:
        """What was to be done by the end of this step and was not."""
        asked, missed = self._settings, []
        evaluated = record.evaluations[-1]["step"] if record.evaluations else 0
        if self._due(asked.eval_steps, step) and evaluated != step:
            missed.append(
                f"--eval_steps {asked.eval_steps}: no evaluation after step {step}; call `with run.evaluating() "
                "as log: log(evaluate(...))` after each such step, or drop the flag"
            )
        if self._due(asked.checkpointing_steps, step) and self.saved != step:
            missed.append(
                f"--checkpointing_steps {asked.checkpointing_steps}: no checkpoint after step {step}; call "
                "run.save_checkpoint() after each step, or drop the flag"
            )
        return missed

    def _due(self, every: int | None, step: int) -> bool:
        return every is not None and step > self.before and step % every == 0
