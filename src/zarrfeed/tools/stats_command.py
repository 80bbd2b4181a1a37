"""`zarrfeed stats`: its arguments, and the bar that it shows.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from zarrfeed.tools.cli_parser import EXECUTORS
from zarrfeed.tools.progress_bar import show_progress

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data
    from zarrfeed.spec.values.statistics import Statistics

HELP = "measure mean, standard deviation, bounds and missing values of a store"
DESCRIPTION = (
    "Read every sample of STORE once, in parallel; print mean, standard deviation, least and greatest value and the "
    "share of NaN of each array. With --output, a run that was interrupted goes on when it is called again, and "
    'Data.normalize("auto", stats=FILE) uses the result.'
)


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add the arguments that are this command's own; `positive` parses numbers from 1."""
    parser.add_argument(
        "--axis",
        nargs="+",
        type=_axis,
        metavar="AXIS",
        help="dimensions, or axes of the array, that have statistics of their own: level, or lat lon (default: none)",
    )
    parser.add_argument("--output", metavar="FILE", help="keep the result there, as JSON")
    parser.add_argument("--restart", action="store_true", help="measure anew, whatever was measured before")
    parser.add_argument("--num-threads", type=positive, metavar="N", help="default: one for each core")
    parser.add_argument(
        "--memory-budget", default="1GiB", metavar="SIZE", help='bytes, or text such as "2GiB" (default: 1GiB)'
    )
    parser.add_argument("--executor", metavar="WHERE", help=f"{EXECUTORS} (default: threads)")


def run(data: Data, arguments: argparse.Namespace, say: Callable[[str], None]) -> Statistics:
    """Measure the samples, with a bar on stderr."""
    from zarrfeed.tools.stats import stats

    with show_progress("samples") as show:
        return stats(
            data,
            axis=arguments.axis,
            output=arguments.output,
            restart=arguments.restart,
            num_threads=arguments.num_threads,
            memory_budget=arguments.memory_budget,
            executor=arguments.executor,
            faults={"timeout": arguments.timeout},
            on_progress=lambda now: show(now.done, now.total, ""),
            on_message=say,
        )


def _axis(text: str) -> int | str:
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() else text
