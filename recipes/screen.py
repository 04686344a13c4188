"""A picture of what a program shows on the terminal.

    python recipes/screen.py --output screen.png wandb leet runs/default/wandb

Needs pyte (`pip install pyte`) and a system with pseudo-terminals.
"""

import argparse
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from pathlib import Path
from typing import Any

from rungwise.terminal import print_anything

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.patches import Rectangle

BACKGROUND, FOREGROUND = "#101418", "#d8dee4"
# The eight names that pyte gives the terminal's own colours; it knows others by six digits.
NAMED = {
    "black": "#101418",
    "red": "#e06c75",
    "green": "#98c379",
    "brown": "#e5c07b",
    "blue": "#61afef",
    "magenta": "#c678dd",
    "cyan": "#56b6c2",
    "white": "#d8dee4",
}
# The second has the dots that curves on a terminal are made of.
FONTS = ["DejaVu Sans Mono", "DejaVu Sans"]
POINTS = 9


def main() -> None:
    """Runs the program for some seconds and draws its screen."""
    print_anything()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="PNG")
    parser.add_argument("--columns", type=int, default=130, metavar="N", help="of the terminal [%(default)s]")
    parser.add_argument("--lines", type=int, default=38, metavar="N", help="of the terminal [%(default)s]")
    parser.add_argument("--seconds", type=float, default=8, metavar="S", help="until it is drawn [%(default)s]")
    parser.add_argument(
        "--keys", default="", help="that are pressed one by one from half way on, with escapes as \\x1b"
    )
    parser.add_argument("--cut", type=int, default=0, metavar="N", help="of the last lines that are not drawn")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    keys = asked.keys.encode().decode("unicode_escape")
    screen = shown(asked.command, asked.columns, asked.lines, asked.seconds, keys)
    draw(screen, asked.lines - asked.cut, asked.output)


def shown(command: list[str], columns: int, lines: int, seconds: float, keys: str) -> Any:
    """What the program shows on a terminal of this size after so many seconds, as pyte has it; it is ended then."""
    import pyte  # here, since nothing else of the house needs it

    screen = pyte.Screen(columns, lines)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if not child:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    left = re.findall("\x1b\\[[0-9]*[A-Za-z~]|.", keys, re.DOTALL)
    began, pause = time.monotonic(), seconds / 2 / (len(left) + 1)
    due = seconds / 2
    while (passed := time.monotonic() - began) < seconds:
        if left and passed > due:
            os.write(terminal, left.pop(0).encode())
            due += pause
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                stream.feed(os.read(terminal, 65536))
            except OSError:  # it has ended
                break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return screen


def draw(screen: Any, lines: int, path: Path) -> None:
    """Draws each cell of the first lines in its colours."""
    width, height = POINTS * 0.602 / 72, POINTS * 1.25 / 72
    figure = plt.figure(figsize=(screen.columns * width, lines * height), facecolor=BACKGROUND)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, screen.columns), ylim=(lines, 0))
    axes.set_axis_off()
    for line in range(lines):
        for column in range(screen.columns):
            cell = screen.buffer[line][column]
            front, back = colour(cell.fg, FOREGROUND), colour(cell.bg, BACKGROUND)
            front, back = (back, front) if cell.reverse else (front, back)
            if back != BACKGROUND:
                axes.add_patch(Rectangle((column, line), 1, 1, facecolor=back, linewidth=0))
            if cell.data.strip():
                weight = "bold" if cell.bold else "normal"
                words = {"family": FONTS, "size": POINTS, "color": front, "weight": weight}
                axes.text(column + 0.5, line + 0.5, cell.data, ha="center", va="center", **words)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def colour(name: str, default: str) -> str:
    """A colour of pyte's as matplotlib takes it."""
    if name == "default":
        return default
    name = name.removeprefix("bright")
    return NAMED.get(name, f"#{name}")


if __name__ == "__main__":
    main()
