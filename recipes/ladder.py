"""Many rungs, each in a fresh process, and one report that compares them.

    python recipes/ladder.py
    python recipes/ladder.py --ladder recipes/ladders/accumulation.yaml
    python recipes/ladder.py --repeats 3 --global_batch_size 32
    python recipes/ladder.py --report_only runs/default

Flags of ablate.py go to every rung. The same command again continues where it was stopped.
"""

import argparse
import sys
from pathlib import Path

from rungwise.errors import SettingsError
from rungwise.ladder.climb import Climb
from rungwise.ladder.ladder import Ladder, group_of
from rungwise.ladder.ladder_file import read_rungs
from rungwise.report.report import terminal_table, write_report
from rungwise.terminal import print_anything


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The ladder's own flags, and those for every rung."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s [flags] [flags of ablate.py]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ladder", default="recipes/ladders/default.yaml", metavar="FILE", help="rungs [%(default)s]")
    parser.add_argument("--output_dir", metavar="DIR", help="where everything goes [runs/<name of the ladder>]")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="rounds in which the rungs take turns [1]")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier call left in the folder")
    parser.add_argument("--report_only", metavar="DIR", help="only write the report of a folder again")
    return parser.parse_known_args()


def main() -> int:
    """Runs a ladder; returns 0 only if no rung and no check failed."""
    print_anything()
    options, extra = arguments()
    try:
        if options.report_only:
            if extra or options.fresh or options.output_dir:
                raise SettingsError(["--report_only runs nothing and takes no other flag"])
            report = write_report(Path(options.report_only))
            print(terminal_table(report))
            return int(report.failed)
        if options.repeats < 1:
            raise SettingsError([f"--repeats {options.repeats}: must be at least 1"])
        name = Path(options.ladder).stem
        folder = Path(options.output_dir or Path("runs") / name)
        group = group_of(name, folder, options.fresh)
        rungs = read_rungs(options.ladder, extra, group)
        with Ladder(name, rungs, folder, group, options.fresh) as ladder:
            return Climb(ladder, options.repeats).run()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
