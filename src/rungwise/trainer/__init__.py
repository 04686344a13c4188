"""The same figures and the same evidence of a run that a `transformers.Trainer` trains."""

from .callback import MeasureCallback

__all__ = ["MeasureCallback"]
