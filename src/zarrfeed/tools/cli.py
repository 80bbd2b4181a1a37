# PYTHON_ARGCOMPLETE_OK
"""The command `zarrfeed`: its parser, and what its commands print; with `argcomplete`, completion."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ZarrfeedError, one_line
from zarrfeed.base.redaction import remember, without_secrets
from zarrfeed.tools import index_command, info_command, pack_command, stats_command, verify_command
from zarrfeed.tools.cli_parser import EXAMPLES, EXECUTORS, SuggestingParser, add_sample_dim, add_sel, select
from zarrfeed.tools.quiet import quiet

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data

#: Exit statuses: a demo or a store that is not as it should be, a wrong argument or no store, Ctrl-C.
EXIT_FAILED, EXIT_ERROR, EXIT_INTERRUPTED = 1, 2, 130

#: The kinds of blocks. They are not imported from their module, because that imports zarr, which would slow completion.
BLOCK_KINDS = ("auto", "slab", "chunk", "shard")

#: The longest `--seconds`: a day.
_MOST_SECONDS = 86400.0

#: The modules that the demo imports beyond the dependencies of the package: the extra "demo".
_DEMO_MODULES = ("rich", "h5py", "iris_sample_data")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv
        Arguments without the program's name; those of the process, unless given.

    Returns
    -------
    0: done. 1: the demo did not show what it promises, the loaders of a benchmark deliver different data, or a store is
    not good. 2: an error, told in one line on stderr. 130: interrupted.
    """
    parser = _parser()
    _complete(parser)
    if not (sys.argv[1:] if argv is None else argv):
        parser.exit(EXIT_ERROR, f"{parser.format_usage()}\n{EXAMPLES}")
    arguments = parser.parse_args(argv)
    try:
        with quiet():
            status = _COMMANDS[arguments.command](arguments)
        print(end="", flush=True)
        return status
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `zarrfeed ... | head`: nobody reads on
        return EXIT_FAILED
    except (ZarrfeedError, OSError) as error:
        _complain(_as_options(str(error)))
        return EXIT_ERROR
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        measured = " --advise" * getattr(arguments, "advise", False)
        _complain(f"{arguments.command}{measured} needs torch: pip install torch")
        return EXIT_ERROR
    finally:
        _drop_unwritten()


