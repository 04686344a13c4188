"""Claims of the lesson as data, a technique's beside one another. `checks` holds them against rungs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..settings.choices import COMPUTE_DTYPES
from . import measures
from .measures import Finding, LossBound, SavingBound, verdict
from .not_asked import another_model, compiled, dropout, fewer_tokens, fused, mostly_weights
from .rung_result import RungResult

# The step-1 bounds are two units of rounding of the dtype in which the products are computed (2^-8 and 2^-11, half the
# distance from 1 to the next number); the weights are still equal then. Later steps start from weights that AdamW has
# moved apart, for which 5% is the lesson's bound.
STEP_1 = {"bf16": 2 * 2.0**-8, "fp16": 2 * 2.0**-11}
ALL_STEPS = 0.05
# Accumulation changes no product of the forward pass, only the order of sums and how a kernel blocks them: 16 units of
# fp32 for a sum of some thousand losses; in half precision a few values may round the other way, a hundredth of what
# the precision itself does.
STEP_1_ACCUMULATED = {"no": 16 * 2.0**-24, "bf16": STEP_1["bf16"] / 100, "fp16": STEP_1["fp16"] / 100}
ALL_STEPS_ACCUMULATED = 0.01
# Compiled code fuses: it orders fp32 sums otherwise, as accumulation does, and keeps in fp32 what eager mode rounds to
# half precision between two operations, which is as large as what that precision does itself.
STEP_1_COMPILED = {"no": STEP_1_ACCUMULATED["no"], **STEP_1}
ALL_STEPS_COMPILED = 0.01

# A kernel in the place of a chain, or a loss in chunks, orders and rounds otherwise, and no more than that.
STEP_1_FUSED = {**STEP_1_ACCUMULATED, "bf16": STEP_1["bf16"], "fp16": STEP_1["fp16"]}
# TF32 has fp16's mantissa.
STEP_1_TF32 = {"no": STEP_1["fp16"]}

FOLLOWS_FP32 = LossBound(STEP_1, ALL_STEPS)
EQUALS = LossBound(STEP_1_ACCUMULATED, ALL_STEPS_ACCUMULATED)
FOLLOWS_EAGER = LossBound(STEP_1_COMPILED, ALL_STEPS_COMPILED)
FOLLOWS_CHAIN = LossBound(STEP_1_FUSED, ALL_STEPS_ACCUMULATED)
FOLLOWS_IEEE = LossBound(STEP_1_TF32, ALL_STEPS)
# Another optimizer state is another training from the second step on; the first loss is of the same weights.
FOLLOWS_ADAMW = LossBound(STEP_1_ACCUMULATED, ALL_STEPS)
# What a technique saves of any model is forecast for that very one: within a point of what was measured.
PEAK, STATE = SavingBound("peak_allocated", 0.01), SavingBound("optimizer_state", 0.01)


@dataclass(frozen=True)
class PairClaim:
    """A claim about every two rungs that differ in one setting alone.

    `accept` says of the setting's two values whether the claim is about them, `measure` takes both rungs and `bound`.
    Each of `not_asked` gives a reason why the claim is not about a pair with this first rung, or ''. Where `among` is
    given, only ladders with such a rung are told of the claim.
    """

    name: str
    setting: str
    accept: Callable[[Any, Any], bool]
    measure: Callable[[RungResult, RungResult, Any], Finding]
    bound: Any
    not_asked: tuple[Callable[[RungResult], str], ...] = ()
    among: Callable[[RungResult], bool] | None = None


@dataclass(frozen=True)
class RungClaim:
    """A claim about each rung that `among` takes; `measure` takes the rung and `bound`."""

    name: str
    measure: Callable[[RungResult, Any], Finding]
    bound: Any
    among: Callable[[RungResult], bool]


@dataclass(frozen=True)
class Evidence:
    """What a run must have seen of a technique: `holds` takes the settings and what was seen, None if nothing was."""

    name: str
    holds: Callable[[dict[str, Any], Any], bool]
    words: Callable[[Any], str] = lambda seen: ""


def becomes(before: Any, after: Any) -> Callable[[Any, Any], bool]:
    """Takes these two values, in this order."""
    return lambda *values: values == (before, after)


def grows_from_1(before: int, after: int) -> bool:
    """Takes 1 and more than 1."""
    return before == 1 and after > 1


def few_activations(rung: RungResult) -> str:
    """Claims about activations are about a peak that is mostly theirs."""
    others = rung.settings["gradient_accumulation_steps"] > 1 or rung.settings["gradient_checkpointing"]
    return "accumulation or checkpointing has left few activations" if others else mostly_weights(rung)


def several_processes(rung: RungResult) -> bool:
    """Whether the rung ran on more than one process."""
    return rung.settings.get("num_processes", 1) > 1


def compiles(rung: RungResult) -> bool:
    """Whether the rung asked for compiled code."""
    return bool(rung.settings.get("torch_compile"))


def asks(setting: str, value: Any = True) -> Callable[[RungResult], bool]:
    """Takes a rung with this value of a setting."""
    return lambda rung: rung.settings.get(setting) == value


def as_asked(setting: str) -> Callable[[dict[str, Any], Any], bool]:
    """Holds where something was seen if, and only if, a setting asked for it."""
    return lambda asked, seen: bool(seen) == bool(asked.get(setting))


def active(rung: RungResult, parts: tuple[Evidence, ...]) -> Finding:
    """A run that is `ok` has proved its techniques; what it saw is held against what was asked for once more."""
    bound = "as asked for"
    if not rung.ok:
        return measures.not_ended(rung, bound)
    wrong = [
        f"{part.name}: {result['evidence'].get(part.name)}"
        for result in rung.rounds
        for part in parts
        if not part.holds(result["settings"], result["evidence"].get(part.name))
    ]
    seen = rung.rounds[0]["evidence"]
    words = [part.words(seen[part.name]) for part in parts if seen.get(part.name)]
    return Finding(verdict(not wrong), "; ".join(wrong or filter(None, words)), bound)


SAVES, AS_FORECAST, COSTS = measures.saved_memory, measures.saved_as_forecast, measures.added_time
DIVIDES, FOLLOWS, RECOMPILES = measures.divided_memory, measures.followed_losses, measures.recompiles
KEEPS = measures.smaller_state
EIGHT_BIT, ADAFACTOR = becomes("adamw_torch", "adamw_torch_8bit"), becomes("adamw_torch", "adafactor")
FUSED, CHUNKED = "fused_activation", "linear_cross_entropy"
CKPT, ACCUMULATION, COMPILE = "gradient_checkpointing", "gradient_accumulation_steps", "torch_compile"
BF16, FP16, ON, TRAINER = (
    becomes("no", "bf16"),
    becomes("no", "fp16"),
    becomes(False, True),
    becomes("rungwise", "trainer"),
)
BITS, FACTORS = asks("optim", "adamw_torch_8bit"), asks("optim", "adafactor")
BF16_NOT_ASKED = (another_model, few_activations, fewer_tokens, fused)

PAIR_CLAIMS = (
    PairClaim("bf16 saves memory", "mixed_precision", BF16, SAVES, 0.30, BF16_NOT_ASKED),
    PairClaim("bf16 saves what was forecast", "mixed_precision", BF16, AS_FORECAST, PEAK),
    PairClaim("checkpointing saves memory", CKPT, ON, SAVES, 0.30, (another_model, mostly_weights, compiled)),
    PairClaim("checkpointing saves what was forecast", CKPT, ON, AS_FORECAST, PEAK),
    PairClaim("checkpointing costs little time", CKPT, ON, COSTS, 0.75, (compiled,)),
    PairClaim("accumulation equals the big batch", ACCUMULATION, grows_from_1, FOLLOWS, EQUALS, (dropout,)),
    PairClaim("compiled code follows eager", COMPILE, ON, FOLLOWS, FOLLOWS_EAGER, (dropout,)),
    PairClaim(
        "several processes equal one", "num_processes", grows_from_1, FOLLOWS, EQUALS, (dropout,), several_processes
    ),
    # Shards are padded to equal sizes.
    PairClaim("sharding divides what it shards", "fsdp", ON, DIVIDES, 0.05, (), several_processes),
    PairClaim("sharded training equals replicas", "fsdp", ON, FOLLOWS, EQUALS, (dropout,), several_processes),
    PairClaim(
        "fused activations save memory",
        FUSED,
        ON,
        SAVES,
        0.20,
        (another_model, few_activations, compiled),
        asks(FUSED),
    ),
    PairClaim("fused activations save what was forecast", FUSED, ON, AS_FORECAST, PEAK, (), asks(FUSED)),
    PairClaim("fused activations train the same", FUSED, ON, FOLLOWS, FOLLOWS_CHAIN, (dropout,), asks(FUSED)),
    PairClaim("the chunked loss saves what was forecast", CHUNKED, ON, AS_FORECAST, PEAK, (), asks(CHUNKED)),
    PairClaim("the chunked loss trains the same", CHUNKED, ON, FOLLOWS, FOLLOWS_CHAIN, (dropout,), asks(CHUNKED)),
    PairClaim("tf32 follows fp32", "tf32", ON, FOLLOWS, FOLLOWS_IEEE, (dropout,), asks("tf32")),
    # A byte an element and the scales of their blocks, for AdamW's four; small tensors are left as they are.
    PairClaim("8-bit AdamW keeps a quarter of the state", "optim", EIGHT_BIT, KEEPS, 0.30, (another_model,), BITS),
    PairClaim("8-bit AdamW's state is what was forecast", "optim", EIGHT_BIT, AS_FORECAST, STATE, (), BITS),
    PairClaim("8-bit AdamW follows AdamW", "optim", EIGHT_BIT, FOLLOWS, FOLLOWS_ADAMW, (dropout,), BITS),
    # Of a matrix it keeps one number a row and a column, where AdamW keeps two an element.
    PairClaim("adafactor keeps little state", "optim", ADAFACTOR, KEEPS, 0.10, (another_model,), FACTORS),
    PairClaim("adafactor's state is what was forecast", "optim", ADAFACTOR, AS_FORECAST, STATE, (), FACTORS),
    PairClaim("a Trainer trains the same", "engine", TRAINER, FOLLOWS, EQUALS, (dropout,), asks("engine", "trainer")),
    PairClaim("bf16 follows fp32", "mixed_precision", BF16, FOLLOWS, FOLLOWS_FP32),
    PairClaim("fp16 follows fp32", "mixed_precision", FP16, FOLLOWS, FOLLOWS_FP32),
)
EVIDENCE = (
    Evidence("compute_dtype", lambda asked, seen: seen == COMPUTE_DTYPES[asked["precision"]], str),
    # Results that do not tell are older than `--dtype`: their parameters are in fp32.
    Evidence(
        "parameter_dtype",
        lambda asked, seen: seen in (None, asked.get("dtype", "float32")),
        lambda seen: "" if seen == "float32" else "pure",
    ),
    Evidence("gradient_scaler", lambda asked, seen: seen == (asked["precision"] == "fp16"), lambda seen: "scaler"),
    # Results that do not tell of these are older than their flags.
    Evidence("fused_activations", as_asked(FUSED), lambda seen: f"activations fused: {sum(seen.values())}"),
    Evidence("linear_cross_entropy", as_asked(CHUNKED), lambda seen: "no whole logits"),
    Evidence("liger_kernels", as_asked("use_liger_kernel"), lambda seen: f"Liger's modules: {sum(seen.values())}"),
    Evidence("optimizer", lambda asked, seen: seen in (None, asked.get("optim"))),
    Evidence("recomputed_blocks", lambda asked, seen: bool(seen) == asked[CKPT], "blocks recomputed: {}".format),
    Evidence("compiled_graphs", lambda asked, seen: bool(seen) == asked[COMPILE], "graphs compiled: {}".format),
    Evidence("processes", lambda asked, seen: seen == asked["num_processes"]),
)
RUNG_CLAIMS = (
    # Rows are blocks of one size, so nothing may compile twice.
    RungClaim("nothing is compiled twice", RECOMPILES, 0, compiles),
    RungClaim("every technique was active", active, EVIDENCE, lambda rung: True),
)
