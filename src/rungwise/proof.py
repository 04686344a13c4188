"""Shows that each technique that was asked for took part in the first optimizer step. No label without the thing."""

from collections import Counter
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from .compiler import CompileRecord
from .models import CausalLMLoss
from .settings import COMPUTE_DTYPES, Settings
from .techniques import checkpointed_blocks, repeated_blocks

# With less of the compiled modules' parameters in compiled code, most of the model fell back to eager.
LEAST_COMPILED = 0.5
DTYPES = {precision: getattr(torch, name) for precision, name in COMPUTE_DTYPES.items()}


class InactiveTechnique(RuntimeError):
    """A technique that was asked for did not act, so the run would carry a false label."""


def has_dropout(model: PreTrainedModel) -> bool:
    """Whether training draws random numbers: then a window split otherwise draws others."""
    modules = any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())
    # In attention many models drop without a module of their own.
    return modules or getattr(model.config, "attention_dropout", 0.0) > 0


class Proof:
    """Takes notes while the first optimizer step runs; `check` compares them with what was asked for.

    In eager mode by hooks on the modules; in compiled code, where hooks would change the graph, from the graphs that
    the compiler was given.
    """

    def __init__(self, model: PreTrainedModel, settings: Settings, compiled: CompileRecord | None):
        self.settings, self.compiled = settings, compiled
        self.dtypes: set[torch.dtype] = set()
        self.recomputed_blocks = 0
        # What the norm of the last block was given: the dtype of the residual stream.
        self.residual_dtype: torch.dtype | None = None
        self._model = model
        self._dropout = has_dropout(model)
        self._loss = model.loss_function
        self._in_forward = False
        self._hooks: list[RemovableHandle] = []
        if compiled is None:
            self._attach(model)

    def _attach(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings() or [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
        self._hooks.append(head.register_forward_hook(self._note_dtype))
        # Experts give back the dtype that they were given; what they compute in shows inside.
        activations = (getattr(m, "act_fn", None) for m in model.modules() if type(m).__name__.endswith("Experts"))
        self._hooks += [a.register_forward_hook(self._note_dtype) for a in activations if isinstance(a, nn.Module)]
        self._hooks.append(model.register_forward_pre_hook(lambda *_: self._enter(True)))
        self._hooks.append(model.register_forward_hook(lambda *_: self._enter(False)))
        norms = [m for block in repeated_blocks(model)[-1:] for m in block.children() if "Norm" in type(m).__name__]
        self._hooks += [norm.register_forward_pre_hook(self._note_residual) for norm in norms[:1]]
        for block in checkpointed_blocks(model):
            # A block's own hooks stay outside its checkpoint; its first part runs again inside.
            self._hooks.append(next(block.children()).register_forward_hook(self._note_recompute))

    def _enter(self, entered: bool) -> None:
        self._in_forward = entered

    def _note_dtype(self, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        self.dtypes.add(output.dtype)

    def _note_residual(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs and isinstance(inputs[0], torch.Tensor):
            self.residual_dtype = inputs[0].dtype

    def _note_recompute(self, *_: Any) -> None:
        # A part of the model that runs after the model's forward has ended is run by the backward pass.
        self.recomputed_blocks += not self._in_forward

    def _parameter_dtype(self) -> str:
        """The dtype of most parameters: a model may keep a few in fp32."""
        counts: Counter[torch.dtype] = Counter()
        for parameter in self._model.parameters():
            counts[parameter.dtype] += parameter.numel()
        return _name(counts.most_common(1)[0][0])

    def _why_another_precision(self) -> list[str]:
        """What is wrong with the dtypes of the products and the parameters, if anything."""
        asked = self.settings
        wanted = DTYPES[asked.precision]
        # A compiled graph has fp32 values beside its products in any case.
        known = {dtype for dtype in DTYPES.values() if not (self.compiled and dtype == torch.float32)}
        computed, parameters = self.dtypes & known, self._parameter_dtype()
        found = []
        if computed != {wanted} & known:
            what = f"mixed_precision {asked.mixed_precision}" if asked.dtype == "float32" else f"dtype {asked.dtype}"
            seen = ", ".join(sorted(map(_name, computed))) or "neither bf16 nor fp16"
            found.append(f"{what} was asked for, the model computed in {seen}")
        if parameters != asked.dtype:
            found.append(f"parameters in {asked.dtype} were asked for, they are in {parameters}")
        return found

    def _engine(self, accelerator: Accelerator) -> str:
        """What keeps the processes' weights alike after a step on rows of their own: FSDP2, DDP or none."""
        parameters = list(self._model.parameters())
        sharded = [isinstance(p, DTensor) and any(isinstance(x, Shard) for x in p.placements) for p in parameters]
        if all(sharded):
            return "FSDP2"
        if any(sharded):
            return f"FSDP2 for {sum(sharded)} of {len(sharded)} parameters"
        if accelerator.num_processes == 1:
            return "none"
        own = torch.stack([parameter.detach().double().sum() for parameter in parameters])
        replicas = accelerator.gather(own.unsqueeze(0))
        return "DDP" if bool((replicas == replicas[0]).all()) else "none"

    def check(self, accelerator: Accelerator) -> dict[str, Any]:
        """Call once, after the first optimizer step. Removes the hooks.

        Returns:
            What was seen, as it stands in `result.json`.

        Raises:
            InactiveTechnique: something that was asked for was not there; the message lists all of it.
        """
        for hook in self._hooks:
            hook.remove()
        if self.compiled:
            self.dtypes = self.compiled.dtypes
            self.recomputed_blocks = self.compiled.recomputed_blocks
        missing = self._why_another_precision()
        scaled = accelerator.scaler is not None and accelerator.scaler.is_enabled()
        if scaled != (self.settings.mixed_precision == "fp16"):
            missing.append("fp16 was asked for without a gradient scaler" if not scaled else "a scaler without fp16")
        if self.settings.gradient_checkpointing != (self.recomputed_blocks > 0):
            missing.append(
                f"gradient checkpointing was asked for: {self.settings.gradient_checkpointing}; "
                f"blocks that were recomputed: {self.recomputed_blocks}"
            )
        if isinstance(self._loss, CausalLMLoss) and not self._loss.divided:
            missing.append("the model ignores num_items_in_batch, so that its loss is not the one of the whole window")
        compiled = self.compiled.compiled_share() if self.compiled else 0.0
        if self.settings.torch_compile and not (self.compiled and self.compiled.graphs):
            missing.append("torch_compile was asked for, and no graph was compiled")
        elif self.compiled and compiled < LEAST_COMPILED:
            reasons = "; ".join(self.compiled.result()["graph_break_reasons"])
            missing.append(
                f"torch_compile was asked for, and {compiled:.0%} of the parameters were used by compiled code: "
                f"most of it fell back to eager ({reasons or 'no graph break is known'})"
            )
        trained = sum(p.numel() for p in self._model.parameters() if p.requires_grad)
        share = trained / sum(p.numel() for p in self._model.parameters())
        if self.settings.use_peft != (share < 1):
            missing.append(f"adapters alone were asked for: {self.settings.use_peft}; trained are {share:.1%} of all")
        if accelerator.num_processes != self.settings.num_processes:
            missing.append(
                f"{self.settings.num_processes} processes were asked for, {accelerator.num_processes} took part"
            )
        engine, wanted = self._engine(accelerator), "none" if accelerator.num_processes == 1 else "DDP"
        if self.settings.fsdp:
            wanted = "FSDP2"
        if engine != wanted:
            missing.append(f"{wanted} was asked for between processes, {engine} is there")
        if accelerator.gradient_accumulation_steps != self.settings.gradient_accumulation_steps:
            missing.append(
                f"{self.settings.gradient_accumulation_steps} accumulation steps were asked for, "
                f"{accelerator.gradient_accumulation_steps} were taken"
            )
        if missing:
            raise InactiveTechnique("; ".join(missing))
        return {
            "compute_dtype": COMPUTE_DTYPES[self.settings.precision],
            "parameter_dtype": self._parameter_dtype(),
            # None where it was not seen: in compiled code, or in blocks that have no norm.
            "residual_dtype": _name(self.residual_dtype) if self.residual_dtype else None,
            "gradient_scaler": scaled,
            "recomputed_blocks": self.recomputed_blocks,
            "compiled_graphs": self.compiled.graphs if self.compiled else 0,
            "compiled_parameters": compiled,
            "processes": accelerator.num_processes,
            "dropout": self._dropout,
            "trained_parameters": share,
            "engine": engine,
            "distributed_type": accelerator.distributed_type.value,
        }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
