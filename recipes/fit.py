"""Will it fit, and what is the least that has to be turned on? Forecast memory, without running anything.

    python recipes/fit.py --memory auto
    python recipes/fit.py --model_type gpt2 --memory 8GiB --global_batch_size 16 --block_size 1024
    python recipes/fit.py --model_type llama --gpu A100-80GB --global_batch_size 64 --block_size 2048

Flags of ablate.py that are given are every candidate's. The exit code is 0 if one fits, 1 if none does.
"""

import argparse
import sys
from pathlib import Path

from rungwise import imports
from rungwise.errors import SettingsError
from rungwise.settings.cli import read_flags
from rungwise.terminal import print_anything


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """The recipe's own flags, and those for every candidate."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        usage="%(prog)s --memory SIZE | --gpu NAME [flags] [flags of ablate.py]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--memory", metavar="SIZE", help="of a GPU, or of the CPU that processes share: 16GiB; auto: this machine's"
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="a GPU by name, as A100-80GB; beside it --memory is the part that is yours"
    )
    parser.add_argument("--num_processes", type=int, default=1, metavar="N", help="processes, each with a GPU [1]")
    parser.add_argument("--reserve", metavar="SIZE", help="kept for what no forecast counts [1GiB]")
    parser.add_argument("--verify", action="store_true", help="run the choice for three steps, and measure")
    parser.add_argument(
        "--fastest", action="store_true", help="run the promising ones that fit, in turns, and time them"
    )
    parser.add_argument("--output_dir", default="runs/fit", metavar="DIR", help="where the answer goes [%(default)s]")
    return parser.parse_known_args()


def main() -> int:
    """Answers; returns the exit code."""
    print_anything()
    options, extra = arguments()
    try:
        errors: list[str] = []
        read_flags(extra, errors, None)
        if errors:  # said before PyTorch is loaded
            raise SettingsError(errors)
        with imports.kept():
            from rungwise.fit.answer import answer
        return answer(options, extra, Path(options.output_dir))
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
