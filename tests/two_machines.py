"""Two machines on one: each has its own network, host name and processes; a veth pair joins them, files are shared.

What runs in one cannot reach the other's loopback, nor the internet, so ranks that connect used the address they were
given. Needs Linux, iproute2 and util-linux; root, or user namespaces.
"""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness import HANGS

INTERFACE = "eth0"  # in both
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # seen by nobody else, so two tests at once do not collide
NAMES = ("node0", "node1")


@dataclass(frozen=True)
class Machine:
    """One of the two."""

    name: str
    address: str
    prefix: list[str]  # goes before a command to have it run there


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANGS, check=False)
    if done.returncode:
        raise OSError(f"`{' '.join(words)}`: {done.stderr.strip() or done.returncode}")


@contextmanager
def _machine(name: str, hosts: str, within: list[str], user: list[str]) -> Iterator[int]:
    """Yields the id of a process in new namespaces. All that runs in them ends with the context, or with Python."""
    # `cat` is their process 1: it ends when its input does, even if this process is killed, and the kernel then ends
    # the rest, among them torchrun's workers, which are in sessions of their own.
    script = 'hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo ready && exec cat'
    namespaces = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    holder = subprocess.Popen(
        [*within, "unshare", *user, *namespaces, "sh", "-c", script, "sh", name, hosts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        if holder.stdout.readline() != "ready\n":
            raise OSError(holder.communicate(timeout=HANGS)[1].strip() or "unshare failed")
        yield holder.pid
    finally:
        with holder:  # closes its pipes and waits
            holder.stdin.close()


@contextmanager
def two_machines(resolve: bool = True) -> Iterator[tuple[Machine, Machine]]:
    """Makes the two, and ends whatever still runs in them afterwards.

    Args:
        resolve: a host's own name is its address in /etc/hosts, as on most clusters; otherwise 127.0.1.1, as Debian's
            installer leaves it, and gloo must be told GLOO_SOCKET_IFNAME.

    Raises:
        OSError: this machine does not allow it; `why_not` says so beforehand.
    """
    root = os.geteuid() == 0
    enter_user = lambda pid: [] if root else ["--user", "--preserve-credentials", f"--target={pid}"]  # noqa: E731
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pids: list[int] = []
        for name in NAMES:
            hosts = folder / name
            lines = [f"{a} {n}" for a, n in zip(ADDRESSES, NAMES, strict=True) if resolve or n != name]
            own = [] if resolve else [f"127.0.1.1 {name}"]
            hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, *own]) + "\n", encoding="utf-8")
            # Only who is root in both networks may join them: without root, the second is made by the first's.
            within = ["nsenter", *enter_user(pids[0])] if pids and not root else []
            user = [] if root or pids else ["--user", "--map-root-user"]
            pids.append(stack.enter_context(_machine(name, str(hosts), within, user)))
        into = [
            ["nsenter", *enter_user(pids[0]), f"--net=/proc/{pid}/ns/net", f"--uts=/proc/{pid}/ns/uts"] for pid in pids
        ]
        veth = ["type", "veth", "peer", "name", INTERFACE, "netns", str(pids[1])]
        _run(*into[0], "ip", "link", "add", "name", INTERFACE, *veth)
        for words, address in zip(into, ADDRESSES, strict=True):
            _run(*words, "ip", "address", "add", f"{address}/24", "dev", INTERFACE)
            _run(*words, "ip", "link", "set", INTERFACE, "up")
        rest = [[f"--mount=/proc/{pid}/ns/mnt", f"--pid=/proc/{pid}/ns/pid_for_children", "--wd=."] for pid in pids]
        yield tuple(
            Machine(name, address, [*words, *more])
            for name, address, words, more in zip(NAMES, ADDRESSES, into, rest, strict=True)
        )


@functools.cache
def why_not() -> str | None:
    """The reason why there cannot be two machines here, found by making them; None where there can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, this is {sys.platform}"
    for program, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            return f"no `{program}` on PATH; install {package}"
    try:
        with two_machines() as pair:
            for machine in pair:
                _run(*machine.prefix, "true")
    except (OSError, subprocess.SubprocessError) as error:
        return f"network namespaces are not allowed here: {error}"
    return None
