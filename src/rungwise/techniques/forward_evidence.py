"""What the first optimizer step shows before it changes a weight: precision, recomputation, accumulation, rows."""

from collections import Counter
from typing import Any

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from .. import float32
from ..loop import Step
from ..model.model import CausalLMLoss
from ..settings.fields import COMPUTE_DTYPES, Settings
from .compile_record import CompileRecord
from .observe import ForwardNotes, checkpointable_blocks

# With less of the compiled modules' parameters in compiled code, most of the model fell back to eager.
LEAST_COMPILED = 0.5
# How far the gradient that a backward pass begins with may be from what it should be: rounding of half precision.
TOLERANCE = 0.02
DTYPES = {precision: getattr(torch, name) for precision, name in COMPUTE_DTYPES.items()}


class ForwardProof:
    """Takes notes of the first step that has tokens to learn from, and compares them with what was asked for."""

    def __init__(
        self, model: PreTrainedModel, accelerator: Accelerator, settings: Settings, compiled: CompileRecord | None
    ):
        self.compiled = compiled
        self._settings, self._model, self._accelerator = settings, model, accelerator
        self._loss = model.loss_function
        self._notes = ForwardNotes(model, accelerator, eager=compiled is None)

    def close(self) -> None:
        """Takes no more notes."""
        self._notes.close()

    def missing(self, step: Step) -> list[str]:
        """What was asked for and is not seen in the notes of this step."""
        missing = [*self._why_another_precision(), *self._why_not_scaled(step), *self._why_not_recomputed()]
        missing += float32.problems(self._settings, self._accelerator.device.type)
        if self._settings.attn_implementation not in (None, self._attention()):
            asked = self._settings.attn_implementation
            missing.append(f"{asked} attention was asked for, the model has {self._attention()}")
        if isinstance(self._loss, CausalLMLoss) and not self._loss.divided:
            missing.append("the model ignores num_items_in_batch, so that its loss is not the one of the whole window")
        return [
            *missing,
            *self._why_not_compiled(),
            *self._why_not_accumulated(),
            *self._why_not_clipped(),
            *self._why_other_rows(),
        ]

    def evidence(self) -> dict[str, Any]:
        """What was seen, as it stands in `result.json`."""
        return {
            "compute_dtype": COMPUTE_DTYPES[self._settings.precision],
            "parameter_dtype": self._parameter_dtype(),
            # None where it was not seen: in compiled code, or in blocks that have no norm.
            "residual_dtype": _name(self._notes.residual_dtype) if self._notes.residual_dtype else None,
            "gradient_scaler": self._scaled(),
            "recomputed_blocks": self._recomputed_blocks(),
            "compiled_graphs": self.compiled.graphs if self.compiled else 0,
            "compiled_parameters": self.compiled.compiled_share() if self.compiled else 0.0,
            "processes": self._accelerator.num_processes,
            "attn_implementation": self._attention(),
            "micro_batches": self._notes.backward_passes,
            "dropout": self._notes.draws,
            "distributed_type": self._accelerator.distributed_type.value,
        }

    def _attention(self) -> str | None:
        return getattr(self._model.config, "_attn_implementation", None)

    def _parameter_dtype(self) -> str:
        """The dtype of most parameters: a model may keep a few in fp32."""
        counts: Counter[torch.dtype] = Counter()
        for parameter in self._model.parameters():
            counts[parameter.dtype] += parameter.numel()
        return _name(counts.most_common(1)[0][0])

    def _why_another_precision(self) -> list[str]:
        """What is wrong with the dtypes of the products and the parameters, if anything."""
        asked, seen = self._settings, self._notes.dtypes
        wanted = DTYPES[asked.precision]
        computed = self.compiled.dtypes if self.compiled else set().union(*seen.values())
        parameters = self._parameter_dtype()
        found = []
        if computed != {wanted}:
            what = f"mixed_precision {asked.mixed_precision}" if asked.dtype == "float32" else f"dtype {asked.dtype}"
            words = ", ".join(sorted(map(_name, computed))) or "nothing that is known"
            others = [name for name, dtypes in seen.items() if dtypes != {wanted}]
            where = f" ({len(others)} of {len(seen)} products in another, as {others[0]})" if others else ""
            found.append(f"{what} was asked for, the model computed in {words}{where}")
        if parameters != asked.dtype:
            found.append(f"parameters in {asked.dtype} were asked for, they are in {parameters}")
        return found

    def _scaled(self) -> bool:
        scaler = self._accelerator.scaler
        return scaler is not None and scaler.is_enabled()

    def _why_not_scaled(self, step: Step) -> list[str]:
        """What is wrong with the scale of what backward passes began with."""
        asked, scaled = self._settings, self._scaled()
        if scaled != (asked.mixed_precision == "fp16"):
            return ["fp16 was asked for without a gradient scaler" if not scaled else "a scaler without fp16"]
        # A backward pass begins with the scaler's scale / the micro-batches of the window.
        wanted = (step.loss_scale or 1.0) / asked.gradient_accumulation_steps
        began = [float(gradient) for gradient in self._notes.loss_gradients]
        others = [gradient for gradient in began if abs(gradient / wanted - 1) > TOLERANCE]
        if not others:
            return []
        return [f"a backward pass began with a gradient of {others[0]:g}, loss scale and accumulation give {wanted:g}"]

    def _recomputed_blocks(self) -> int:
        if self.compiled:
            return self.compiled.recomputed_blocks
        return sum(block.recomputed for block in self._notes.blocks)

    def _why_not_recomputed(self) -> list[str]:
        """Which blocks were recomputed that should not have been, or were not that should."""
        asked, blocks, recomputed = self._settings, self._notes.blocks, self._recomputed_blocks()
        every = (asked.gradient_checkpointing_kwargs or {}).get("every_n_layers", 1)
        if asked.gradient_checkpointing != (recomputed > 0):
            return [
                f"gradient checkpointing was asked for: {asked.gradient_checkpointing}; "
                f"blocks that were recomputed: {recomputed}"
            ]
        if not asked.gradient_checkpointing:
            return []
        if self.compiled:
            # Of a block that is compiled once for all, one stands for all.
            owed = len(checkpointable_blocks(self._model)[::every]) if asked.torch_compile_scope == "model" else 1
            wrong = [f"{recomputed} of {owed}"] if recomputed < owed else []
        else:
            due = [block.owed if index % every == 0 else 0 for index, block in enumerate(blocks)]
            wrong = [
                f"block {index} {block.recomputed} times in {wanted} passes"
                for index, (block, wanted) in enumerate(zip(blocks, due, strict=True))
                if block.recomputed < wanted or (wanted == 0 and block.recomputed)
            ]
        if wrong:
            which = "each block" if every == 1 else f"one block in {every}"
            return [f"gradient checkpointing of {which} was asked for; recomputed were: {', '.join(wrong)}"]
        return []

    def _why_not_compiled(self) -> list[str]:
        if self._settings.torch_compile and not (self.compiled and self.compiled.graphs):
            return ["torch_compile was asked for, and no graph was compiled"]
        share = self.compiled.compiled_share() if self.compiled else 1.0
        if share >= LEAST_COMPILED:
            return []
        reasons = "; ".join(self.compiled.result()["graph_break_reasons"])
        return [
            f"torch_compile was asked for, and {share:.0%} of the parameters were used by compiled code: "
            f"most of it fell back to eager ({reasons or 'no graph break is known'})"
        ]

    def _why_not_accumulated(self) -> list[str]:
        """Whether the processes and micro-batches were as many as asked for, and exchanged gradients when asked to."""
        asked, notes, processes = self._settings, self._notes, self._accelerator.num_processes
        steps = asked.gradient_accumulation_steps
        found = []
        if processes != asked.num_processes:
            found.append(f"{asked.num_processes} processes were asked for, {processes} took part")
        if notes.backward_passes != steps:
            found.append(f"{steps} accumulation steps were asked for, {notes.backward_passes} were taken")
        kept = 0 if asked.sync_each_batch else steps - 1
        if processes > 1 and notes.unsynchronised != kept:
            found.append(
                f"gradients were to stay in their process in {kept} micro-batches, they did in {notes.unsynchronised}"
            )
        return found

    def _why_not_clipped(self) -> list[str]:
        asked, seen = self._settings.max_grad_norm, self._notes.clipped_at
        if seen == {asked or float("inf")}:
            return []
        words = ", ".join("inf, which is not at all" if limit == float("inf") else f"{limit:g}" for limit in seen)
        return [
            f"max_grad_norm {asked:g} was asked for, gradients were clipped at {words or 'no norm'}; "
            "give train() max_grad_norm=settings.max_grad_norm"
        ]

    def _why_other_rows(self) -> list[str]:
        """What is wrong with the rows, where they could be seen: not in compiled code."""
        asked, rows = self._settings, self._notes.rows
        wanted = (asked.micro_batch_size, asked.block_size)
        others = [tuple(shape) for shape, _ in rows if tuple(shape) != wanted]
        if others:
            return [
                f"micro-batches of {wanted[0]} rows of {wanted[1]} tokens were asked for, the model was given "
                f"{' x '.join(map(str, others[0]))}; build them by build_dataloader"
            ]
        if rows and self._accelerator.num_processes > 1:
            own = torch.stack([mark for _, mark in rows]).unsqueeze(0)
            seen = self._accelerator.gather(own)
            if (seen == seen[0]).all():
                return ["every process was given the same rows; give the loader to accelerator.prepare"]
        return []


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
