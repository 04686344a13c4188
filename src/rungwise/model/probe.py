"""Asks a model, by short rows on the CPU, whether it is causal and how long a row it can read."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from ..errors import SettingsError
from .shrink import shrink

# A row this short: the fewer tokens attention is spread over, the more each of them weighs.
ROW = 8
# How far an earlier logit may move, relative to the largest: 128 units of rounding of fp32. Experts that the last
# token went to or left are blocked otherwise and round otherwise: 3e-7 in small mixtures of experts; in other causal
# models nothing moves. In random BERTs, where attention weighs least, a row of 8 moves by 2e-4 or more.
ROUNDING = 128 * 2.0**-23
# By a config's field, the value that makes its model causal.
SWITCHES = {"is_decoder": True, "causal": True, "attn_type": "uni"}
# Rows longer than this are held against the config's own number alone: attention grows with their square.
LONGEST_TRIED = 4096


def base_model(model: nn.Module) -> PreTrainedModel:
    """The model inside of its adapters, if it has some."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def vocab_size(config: PreTrainedConfig) -> int | None:
    """How many tokens the model knows; None if its config does not say. A nested config says it in its text part."""
    return getattr(text_config(config), "vocab_size", None)


def check_causal(model: PreTrainedModel, block_size: int, on_cpu: bool) -> bool | None:
    """Whether a change of a row's last token leaves all earlier logits as they were.

    The model is asked on one row, where it is, in fp32, without gradients and without drawing from the caller's random
    numbers; the row has 8 tokens, or `block_size` if it cannot read so few. In its place a small model from the same
    config is asked if its parameters have less than fp32, whose rounding would hide a small leak, or if it cannot run.

    Returns:
        True, or None if neither runs on the CPU and the run, not being `on_cpu`, does not need that.

    Raises:
        SettingsError: the model is not causal: it sees the token that it is to predict. Or it cannot read a row.
    """
    model = base_model(model)  # adapters leave causality as it is
    full = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    reasons = []
    for asked in (lambda: model, lambda: _small_model(model))[not full :]:
        for length in (min(ROW, block_size), block_size):
            try:
                moved = _moved(asked(), length)
            except Exception as error:
                # Models and their configs are other people's code, which raises anything.
                reasons.append((str(error).strip() or type(error).__name__).splitlines()[0])
                continue
            if moved > ROUNDING:
                raise SettingsError([f"{type(model).__name__} is not causal: {_why(model.config)}"])
            return True
    if on_cpu:
        raise SettingsError([f"{type(model).__name__} cannot be trained on rows of tokens alone: {reasons[0]}"])
    return None


def _small_model(model: PreTrainedModel) -> PreTrainedModel:
    """A small fp32 model of the same class."""
    with quiet(), torch.random.fork_rng(devices=[]):
        return type(model)._from_config(shrink(copy.deepcopy(model.config)), dtype=torch.float32)


def positions(config: PreTrainedConfig) -> int | None:
    """The longest row that the config promises, by whichever name it keeps it; None if it keeps none."""
    named = getattr(text_config(config), "max_position_embeddings", None)
    return named if isinstance(named, int) and named > 0 else None


def longest_row(config: PreTrainedConfig, block_size: int) -> int:
    """How many of `block_size` tokens a model from this config can read: all of them, or its number of positions.

    What the config promises is one bound; the other is found by reading rows with a small model from it, which has as
    many positions. So learnt positions are found under any name and with any offset. A model that cannot be made
    small, or a row beyond 4,096 tokens, leaves the first bound alone.
    """
    length = min(block_size, positions(config) or block_size)
    if length > LONGEST_TRIED:
        return length
    with quiet(), torch.random.fork_rng(devices=[]):
        try:
            model = AutoModelForCausalLM.from_config(
                shrink(config), dtype=torch.float32, trust_remote_code=False
            ).eval()
        except Exception:
            # As in `check_causal`.
            return length
    if _reads(model, length) or not _reads(model, ROW):
        return length
    reads, fails = ROW, length
    while fails - reads > 1:
        middle = (reads + fails) // 2
        reads, fails = (middle, fails) if _reads(model, middle) else (reads, middle)
    return reads


def text_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """The part of a nested config that is about text, or `config` itself."""
    try:
        return config.get_text_config()
    except ValueError:
        # It has several texts, of which none is the model's own.
        return config


def _why(config: PreTrainedConfig) -> str:
    """What is wrong with a model that is not causal, and the way out if its config has one."""
    words = "a token's logits change with the tokens after it, so that it would learn to copy what it is to predict"
    for name, value in SWITCHES.items():
        if getattr(config, name, value) != value:
            return f"{words}; set {name}={str(value).lower()} in config.json or --config_overrides"
    return f"{words}; use a causal language model"


def short_row(model: PreTrainedModel, length: int = ROW) -> torch.Tensor:
    """Eight tokens over and over, from the middle of the vocabulary: special ones, as padding, stand at its ends."""
    known = vocab_size(model.config) or model.get_input_embeddings().weight.shape[0]
    device = next(model.parameters()).device
    return ((torch.arange(length, device=device) % ROW + known // 2) % known).unsqueeze(0)


def _reads(model: PreTrainedModel, length: int) -> bool:
    try:
        with torch.no_grad():
            model(input_ids=short_row(model, length))
    except Exception:
        # As in `check_causal`.
        return False
    return True


def _moved(model: PreTrainedModel, length: int) -> float:
    """The largest move of an earlier logit, relative to the largest logit, when the last token is another one."""
    row = short_row(model, length)
    other = row.clone()
    other[0, -1] = row[0, -2]
    with evaluating(model):
        before, after = (_earlier_logits(model, tokens) for tokens in (row, other))
    return float((after - before).abs().max() / before.abs().max())


def _earlier_logits(model: PreTrainedModel, row: torch.Tensor) -> torch.Tensor:
    # What a model draws (hashes, for one) it draws alike for both rows.
    torch.default_generator.manual_seed(0)
    return model(input_ids=row, labels=row).logits[0, :-1].float()


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps back what Transformers says of a model: the one that is trained says it, too."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """The model in evaluation mode, eager and without gradients; then as it was, random numbers included."""
    training = {module: module.training for module in model.modules()}
    eager = torch.compiler.set_stance("force_eager") if _compiled(model) else nullcontext()
    try:
        with eager, torch.no_grad(), torch.random.fork_rng(devices=[]):
            model.eval()
            yield
    finally:
        for module, was in training.items():
            module.training = was


def _compiled(model: PreTrainedModel) -> bool:
    return any(module._compiled_call_impl is not None for module in model.modules())
