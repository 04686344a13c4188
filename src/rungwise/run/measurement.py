"""What is measured of one run, whoever's loop trains it: memory, time and where it goes, activations, evidence."""

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ..environment import describe
from ..loop import Step
from ..metrics.activations import ActivationMeter
from ..metrics.figure import Figure
from ..metrics.flops import matmul_flops_per_second
from ..metrics.memory import MemoryMeter
from ..metrics.step_profile import StepProfile
from ..metrics.throughput import StepMeter
from ..techniques import lora, product_kernels, torch_compile
from ..techniques.compile_notes import CompileNotes
from ..techniques.evidence import Evidence
from ..techniques.gradient_checkpointing import checkpointed_blocks
from .rank_errors import combined
from .record import Record


class Measurement:
    """The meters and the evidence of one run. What they find goes into its record.

    Attributes:
        record: of the run.
        memory: its meter; `building()` goes around what makes model and optimizer.
        meter: times the steps.
        compiled: notes of a compiled model, once there is one.
        evidence: once there is a model.
    """

    def __init__(self, record: Record, device: torch.device):
        settings = record.settings
        self.record, self._device = record, device
        self.memory = MemoryMeter(device)
        self.meter = StepMeter(device, self.memory, settings.untimed_steps)
        self.meter.profile = self._profile = StepProfile(device)
        self.compiled: CompileNotes | None = None
        self.evidence: Evidence | None = None
        self._activations: ActivationMeter | None = None
        # Of what begins as soon as there is a model.
        self._begun, self._flops = Figure(), Figure()
        record.environment = describe(device) | product_kernels.describe(settings, device)
        record.matmul_flops_per_second = matmul_flops_per_second(device, settings.precision)

    def watch(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        compiled: CompileNotes | None,
        begins: tuple[Any, str] | None = None,
    ) -> None:
        """Watches from here on whom memory belongs to, and that every technique acts.

        Args:
            model: with the techniques applied, not wrapped.
            optimizer: of what is trained of it, not wrapped.
            accelerator: that trains them.
            compiled: of a model that is compiled.
            begins: of another loop than ours, as in `ForwardNotes`.
        """
        settings = self.record.settings
        self.memory.watch(model, optimizer, accelerator)
        self.compiled = compiled
        self.evidence = Evidence(model, optimizer, accelerator, settings, compiled, begins)
        why_not = torch_compile.why_not_profiled(settings, self._device.type)
        self._profile.watch(model, lambda: self.evidence.decided, compiled=compiled is not None, why_not=why_not)
        blocks, kept = checkpointed_blocks(model), compiled and compiled.kept
        self._activations = self._begun.attempt(ActivationMeter, model, accelerator, blocks, kept)
        if compiled:
            compiled.leave_out(optimizer)
            self.meter.compilations = lambda: compiled.compilations

    def count_flops(self, model: PreTrainedModel, tokens: int) -> None:
        """Counts the FLOPs of a row of so many tokens."""
        self.record.row_flops = self._flops.attempt(lora.flops_per_row, model, tokens)

    def update(self) -> None:
        """Brings the record to what is known by now."""
        if self.compiled:
            self.record.compile = self.compiled.result()
        if self._activations:
            self.record.activations = {} if self._activations.figure.lost else self._activations.result
        self.record.not_measured = self._lost()

    def _lost(self) -> dict[str, str]:
        """Why a figure is not there, by its name, of those whose meters failed."""
        figures = {"memory": self.memory.figure, "memory_timeline": self.memory.timeline_figure}
        figures["activations"] = self._activations.figure if self._activations else self._begun
        figures |= {"profile": self._profile.figure, "model_flops": self._flops}
        return {name: figure.lost for name, figure in figures.items() if figure.lost}

    def gather_memory(self) -> None:
        """Keeps the memory of all ranks. Call it in every process."""
        found = gather_object([(self.memory.result(), self.memory.figure.lost)])
        self.record.memory = combined([memory for memory, _ in found])
        others = (f"rank {rank}: {why}" for rank, (_, why) in enumerate(found) if why)
        self.memory.figure.lost = self.memory.figure.lost or next(others, None)

    def verify(self, step: Step) -> None:
        """Compares what was seen with what was asked for. Call it after each step, in every process.

        Raises:
            InactiveTechnique: a technique that was asked for did not act.
        """
        if self.evidence:
            self.record.evidence = self.evidence.verify(step)

    def close(self) -> None:
        """Measures no more; nothing of it is left in the model. The record has all that was found."""
        if self._activations:
            self._activations.close()
        self.record.memory = self.record.memory or self.memory.result()
        self.record.profile = self._profile.result()
        self.update()
        if self.compiled:
            self.compiled.close()
