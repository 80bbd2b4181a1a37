"""The command `zarrfeed`: `demo`, `explain`, `--version`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from zarrfeed.errors import ZarrfeedError

#: Exit statuses: a demo that did not show what it promises, a wrong argument or store, Ctrl-C.
EXIT_FAILED, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130

#: What the demo imports beyond the dependencies of the package: the extra "demo".
_DEMO_MODULES = ("rich", "matplotlib", "h5py", "iris_sample_data")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process, unless given.

    Returns
    -------
    0: done. 1: the demo ran, but did not show what it promises. 2: an error, told in one line on stderr.
    130: interrupted.
    """
    arguments = _parser().parse_args(argv)
    try:
        status = _demo(arguments) if arguments.command == "demo" else _explain(arguments)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `zarrfeed ... | head`: nobody reads on. What is left in the buffer must not fail once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except (ZarrfeedError, OSError) as error:
        _complain(str(error))
        return EXIT_ERROR


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zarrfeed", description="Stream Zarr arrays into PyTorch training.")
    parser.add_argument("--version", action="version", version=f"zarrfeed {version('zarrfeed')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train on real climate-model output, then compare rates with plain zarr",
        description="Write climate-model output as Zarr stores, train a small model on them, stream a larger "
        "generated store beside plain zarr, and save a plot. Needs no network.",
    )
    demo.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="keep the stores there and reuse them the next time (default: a temporary directory, removed at the end)",
    )
    demo.add_argument("--epochs", type=_positive, default=60, metavar="N", help="epochs of training (default: 60)")
    demo.add_argument("--seed", type=_seed, default=0, metavar="S", help="of the model and of all orders (default: 0)")
    demo.add_argument(
        "--stream-mb",
        type=_positive,
        default=512,
        metavar="MIB",
        help="decoded size of the generated store in MiB (default: 512)",
    )
    demo.add_argument(
        "--plot",
        type=Path,
        metavar="PNG",
        help="where the plot goes (default: zarrfeed-demo.png in DIR, or else in the current directory)",
    )

    explain = commands.add_parser(
        "explain",
        help="tell how an array or a group would be read, without reading it",
        description="Print what ZarrIterableDataset(PATH, ...).explain() says: chunks, order, memory, threads.",
    )
    explain.add_argument("path", metavar="PATH", help="an array, or a group of arrays: a path or a file:// URL")
    explain.add_argument("--targets", metavar="PATH", help="another array or group with as many samples")
    explain.add_argument("--sample-axis", type=int, default=0, metavar="AXIS", help="axis of samples (default: 0)")
    explain.add_argument(
        "--batch-size", type=int, metavar="N", help="samples of a batch (default: none, single samples)"
    )
    explain.add_argument("--shuffle", action="store_true", help="in random order")
    explain.add_argument("--lanes", type=int, metavar="N", help="blocks open side by side (default: chosen)")
    explain.add_argument("--mix", type=int, default=1, metavar="N", help="blocks permuted together (default: 1)")
    explain.add_argument(
        "--memory-budget", default="1GiB", metavar="SIZE", help='bytes, or text such as "2GiB" (default: 1GiB)'
    )
    return parser


def _demo(arguments: argparse.Namespace) -> int:
    missing = [name for name in _DEMO_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        _complain(f'the demo needs {", ".join(missing)}: pip install "zarrfeed[demo]"')
        return EXIT_ERROR
    from zarrfeed.demo import run_demo

    problems = run_demo(
        directory=arguments.dir,
        epochs=arguments.epochs,
        seed=arguments.seed,
        stream_mib=arguments.stream_mb,
        plot_path=arguments.plot,
    )
    for problem in problems:
        _complain(problem)
    return EXIT_FAILED if problems else 0


def _explain(arguments: argparse.Namespace) -> int:
    from zarrfeed.dataset import ZarrIterableDataset

    with ZarrIterableDataset(
        arguments.path,
        arguments.targets,
        batch_size=arguments.batch_size,
        shuffle=arguments.shuffle,
        sample_axis=arguments.sample_axis,
        lanes=arguments.lanes,
        mix=arguments.mix,
        memory_budget=arguments.memory_budget,
    ) as dataset:
        print(dataset.explain())
    return 0


def _complain(message: str) -> None:
    print(f"zarrfeed: {' '.join(message.split())}", file=sys.stderr)


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}, must be an integer of at least 1")
    return value


def _seed(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{text}, must be an integer in [0, 2**64)")
    return value
