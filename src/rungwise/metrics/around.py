"""Who watches a method of one object stands around it, and several may, who end in any order."""

from collections.abc import Callable
from typing import Any


class Around:
    """Stands in the place of a method of one object until it is removed, whoever stands around it meanwhile."""

    def __init__(self, owner: Any, name: str, call: Callable[..., Any]):
        """Takes the method's place.

        Args:
            owner: the object.
            name: of the method.
            call: is given the method, and what it is called with.
        """
        self._owner, self._name, self._call = owner, name, call
        self.inner, self._own = getattr(owner, name), name in vars(owner)
        setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self.inner, *args, **kwargs)

    def remove(self) -> None:
        """Takes itself out, and leaves those around it."""
        outer = getattr(self._owner, self._name)
        if outer is self and self._own:
            setattr(self._owner, self._name, self.inner)
        elif outer is self:
            delattr(self._owner, self._name)
        while isinstance(outer, Around) and outer is not self:
            if outer.inner is self:
                outer.inner, outer._own = self.inner, outer._own and self._own
                return
            outer = outer.inner
