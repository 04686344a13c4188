"""One run's bookkeeping: settings in, `result.json` out, whatever happens between."""

import atexit
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from transformers import PreTrainedModel

from ..data.fingerprint import describe as describe_data
from ..data.opened import OpenedData
from ..loop import Step
from ..metrics.throughput import StepMeter
from ..model.model import save_model
from ..result_file import write_reason
from ..settings.fields import Settings
from ..signals import Signals, Terminated
from ..techniques.compile_notes import CompileNotes
from . import checkpoint, eager_run
from . import rank_errors as ranks
from .measurement import Measurement
from .record import Record
from .refusal import is_main, speaker
from .reporter import Reporter
from .served import Served
from .status import lost_a_rank, outcome


class Run:
    """A context around one training run. It keeps the files, the tracker and the terminal; it trains nothing.

    Errors inside the context become a status, a reason and `exit_code`. Only the main process writes and prints.
    `data` is what `build_datasets` made rows of: with it, the data is recorded.
    """

    def __init__(self, settings: Settings, data: OpenedData | None = None):
        self.settings, self.data = settings, data
        self.record = Record(settings)
        self.folder = Path(settings.output_dir)
        self.exit_code = 0
        self.accelerator: Accelerator | None = None
        self.measurement: Measurement | None = None
        self.served = Served(settings)
        self.signals = Signals(self._terminated if settings.num_processes > 1 else None)
        self.reporter = Reporter(settings, self.folder)
        self.first_step = 1
        self._building = ExitStack()
        self.resumed = checkpoint.find_checkpoint(settings) if is_main() else None  # which tells the others

    def __enter__(self) -> "Run":
        try:
            self.signals.__enter__()
            self.reporter.enter(self.record, self.resumed)
        except BaseException as error:
            # What ends it before there is a `with` block ends it as any other run.
            if self.__exit__(type(error), error, error.__traceback__):
                raise SystemExit(self.exit_code) from error
            raise
        return self

    def start(self, accelerator: Accelerator) -> Accelerator:
        """Takes note of where the run runs, shows its settings, starts the tracker, and seeds all random numbers.

        From here to `prepare` the model and the optimizer are built: their memory counts.
        """
        self.accelerator = accelerator
        self.begin(accelerator.device)
        return accelerator

    def begin(self, device: torch.device) -> None:
        """`start` for a loop that makes its accelerator later, and hands it to `watch`."""
        self.measurement = Measurement(self.record, device)
        self.resumed = checkpoint.agree(self.resumed)
        if is_main():
            self.record.data = describe_data(self.settings, self.data)
        self.reporter.start(self.record, self.resumed, self.data.first_row if self.data else None)
        set_seed(self.settings.seed)
        self._building.enter_context(self.measurement.memory.building())

    @property
    def meter(self) -> StepMeter:
        """Times the steps of a run that has started."""
        return self.measurement.meter

    def prepare(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        scheduler: LRScheduler,
        batches: DataLoader,
        compiled: CompileNotes | None = None,
    ) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader]:
        """Has Accelerate prepare what is trained, and goes on from the checkpoint that was asked for, if any.

        Watched from here on: whom memory belongs to, and that every technique acts. `first_step` is then the step to
        begin with, and `batches` begin with its rows.

        Args:
            model: with the techniques applied.
            optimizer: of what is trained of it.
            scheduler: not prepared, since a prepared one would step once a process.
            batches: of all steps.
            compiled: of a model that is compiled.
        """
        self.watch(model, optimizer, self.accelerator, compiled)
        model, optimizer, batches = self.accelerator.prepare(model, optimizer, batches)
        self.built()
        self.scheduler = scheduler
        done = self._resume() if self.resumed else 0
        self.first_step = done + 1
        batches = self.accelerator.skip_first_batches(batches, done * self.settings.gradient_accumulation_steps)
        return model, optimizer, batches

    def watch(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        compiled: CompileNotes | None,
        begins: tuple[Any, str] | None = None,
    ) -> None:
        """Takes note of what is trained, as `Measurement.watch` does, and of its size."""
        self.accelerator = accelerator
        self.reporter.watch(model.config)
        self.measurement.count_flops(model, self.settings.block_size)
        self.measurement.watch(model, optimizer, accelerator, compiled, begins)

    def built(self) -> None:
        """Says that model and optimizer are there, as they are to be trained."""
        self._building.close()

    def log(self, step: Step) -> None:
        """Keeps one finished step, in every place or in none.

        Raises:
            InactiveTechnique: a technique that was asked for did not act, or the script does not serve a flag.
        """
        self.served.check(self.record)
        self.measurement.update()
        with self.signals.deferred():
            self._keep(step, {})
            self.reporter.show(step)
        self.measurement.verify(step)

    def _keep(self, step: Step, evaluation: Mapping[str, float]) -> None:
        self.reporter.add(step.number, self.record.add(step), evaluation)

    @contextmanager
    def evaluating(self) -> Iterator[Callable[[float], None]]:
        """Around an evaluation after the last logged step; yields what keeps its loss.

        What it compiles, for a model in evaluation mode, is no part of training.
        """
        step = self.record.steps[-1].number

        def log(loss: float) -> None:
            with self.signals.deferred():
                self.record.evaluations.append({"step": step, "loss": loss})
                self.reporter.evaluated(step, loss)

        compiled = self.measurement.compiled
        with compiled.paused() if compiled else nullcontext():
            yield log

    def _resume(self) -> int:
        """Goes on from a checkpoint. Returns how many steps it has behind it."""
        steps, tracked = checkpoint.load_checkpoint(self.accelerator, self.scheduler, self.resumed, self.record)
        self.record.restored_steps = self.served.before = len(steps)
        self.measurement.evidence.restart()
        with self.signals.deferred():
            self.reporter.resume(self.record, self.resumed, tracked, len(steps))
            evaluations = {found["step"]: {"eval/loss": found["loss"]} for found in self.record.evaluations}
            for step in steps:
                self._keep(step, evaluations.get(step.number, {}))
        return len(steps)

    def save_checkpoint(self) -> None:
        """Saves a checkpoint after the last logged step, if it is time for one."""
        every = self.settings.checkpointing_steps
        if every and len(self.record.steps) % every == 0:
            checkpoint.save_checkpoint(self.accelerator, self.scheduler, self.record, self.reporter.tracker.id)
            self.served.saved = len(self.record.steps)

    def save_model(self, model: nn.Module) -> None:
        """Saves the prepared model as a Transformers folder, if that was asked for. Call it in every process."""
        if self.settings.save_model:
            save_model(self.accelerator, model, self.folder / "model", self.data.tokenizer if self.data else None)
            self.served.saved_model = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        measured = self.measurement
        if error is None and self.accelerator:
            error = self._gather_memory() or self.served.finish(self.record, measured.evidence)
        self.signals.end()  # nothing interrupts what follows
        self._say_why(error)
        self._building.close()  # of a run that did not come to `prepare`
        record = self.record
        if measured:
            measured.close()
        if self.settings.eager_run and record.compile and record.status == "ok":
            record.compile["break_even"] = eager_run.compare(record.as_dict(), self.settings.eager_run)
        if self.accelerator:
            atexit.register(ranks.leave_group, self.accelerator)
        if is_main():
            self.reporter.end(record, error, self.exit_code, measured.memory.timeline if measured else [])
            self.exit_code = self.exit_code or int(record.status != "ok")  # its result could not be written
            self.reporter.forecast(record)
            if self.settings.num_processes == 1:  # a launcher of several repeats a Ctrl-C, which is nobody's wish
                self.signals.interruptible()
            self.reporter.finish(record, self.exit_code)
        self.signals.__exit__()
        return isinstance(error, Exception | KeyboardInterrupt | Terminated)

    def _say_why(self, error: BaseException | None) -> None:
        """Status, reason and exit code, on the disk before all that takes time: a launcher may end this process."""
        record = self.record
        record.status, record.reason, self.exit_code = outcome(error, record.steps, self.settings.num_processes)
        if self.measurement and self.measurement.compiled:
            record.reason = self.measurement.compiled.why_given_up(error) or record.reason
        if is_main() and (isinstance(error, Terminated) or lost_a_rank(error)):
            record.reason = ranks.read_rank_error(self.folder) or record.reason
        if self.exit_code and is_main():
            self.reporter.write(record)
        elif self.exit_code:
            ranks.write_rank_error(self.folder, record.reason, error)

    def _terminated(self) -> None:
        """The reason of a process that is asked to end where it may not come to say so itself."""
        _, reason, _ = outcome(Terminated(), self.record.steps, self.settings.num_processes)
        write_reason(self.folder, ranks.read_rank_error(self.folder) or f"{speaker()}{reason}")

    def _gather_memory(self) -> BaseException | None:
        """Keeps the memory of all ranks. Returns why another rank could not be asked, if so."""
        try:
            self.measurement.gather_memory()
            self.signals.end()
        except (Exception, KeyboardInterrupt, Terminated) as error:
            return error
        return None
