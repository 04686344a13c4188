"""Many rungs, each in a fresh process, and one report that compares them.

    python recipes/ladder.py
    python recipes/ladder.py --ladder recipes/ladders/accumulation.yaml
    python recipes/ladder.py --repeats 3 --global_batch_size 32
    python recipes/ladder.py --report_only runs/default

Flags of ablate.py go to every rung on which they act. The same command again continues where it was stopped.
"""

import argparse
import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rungwise.errors import SettingsError
from rungwise.ladder.console import Console
from rungwise.ladder.ladder import Ladder, folder_errors, group_of
from rungwise.ladder.ladder_file import read_rungs
from rungwise.report.report import Report, markdown, read_report, terminal_table, write_report
from rungwise.terminal import print_anything

# What a disk says that is full, or that one may not, or no longer, write to.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The ladder's own flags, and those for every rung."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s [flags] [flags of ablate.py]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    file = {"default": "recipes/ladders/default.yaml", "type": given, "metavar": "FILE"}
    parser.add_argument("--ladder", help="rungs [%(default)s]", **file)
    parser.add_argument(
        "--output_dir", type=given, metavar="DIR", help="where everything goes [runs/<name of the ladder>]"
    )
    parser.add_argument("--repeats", type=positive, default=1, metavar="N", help="rounds of turns of the rungs [1]")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier call left in the folder")
    parser.add_argument("--report_only", type=given, metavar="DIR", help="only write the report of a folder again")
    return parser.parse_known_args()


def given(text: str) -> str:
    """The value of a flag, which is not to be left empty."""
    if not text:
        raise argparse.ArgumentTypeError("needs a value")
    return text


def positive(text: str) -> int:
    """A number of times."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number of at least 1")
    return int(text)


def main() -> int:
    """Runs a ladder, or reports of one; returns the exit code."""
    print_anything()
    options, extra = arguments()
    try:
        return report_only(options, extra) if options.report_only else run(options, extra)
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        why = (
            f"{folder_of(options)}: the ladder cannot go on ({error}); the same command continues once that is mended"
        )
        print(why, file=sys.stderr)
        return 1


def folder_of(options: argparse.Namespace) -> Path:
    """The ladder's folder."""
    return Path(options.report_only or options.output_dir or Path("runs") / Path(options.ladder).stem)


def report_only(options: argparse.Namespace, extra: list[str]) -> int:
    """Shows the table of a folder, then writes its report: the pictures take longest."""
    if extra or options.fresh or options.output_dir:
        raise SettingsError(["--report_only runs nothing and takes no other flag"])
    folder = folder_of(options)
    with undamaged(folder):
        report = read_report(folder)
        markdown(report, folder.name)  # nothing is shown of what cannot be written
        print(terminal_table(report), flush=True)
        try:
            write_report(report, folder)
        except OSError as error:
            why = f"its report cannot be written ({error}); copy the folder elsewhere"
            raise SettingsError([f"{folder}: {why}"]) from error
    return int(report.failed)


@contextmanager
def undamaged(folder: Path) -> Iterator[None]:
    """Around a report of results, which are files that anyone may have changed, in more ways than are looked for.

    Raises:
        SettingsError: one of them is damaged.
    """
    try:
        yield
    except SettingsError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise SettingsError([f"{folder}: a result in it is damaged ({why}); run the ladder again"]) from error


def reported(folder: Path, pictures: bool = True) -> Report:
    """Writes the report of what is in a folder by now."""
    with undamaged(folder):
        report = read_report(folder)
        write_report(report, folder, pictures)
    return report


def run(options: argparse.Namespace, extra: list[str]) -> int:
    """Runs a ladder; returns 0 only if rungs were compared, and no rung and no check failed."""
    name, folder = Path(options.ladder).stem, folder_of(options)
    group = group_of(name, folder, options.fresh)
    try:
        rungs = read_rungs(options.ladder, extra, group)
    except SettingsError as error:
        raise SettingsError([*folder_errors(folder), *error.errors]) from error
    console = Console()
    with Ladder(name, rungs, folder, group, options.fresh) as ladder:
        for _, result in ladder.run(options.repeats):
            reported(folder, pictures=False)  # all of them take as long as a short rung
            console.show(result, ladder.took())
        if ladder.exit_code and not ladder.has_results():
            print("\nstopped before the first rung had a result")
            return ladder.exit_code
        report = reported(folder)
        console.summary(report, folder)
    if ladder.exit_code:
        print("stopped; the same command continues")
        return ladder.exit_code
    for line in ladder.track(report):
        print(f"W&B: {line}")
    return int(report.failed)


if __name__ == "__main__":
    raise SystemExit(main())
