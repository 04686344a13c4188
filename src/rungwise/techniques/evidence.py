"""Shows that each technique that was asked for took part in an optimizer step. No label without the thing.

What happens forward and backward shows in the first step. What a step does to the weights shows in the first one that
changes a weight: not while the learning rate warms up from 0, nor in a step that fp16 skips.
"""

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from ..device import device_type
from ..loop import Step
from ..model.model import CausalLMLoss
from ..model.probe import check_causal
from ..settings.fields import OWN, Settings
from . import CHANGED_WEIGHTS, EACH_STEP, FIRST_STEP, optimizer
from .compile_notes import CompileNotes
from .observe import ForwardNotes
from .seen import InactiveTechnique, Seen
from .update_notes import UpdateNotes


class Evidence:
    """Takes notes while optimizer steps run; `verify` compares them with what was asked for.

    It is made of the model that the techniques were applied to, before `prepare` has sharded it.

    Attributes:
        found: what was seen so far, as it stands in `result.json`.
        decided: whether everything has been compared.
        causal: as `check_causal` has it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        optimizer: torch.optim.Optimizer,
        accelerator: Accelerator,
        settings: Settings,
        compiled: CompileNotes | None,
        begins: tuple[Any, str] | None = None,
    ):
        """Begins to take notes.

        Args:
            model: not wrapped.
            optimizer: not wrapped.
            accelerator: that trains them.
            settings: what was asked for.
            compiled: of a model that is compiled.
            begins: of another loop than ours, as in `ForwardNotes`. Its model is not asked whether it is causal.
        """
        self.found: dict[str, Any] = {}
        self.decided = False
        on_cpu = device_type(settings) == "cpu"
        self.causal = None if begins else check_causal(model, settings.block_size, on_cpu)
        self._loss = model.loss_function
        self._missing: list[str] = []
        forward = ForwardNotes(model, accelerator, compiled is None, begins)
        updates = UpdateNotes(model, optimizer)
        self._seen = Seen(settings, accelerator, model, optimizer, compiled, forward, updates)

    def restart(self) -> None:
        """Forgets what loading a checkpoint did to the weights and, of a sharded optimizer, by stepping it."""
        self._seen.updates.forget()

    def verify(self, step: Step) -> dict[str, Any]:
        """Call after each optimizer step. What is decided stays so, whatever step comes later.

        Returns:
            What was seen so far.

        Raises:
            InactiveTechnique: something that was asked for was not there; the message lists all of it.
        """
        seen = self._seen
        # A window without a token to learn from ran nothing.
        if not self.decided and step.tokens:
            seen.step = step
            if not self.found:
                self._first_step()
            self._update()
            self._missing = self._of_all(self._missing)
            self.decided |= bool(self._missing)
            if self.decided:
                seen.updates.close()
        seen.updates.begin()
        if self._missing:
            raise InactiveTechnique("; ".join(self._missing))
        return self.found

    @property
    def undecided(self) -> list[str]:
        """Why a run that ends now has not shown what it claims; nothing if it has."""
        if self.decided:
            return []
        return [
            "no step changed a weight, so that nothing shows what the techniques do to training; "
            "raise --learning_rate or --max_steps, or lower --warmup_steps"
        ]

    def _of_all(self, missing: list[str]) -> list[str]:
        """What is missing in any process: all of them must go the same way, for they ask one another on it."""
        if self._seen.accelerator.num_processes == 1:
            return missing
        return list(dict.fromkeys(line for lines in gather_object([missing]) for line in lines))

    def _add(self, judged: tuple[dict[str, Any], list[str]]) -> None:
        found, missing = judged
        self.found |= found
        self._missing += missing

    def _first_step(self) -> None:
        """What the notes of the first step with tokens to learn from show."""
        for technique in FIRST_STEP:
            self._add(technique.evidence(self._seen))
        self._add(_model_and_rows(self._seen))
        self.found["causal"] = self.causal
        if mismatched := getattr(self._seen.model, "mismatched_weights", None):
            self.found["mismatched_weights"] = mismatched
        if isinstance(self._loss, CausalLMLoss) and not self._loss.divided:
            words = "the model ignores num_items_in_batch, so that its loss is not the one of the whole window"
            self._missing.append(words)
        self._seen.forward.close()

    def _update(self) -> None:
        """What the step did to the weights, if it changed one."""
        seen = self._seen
        self.found |= {"trained_parameters": seen.trained_share, "optimizer": optimizer.name_of(seen.optimizer)}
        wrong = self._of_all([error for technique in EACH_STEP for error in technique.step_evidence(seen)])
        self._missing += wrong
        if wrong or seen.step.skipped:
            return
        seen.weights = seen.updates.weights()
        seen.changed = seen.accelerator.reduce(seen.updates.changed(seen.weights).long(), "sum") > 0
        if not seen.changed.any():
            return
        self.decided = True
        sizes = torch.tensor([p.numel() for p in seen.model.parameters()], device=seen.changed.device)
        self.found["changed_parameters"] = int(sizes[seen.changed].sum()) / int(sizes.sum())
        for technique in CHANGED_WEIGHTS:
            self._add(technique.update_evidence(seen))


def _model_and_rows(seen: Seen) -> tuple[dict[str, Any], list[str]]:
    """What is no technique: the model's attention and randomness, and the rows, where they could be seen."""
    asked, rows = seen.settings, seen.forward.rows
    attention = getattr(seen.model.config, "_attn_implementation", None)
    found, missing = {"attn_implementation": attention, "dropout": seen.forward.draws}, []
    if asked.attn_implementation not in (None, attention):
        missing.append(f"{asked.attn_implementation} attention was asked for, the model has {attention}")
    wanted = (asked.micro_batch_size, asked.block_size)
    # Rows that are a script's own may be of any length.
    given = asked.origins.get("block_size") != OWN
    others = [tuple(shape) for shape, _ in rows if given and tuple(shape) != wanted]
    if others:
        missing.append(
            f"micro-batches of {wanted[0]} rows of {wanted[1]} tokens were asked for, the model was given "
            f"{' x '.join(map(str, others[0]))}; build them by build_dataloader"
        )
    elif rows and seen.accelerator.num_processes > 1:
        # Not in compiled code, where they are not seen.
        marks = seen.accelerator.gather(torch.stack([mark for _, mark in rows]).unsqueeze(0))
        if (marks == marks[0]).all():
            missing.append("every process was given the same rows; give the loader to accelerator.prepare")
    return found, missing
