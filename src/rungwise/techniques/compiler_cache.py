"""Where the compiler keeps its code during one run: a fresh folder that goes with the run, or one that the user named.

A compile time only means something with an empty cache. Neither the folder nor what is kept in memory may reach the
next run of the same process, which would start warm and not know it.
"""

import os
import tempfile

# Inductor's and Triton's. Both write the variable themselves where it is not set.
INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"


class CompilerCache:
    """The compiler's cache from here until `close`.

    Args:
        folder: the user's; without it the one in the environment variable TORCHINDUCTOR_CACHE_DIR, else a fresh one.

    Attributes:
        folder: where compiled code is kept.
    """

    def __init__(self, folder: str | None):
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir
        from torch._inductor.utils import clear_caches

        self._before = {name: os.environ[name] for name in (INDUCTOR, TRITON) if name in os.environ}
        # Inductor writes its default into the environment, from which this process may have inherited it.
        inherited = self._before.get(INDUCTOR)
        named = folder or (inherited if inherited != default_cache_dir() else None)
        self._fresh = None
        if not named:
            self._fresh = tempfile.TemporaryDirectory(prefix="rungwise-inductor-", ignore_cleanup_errors=True)
        self.folder = named or self._fresh.name
        os.environ[INDUCTOR] = self.folder
        if self.folder != inherited:
            # Triton's goes into the same folder.
            os.environ.pop(TRITON, None)
        clear_caches()
        self._hits_before = hits()

    def label(self) -> str:
        """Fresh; or, of a named folder, whether compiled code was found there: warm or cold."""
        if self._fresh:
            return "fresh"
        return f"{'warm' if hits() > self._hits_before else 'cold'}: {self.folder}"

    def close(self) -> None:
        """Removes a fresh folder and leaves the environment as it was."""
        if self._fresh:
            self._fresh.cleanup()
        for name in (INDUCTOR, TRITON):
            os.environ.pop(name, None)
        os.environ.update(self._before)


def hits() -> int:
    """Graphs that were found compiled, in the life of this process."""
    from torch._dynamo.utils import counters

    return counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