def _drop_unwritten() -> None:
    """Write the buffers of stdout and stderr, or drop them: at exit, writing would fail again, with status 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            print(end="", file=stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _complete(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks for completions, which ends the process; for anybody else do nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    try:
        import argcomplete
    except ImportError:  # an extra
        return
    argcomplete.autocomplete(parser)


def _as_options(message: str) -> str:
    """Return a message with arguments spelt as options: `sample_dim='time'` becomes `--sample-dim time`."""
    return re.sub(
        r"\b(sample_dim|variables|depth)=(?:\['([^']*)'\]|'([^']*)'|(\d+))",
        lambda found: f"--{found[1].replace('_', '-')} {shlex.quote(found[found.lastindex or 2])}",
        message,
    )


def _parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(
        prog="zarrfeed",
        description="Stream Zarr arrays into PyTorch training.",
        epilog='Completion in bash and zsh, with `pip install "zarrfeed[cli]"`: '
        'eval "$(register-python-argcomplete zarrfeed)"',
    )
    parser.add_argument("--version", action="version", version=f"zarrfeed {version('zarrfeed')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser(
        "demo",
        help="train on real climate-model output, then compare rates with plain zarr",
        description="Write climate-model output as Zarr stores, train a small model on them, stream a larger "
        "generated store beside plain zarr, and, where matplotlib is installed, save a plot. Needs no network.",
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
        help="where the plot goes (default: zarrfeed-demo.png in DIR, or else in the current directory); it needs "
        'matplotlib: pip install "zarrfeed[plot]"',
    )

    info = commands.add_parser(
        "info",
        aliases=["explain"],
        help="tell how an array or a group, or several as one, would be read; with --advise, which layout is faster",
        description="Print the samples as an expression, and what ZarrIterableDataset(...).explain() says of them: "
        "chunks, order, memory, threads. With --plot, draw which chunks or patches an epoch reads when. With --advise, "
        "read and compress some samples, time the engine, and print which chunks, shards and codec train faster.",
    )
    info.add_argument("paths", nargs="+", metavar="STORE", help="an array, or a group of arrays: a path or a URL")
    _add_dataset_arguments(info, batch_size=None)
    info_command.add_arguments(info, _positive, _seed)

    bench = commands.add_parser(
        "bench",
        help="measure how fast a store is read, beside plain zarr and what the machine could do",
        description="Read a part of STORE with ZarrIterableDataset, with zarr-python alone and with bare C++ loops; "
        "print rates, ratios, what bounds the rate and what to change. Writes nothing.",
    )
    bench.add_argument("path", metavar="STORE", help="an array, or a group of arrays: a path or a URL")
    _add_dataset_arguments(bench, batch_size=64)
    bench.add_argument("--num-threads", type=_positive, metavar="N", help="decode threads (default: all cores)")
    bench.add_argument("--block", choices=BLOCK_KINDS, default="chunk", help="what is shuffled (default: chunk)")
    bench.add_argument(
        "--seconds", type=_seconds, default=5.0, metavar="S", help="for each of the three that are timed (default: 5)"
    )
    check = commands.add_parser(
        "verify",
        help="read and check every chunk of a store, or of several",
        description="Read and decode every chunk of STORE; report which are bad or missing. A run that was "
        "interrupted goes on when it is called again. Exits with 0 if all is well, 1 if something is bad or could "
        "not be checked, 2 for wrong arguments or if there is no store.",
    )
    verify_command.add_arguments(check, _positive)
    _add_store_arguments(check)
    measure = commands.add_parser("stats", help=stats_command.HELP, description=stats_command.DESCRIPTION)
    measure.add_argument("path", metavar="STORE", help="an array, or a group of arrays: a path or a URL")
    stats_command.add_arguments(measure, _positive)
    _add_data_arguments(measure)
    _add_store_arguments(measure)
    index = commands.add_parser("index", help=index_command.HELP, description=index_command.DESCRIPTION)
    index_command.add_arguments(index)
    _add_store_arguments(index, opens=False)
    packing = commands.add_parser("pack", help=pack_command.HELP, description=pack_command.DESCRIPTION)
    pack_command.add_arguments(packing, _positive, _seed)
    _add_store_arguments(packing)
    _add_cache(
        commands.add_parser(
            "cache",
            help="copy a store into a node cache, look into the cache, check or clear it",
            description="A node cache is a local directory that zarrfeed.open(..., cache=DIR) keeps stored bytes in.",
        ).add_subparsers(dest="cache_command", required=True, metavar="COMMAND")
    )
    return parser


def _add_cache(commands: Any) -> None:
    warm = commands.add_parser(
        "warm",
        help="copy a store into a cache",
        description="Copy all objects of STORE into a cache; what is there already is checked and not copied. A run "
        "that was interrupted goes on when it is called again. Exits with 0 if all of the store is in the cache, 1 if "
        "not, 2 for wrong arguments or if there is no store.",
    )
    warm.add_argument(
        "path",
        metavar="STORE",
        help="an array, or a group of arrays and groups: a URL, or a path on another file system than the cache",
    )
    warm.add_argument("--cache", required=True, metavar="DIR", help="the directory; it is made if there is none")
    warm.add_argument(
        "--cache-limit", metavar="SIZE", help='bytes, or text such as "200GiB" (default: 9/10 of what is free)'
    )
    warm.add_argument("--cache-version", metavar="TEXT", help="version of all objects, for servers that tell none")
    _add_cache_group(warm)
    warm.add_argument("--arrays", "--variables", nargs="+", metavar="NAME", help="arrays or groups (default: all)")
    _add_store_arguments(warm)
    warm.add_argument("--executor", metavar="WHERE", help=f"{EXECUTORS}; all workers must see DIR (default: threads)")
    warm.add_argument(
        "--memory-budget", default="1GiB", metavar="SIZE", help='bytes, or text such as "2GiB" (default: 1GiB)'
    )
    for name, text in (
        ("info", "tell what is in a cache"),
        ("verify", "check all entries of a cache, and delete the damaged ones; exits with 1 if there were some"),
    ):
        # Without abbreviations, so that --cache is not taken for --cache-group.
        look = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        look.add_argument("directory", metavar="DIR", help="the directory of the cache")
        _add_cache_group(look)
    clear = commands.add_parser(
        "clear", help="delete the entries of a cache", description="Delete entries of a cache.", allow_abbrev=False
    )
    clear.add_argument("directory", metavar="DIR", help="the directory of the cache")
    _add_cache_group(clear)
    clear.add_argument(
        "--store", metavar="STORE", help="only entries of the array or group there, by URL or path (default: all)"
    )
    _add_store_arguments(clear, opens=False)


def _add_cache_group(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-group",
        metavar="GROUP",
        help="the group that shares the cache (default: none)",
    )


def _add_store_arguments(parser: argparse.ArgumentParser, *, opens: bool = True) -> None:
    if opens:
        parser.add_argument(
            "--zarr-format",
            type=int,
            choices=(2, 3),
            help="look for documents of this format alone, in a store that has both, or on a server that refuses what "
            "does not exist (default: 3 before 2)",
        )
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        action="append",
        type=_storage_option,
        metavar="KEY=VALUE",
        help="of a URL's store, such as anon=true or endpoint_url=http://127.0.0.1:9000; may be repeated; or all of "
        "them as a JSON object",
    )
    parser.add_argument(
        "--timeout", type=float, default=300.0, metavar="S", help="seconds that a read may take (default: 300)"
    )


def _add_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--targets", metavar="PATH", help="another array or group with as many samples")
    parser.add_argument("--sample-axis", type=int, default=0, metavar="AXIS", help="axis of samples (default: 0)")
    add_sample_dim(parser, "in its place, the name of the dimension")
    parser.add_argument(
        "--variables", nargs="+", metavar="NAME", help="which arrays of a group (default: all data variables)"
    )
    parser.add_argument(
        "--depth", type=int, default=0, metavar="N", help="depth to which groups are entered (default: 0)"
    )
    add_sel(parser)


def _add_dataset_arguments(parser: argparse.ArgumentParser, *, batch_size: int | None) -> None:
    _add_data_arguments(parser)
    parser.add_argument(
        "--batch-size",
        type=int,
        default=batch_size,
        metavar="N",
        help=f"samples of a batch (default: {batch_size or 'none, single samples'})",
    )
    parser.add_argument("--shuffle", action="store_true", help="in random order")
    parser.add_argument("--lanes", type=int, metavar="N", help="blocks open side by side (default: chosen)")
    parser.add_argument("--mix", type=int, metavar="N", help="blocks permuted together (default: chosen)")
    _add_store_arguments(parser)
    parser.add_argument(
        "--memory-budget",
        metavar="SIZE",
        help='bytes, or text such as "2GiB" (default: a quarter of the memory of this job, and at least 1GiB)',
    )


def _open(arguments: argparse.Namespace, *, decode_cf: bool = True) -> Data:
    from zarrfeed.metadata.face.open_data import open as open_data

    paths = [arguments.path] if "path" in arguments else arguments.paths
    data = open_data(
        paths[0] if len(paths) == 1 else paths,
        arguments.targets,
        sample_axis=arguments.sample_axis,
        sample_dim=arguments.sample_dim,
        variables=arguments.variables,
        depth=arguments.depth,
        decode_cf=decode_cf,
        storage_options=_storage_options(arguments),
        zarr_format=arguments.zarr_format,
        timeout=arguments.timeout,
    )
    return select(data, arguments.sel)


def _storage_options(arguments: argparse.Namespace) -> dict[str, Any] | None:
    return {name: value for given in arguments.storage_options or () for name, value in given.items()} or None


def _demo(arguments: argparse.Namespace) -> int:
    missing = [name for name in _DEMO_MODULES if importlib.util.find_spec(name) is None]
    if missing:
        _complain(f'the demo needs {", ".join(missing)}: pip install "zarrfeed[demo]"')
        return EXIT_ERROR
    from zarrfeed.tools.demo import run_demo

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


def _info(arguments: argparse.Namespace) -> int:
    if arguments.tree:
        info_command.draw_trees(arguments, _storage_options(arguments), _show)
    else:
        info_command.run(arguments, lambda decode_cf=True: _open(arguments, decode_cf=decode_cf), _show)
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from zarrfeed.spec.description.error_policy import Faults
    from zarrfeed.spec.description.feeding import Mixing
    from zarrfeed.tools.bench.store_bench import StoreBench

    bench = StoreBench(
        arguments.path,
        arguments.targets,
        _open(arguments),
        batch_size=arguments.batch_size,
        shuffle=arguments.shuffle,
        seconds=arguments.seconds,
        say=_show,
        num_threads=arguments.num_threads,
        memory_budget=arguments.memory_budget,
        mixing=Mixing(arguments.lanes, arguments.mix, arguments.block),
        faults=Faults(timeout=arguments.timeout),
        storage_options=_storage_options(arguments),
        zarr_format=arguments.zarr_format,
    )
    problems = bench.run()
    for problem in problems:
        _complain(problem)
    return EXIT_FAILED if problems else 0


def _verify(arguments: argparse.Namespace) -> int:
    try:
        is_good = verify_command.run(arguments, _storage_options(arguments), _show, _complain)
    except KeyboardInterrupt:
        _complain("interrupted" + "; the same command goes on from here" * (arguments.progress_file != "none"))
        return EXIT_INTERRUPTED
    return 0 if is_good else EXIT_FAILED


def _stats(arguments: argparse.Namespace) -> int:
    try:
        _show(stats_command.run(_open(arguments), arguments, _complain))
    except KeyboardInterrupt:
        _complain("interrupted" + "; the same command goes on from here" * (arguments.output is not None))
        return EXIT_INTERRUPTED
    return 0


def _pack(arguments: argparse.Namespace) -> int:
    try:
        report = pack_command.run(arguments, _storage_options(arguments))
    except KeyboardInterrupt:
        _complain("interrupted; the same command with --resume goes on from here")
        return EXIT_INTERRUPTED
    _show(report)
    if not report.complete:
        return pack_command.EXIT_OTHERS_LEFT
    return 0 if report.ok else EXIT_FAILED


def _cache(arguments: argparse.Namespace) -> int:
    from zarrfeed.tools.cache import commands

    if arguments.cache_command == "warm":
        try:
            report = commands.warm(arguments, _storage_options(arguments))
        except KeyboardInterrupt:
            _complain("interrupted; the same command goes on from here")
            return EXIT_INTERRUPTED
        _show(report)
        return 0 if report.ok else EXIT_FAILED
    if arguments.cache_command == "clear":
        _show(commands.clear(arguments, _storage_options(arguments)))
        return 0
    if arguments.cache_command == "info":
        _show(commands.info(arguments))
        return 0
    checked = commands.check(arguments)
    _show(checked)
    return 0 if checked.ok else EXIT_FAILED


#: Command -> the function that runs it.
_COMMANDS = {
    "demo": _demo,
    "info": _info,
    "explain": _info,
    "bench": _bench,
    "verify": _verify,
    "stats": _stats,
    "pack": _pack,
    "index": lambda arguments: index_command.run(arguments, _storage_options(arguments), _show),
    "cache": _cache,
}


def _show(text: object) -> None:
    print("\n".join(one_line(line) for line in without_secrets(str(text)).split("\n")), flush=True)


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody can be told
        print(f"zarrfeed: {one_line(' '.join(without_secrets(message).split()))}", file=sys.stderr)


def _storage_option(text: str) -> dict[str, Any]:
    """Return the options of `KEY=VALUE` or a JSON object. A value such as true or 3 is parsed as JSON, too."""
    key, is_pair, value = text.partition("=")
    try:
        options = parse_json(text if text.startswith("{") else value)
    except ValueError:
        options = value
    if not text.startswith("{"):
        options = {key: options if isinstance(options, bool | dict) else value} if key and is_pair else None
    if not isinstance(options, dict):  # the text may be a secret
        raise argparse.ArgumentTypeError("must be KEY=VALUE or a JSON object")
    remember(options)
    return options


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}, must be an integer of at least 1")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text}, must be a number in (0, {_MOST_SECONDS:.0f}]")
    return value


def _seed(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= value < 2**64:
        raise argparse.ArgumentTypeError(f"{text}, must be an integer in [0, 2**64)")
    return value
