"""`zarrfeed verify`: its arguments, and its report on several stores.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zarrfeed.tools.cli_parser import EXECUTORS, add_sample_dim, add_sel, select

if TYPE_CHECKING:
    from zarrfeed.tools.verify import VerifyReport


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int]) -> None:
    """Add the arguments that are this command's own; `positive` parses numbers from 1."""
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="STORE",
        help="an array, or a group of arrays and groups: a path, a URL, or a pattern in quotes",
    )
    parser.add_argument(
        "--arrays", "--variables", nargs="+", metavar="NAME", help="arrays or groups in it (default: all)"
    )
    add_sel(parser)
    add_sample_dim(parser, "for --sel: the dimension of samples (default: axis 0); all arrays without --sel")
    parser.add_argument(
        "--missing", choices=("count", "error"), default="count", help="of chunks the store lacks (default: count)"
    )
    parser.add_argument(
        "--links",
        choices=("count", "error"),
        default="count",
        help="of symbolic links that lead out of a local store (default: count)",
    )
    parser.add_argument(
        "--json", metavar="PATH", help="write the report as JSON there; -: to stdout, in place of the table"
    )
    parser.add_argument(
        "--progress-file",
        default="default",
        metavar="PATH",
        help="keeps what was checked until the end (default: one of the store's own below $XDG_STATE_HOME); "
        "none: nothing is kept",
    )
    parser.add_argument("--restart", action="store_true", help="begin from the start, whatever was checked before")
    parser.add_argument("--num-threads", type=positive, metavar="N", help="default: one for each core, at least 8")
    parser.add_argument(
        "--memory-budget", default="1GiB", metavar="SIZE", help='bytes, or text such as "2GiB" (default: 1GiB)'
    )
    parser.add_argument("--executor", metavar="WHERE", help=f"{EXECUTORS} (default: threads)")


def run(
    arguments: argparse.Namespace,
    storage_options: Mapping[str, Any] | None,
    show: Callable[[object], None],
    complain: Callable[[str], None],
) -> bool:
    """Check the stores one after another; return whether all of them are good.

    For several stores, those with problems are shown, and the number of stores with and without problems. A store that
    cannot be opened is one with a problem; the others are checked all the same.

    Raises
    ------
    ZarrfeedError
        If a single store cannot be checked, or no store is there.
    """
    from zarrfeed.base.errors import ConfigError, ZarrfeedError, printable
    from zarrfeed.base.redaction import without_secrets
    from zarrfeed.metadata.stores.many_stores import as_stores
    from zarrfeed.spec.description.error_policy import Faults
    from zarrfeed.storage.access.access import StoreAccess
    from zarrfeed.tools.verify.terminal import show_progress, write_json

    access = StoreAccess(Faults(timeout=arguments.timeout), storage_options, zarr_format=arguments.zarr_format)
    stores = [store for path in arguments.paths for store in as_stores(path, access) or [path]]
    if len(stores) == 1:
        report = _verify_one(stores[0], arguments, storage_options, complain)
        if arguments.json:
            write_json(report.to_dict(), arguments.json)
        if arguments.json != "-":
            show(report)
        return report.ok
    if arguments.progress_file not in ("default", "none"):
        raise ConfigError(f"--progress-file names one file for {len(stores)} stores, must be default or none")
    reports: list[dict[str, Any]] = []
    failed = 0
    with show_progress() as progress:
        for store in stores:
            try:
                report = _verify_one(store, arguments, storage_options, complain, progress)
            except ZarrfeedError as error:
                complain(str(error))
                reports.append({"store": without_secrets(printable(store)), "ok": False, "error": str(error)})
                failed += 1
                continue
            reports.append(report.to_dict())
            failed += not report.ok
            if not report.ok and arguments.json != "-":
                show(f"{store}\n{report}\n")
    if arguments.json:
        write_json({"ok": failed == 0, "stores": reports}, arguments.json)
    if arguments.json != "-":
        show(f"{len(stores)} stores: {len(stores) - failed} without problems, {failed} with problems")
    return failed == 0


def _verify_one(
    store: Any,
    arguments: argparse.Namespace,
    storage_options: Mapping[str, Any] | None,
    complain: Callable[[str], None],
    progress: Callable[[Any], None] | None = None,
) -> VerifyReport:
    from zarrfeed.metadata.face.open_data import open as open_data
    from zarrfeed.tools.verify import verify
    from zarrfeed.tools.verify.terminal import show_progress

    if progress is None:
        with show_progress() as shown:
            return _verify_one(store, arguments, storage_options, complain, shown)
    options: dict[str, Any] = {"storage_options": storage_options, "zarr_format": arguments.zarr_format}
    arrays = arguments.arrays
    if arguments.sel:
        dim = arguments.sample_dim
        data = open_data(store, sample_dim=dim, variables=arrays, timeout=arguments.timeout, **options)
        store, arrays, options = select(data, arguments.sel), None, {}
    return verify(
        store,
        arrays,
        missing=arguments.missing,
        links=arguments.links,
        num_threads=arguments.num_threads,
        memory_budget=arguments.memory_budget,
        progress_file=None if arguments.progress_file == "none" else arguments.progress_file,
        restart=arguments.restart,
        executor=arguments.executor,
        timeout=arguments.timeout,
        **options,
        on_progress=progress,
        on_message=complain,
    )
