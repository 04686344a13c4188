"""The largest resident size of this process, by the system."""

import re
import sys
from pathlib import Path


def peak_rss_bytes() -> int | None:
    """The process's largest resident size in bytes, or None where the system does not tell.

    On Linux by /proc: `getrusage` also counts what the process that started this one held at that moment.
    """
    status = Path("/proc/self/status")
    if status.exists() and (found := re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(encoding="utf-8"), re.M)):
        return int(found[1]) * 1024
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
