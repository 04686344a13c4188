"""A figure of a run, and what becomes of it where its meter fails: it is lost, with the reason, and not the run.

Meters lean on what PyTorch keeps private and may move, and on a profiler that another tool may hold. What a meter does
goes through its `Figure`. Evidence that a technique acts is no figure: where that cannot be gathered, the run fails.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ParamSpec, TypeVar

P, T = ParamSpec("P"), TypeVar("T")


class Figure:
    """What one meter measures.

    Attributes:
        lost: why there is no such figure; None while nothing has failed. What fails once is not tried again.
    """

    def __init__(self) -> None:
        self.lost: str | None = None

    def attempt(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What a part of the meter returns; None once the figure is lost."""
        return None if self.lost else self._try(part, *args, **kwargs)

    def hook(self, part: Callable[P, T]) -> Callable[P, T | None]:
        """A part of the meter as a function that others call."""

        def attempted(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return self.attempt(part, *args, **kwargs)

        return attempted

    @contextmanager
    def around(self, meter: Callable[[], AbstractContextManager[T]]) -> Iterator[T | None]:
        """A context of the meter around what is not its own: that raises as it would without it.

        Yields what the meter's context does, or None once the figure is lost. One that was entered is left, also where
        the figure was lost inside.
        """
        entered = self.attempt(_enter, meter)
        context, value = entered or (None, None)
        try:
            yield value
        except BaseException as error:
            if context:
                lost = self.lost
                self._try(context.__exit__, type(error), error, error.__traceback__)
                # What was raised inside comes through the meter, whose fault it is not.
                self.lost = lost
            raise
        if context:
            self._try(context.__exit__, None, None, None)

    def _try(self, part: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return part(*args, **kwargs)
        except Exception as error:
            # Private names and other tools' profilers fail in ways of their own.
            words = (str(error).strip() or "without a word").splitlines()[0]
            self.lost = self.lost or f"its meter failed ({type(error).__name__}: {words})"
            return None


def _enter(meter: Callable[[], AbstractContextManager[T]]) -> tuple[AbstractContextManager[T], T]:
    context = meter()
    return context, context.__enter__()
