"""Shows that each technique that was asked for took part in an optimizer step. No label without the thing.

What happens forward and backward shows in the first step. What a step does to the weights shows in the first one that
changes a weight: not while the learning rate warms up from 0, nor in a step that fp16 skips.
"""

from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from ..loop import Step
from ..model.probe import check_causal
from ..settings.fields import Settings
from .apply import device_type
from .compile_record import CompileRecord
from .forward_evidence import ForwardProof
from .update_evidence import UpdateProof


class InactiveTechnique(RuntimeError):
    """A technique that was asked for did not act, so the run would carry a false label."""


class Proof:
    """Takes notes while optimizer steps run; `check` compares them with what was asked for.

    Attributes:
        evidence: what was seen so far, as it stands in `result.json`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        settings: Settings,
        compiled: CompileRecord | None,
    ):
        self.evidence: dict[str, Any] = {}
        self._causal = check_causal(model, settings.block_size, device_type(settings) == "cpu")
        self._forward = ForwardProof(model, accelerator, settings, compiled)
        self._update = UpdateProof(model, optimizer, accelerator, settings)
        self._missing: list[str] = []

    @property
    def decided(self) -> bool:
        """Whether everything has been compared."""
        return self._update.decided or bool(self._missing)

    def restart(self) -> None:
        """Forgets what loading a checkpoint did to the weights and the optimizer."""
        self._update.restart()

    def check(self, step: Step) -> dict[str, Any]:
        """Call after each optimizer step. What is decided stays so, whatever step comes later.

        Returns:
            What was seen so far.

        Raises:
            InactiveTechnique: something that was asked for was not there; the message lists all of it.
        """
        # A window without a token to learn from ran nothing.
        if not self.decided and step.tokens:
            if not self.evidence:
                self._missing += self._forward.missing(step)
                self.evidence = {**self._forward.evidence(), "causal": self._causal}
                self._forward.close()
            self._missing += self._update.missing(step)
            self.evidence |= self._update.evidence()
            if self.decided:
                self._update.close()
        self._update.next()
        if self._missing:
            raise InactiveTechnique("; ".join(self._missing))
        return self.evidence

    @property
    def undecided(self) -> list[str]:
        """Why a run that ends now has not shown what it claims; nothing if it has."""
        if self.decided:
            return []
        return [
            "no step changed a weight, so that nothing shows what the techniques do to training; "
            "raise --learning_rate or --max_steps, or lower --warmup_steps"
        ]
