"""`zarrfeed info`: its arguments, the page that it prints, and the picture that it draws.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import ConfigError

if TYPE_CHECKING:
    from zarrfeed.metadata.face.data import Data
    from zarrfeed.plan.schedule.epoch_plan import Schedule

#: Kinds of pictures, and ranks that are told apart in one.
PLOT_SUFFIXES, MOST_RANKS = (".svg", ".png"), 32
#: Not imported from where they are defined, which would import NumPy, and completion be slow.
BORDERS = ("pad", "wrap", "drop", "shift")


def add_arguments(
    parser: argparse.ArgumentParser, positive: Callable[[str], int], natural: Callable[[str], int]
) -> None:
    """Add the arguments that are this command's own; `positive` parses numbers from 1, `natural` from 0."""
    parser.add_argument("--seed", type=natural, default=0, metavar="S", help="of the order (default: 0)")
    parser.add_argument("--num-threads", type=positive, metavar="N", help="decode threads (default: all cores)")
    parser.add_argument(
        "--ranks", type=positive, metavar="W", help="tell what rank 0 of so many reads, and draw all (default: 1)"
    )
    parser.add_argument(
        "--patch",
        type=_sizes,
        metavar="DIM=N,...",
        help="samples are boxes of so many voxels: z=64,y=64,x=64; a dimension is a name, or the number of an axis",
    )
    parser.add_argument(
        "--stride", type=_sizes, metavar="DIM=N,...", help="of a grid of patches for validation (default: random tiles)"
    )
    parser.add_argument(
        "--border", choices=BORDERS, default="pad", help="what becomes of patches that reach beyond (default: pad)"
    )
    parser.add_argument(
        "--plot",
        type=_picture,
        metavar="FILE",
        help="draw in which order an epoch reads the store, as .svg or .png; it needs matplotlib",
    )
    parser.add_argument("--epoch", type=natural, default=0, metavar="N", help="which epoch (default: 0)")
    parser.add_argument(
        "--advise",
        action="store_true",
        help="measure instead: what this layout costs when it is shuffled, and which chunks, shards and codec would be "
        "faster; it takes about half a minute",
    )
    parser.add_argument(
        "--disk-rate",
        metavar="SIZE",
        help='with --advise: what the disk brings in a second, such as "2GB" (default: measured, if that is possible)',
    )
    parser.add_argument(
        "--tree",
        action="store_true",
        help="draw the arrays and groups that lie there, with dimensions, types and chunks, and nothing else",
    )
    parser.add_argument(
        "--json",
        metavar="PATH",
        help="with --advise: write the report as JSON there; -: to stdout, in place of the page",
    )


def draw_trees(
    arguments: argparse.Namespace, storage_options: Mapping[str, Any] | None, say: Callable[[object], None]
) -> None:
    """Print the arrays and groups of each store as a tree. Raises as `store_tree` and `as_stores`."""
    from zarrfeed.metadata.stores.many_stores import as_stores
    from zarrfeed.spec.description.error_policy import Faults
    from zarrfeed.storage.access.access import StoreAccess
    from zarrfeed.tools.store_tree import store_tree

    access = StoreAccess(Faults(timeout=arguments.timeout), storage_options, zarr_format=arguments.zarr_format)
    for path in arguments.paths:
        for store in as_stores(path, access) or [path]:
            say(store_tree(str(store), access))


def run(arguments: argparse.Namespace, open_data: Callable[..., Data], say: Callable[[object], None]) -> None:
    """Print the store's description and how it would be read; draw the order, if there is a file for it.

    `open_data(decode_cf=False)` opens the arrays as they are stored.

    Raises
    ------
    ConfigError
        If an argument does not fit to the others or to the store, or matplotlib is missing.
    """
    _check(arguments)
    if arguments.advise:
        _advise(arguments, open_data, say)
        return
    from zarrfeed.tools import dry_run

    data, notes = _with_notes(open_data)
    if arguments.patch is not None:
        data = data.patch(
            arguments.patch,
            sampling="tiles" if arguments.stride is None else "grid",
            stride=arguments.stride,
            border=arguments.border,
        )
    schedule, alternatives = dry_run.schedule_of(
        data,
        batch_size=arguments.batch_size,
        shuffle=arguments.shuffle,
        seed=arguments.seed,
        num_threads=arguments.num_threads,
        memory_budget=arguments.memory_budget,
        mixing={"lanes": arguments.lanes, "mix": arguments.mix},
    )
    explained = dry_run.explain(data, schedule, alternatives, ranks=arguments.ranks, epoch=arguments.epoch)
    page = f"{data}\n\n{explained}"
    if arguments.plot is not None:
        _draw(data, schedule, arguments)
        page += f"\n\norder drawn in {arguments.plot}"
    say("\n\n".join([page, *notes]))


def _with_notes(open_data: Callable[..., Data]) -> tuple[Data, list[str]]:
    """Open the arrays; return them with notes for the page about stale metadata."""
    from zarrfeed.base.errors import StaleMetadataWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StaleMetadataWarning)
        data = open_data()
    notes = []
    for one in caught:
        if issubclass(one.category, StaleMetadataWarning):
            notes.append(f"warning: {one.message}")
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return data, notes


def _advise(arguments: argparse.Namespace, open_data: Callable[..., Data], say: Callable[[object], None]) -> None:
    from zarrfeed.base.units import parse_bytes
    from zarrfeed.tools.advise.store_advice import Reading, advise_store
    from zarrfeed.tools.verify.terminal import write_json

    rate = None if arguments.disk_rate is None else parse_bytes(arguments.disk_rate, "disk_rate")
    reading = Reading(
        batch_size=arguments.batch_size,
        seed=arguments.seed,
        num_threads=arguments.num_threads,
        memory_budget=arguments.memory_budget,
        mixing={"lanes": arguments.lanes, "mix": arguments.mix},
        faults={"timeout": arguments.timeout},
    )
    name = " ".join(arguments.paths)
    advice = advise_store(name, open_data(), open_data(decode_cf=False), reading=reading, disk_bytes_per_s=rate)
    if arguments.json is not None:
        write_json(advice.to_dict(), arguments.json)
    if arguments.json != "-":
        say(advice)


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.advise:
        for option, value in (("--json", arguments.json), ("--disk-rate", arguments.disk_rate)):
            if value is not None:
                raise ConfigError(f"{option} is for --advise: give it, too")
    else:
        for option in ("patch", "stride", "plot", "ranks"):
            if getattr(arguments, option) is not None:
                raise ConfigError(f"--{option} does not go with --advise, which measures whole samples on one rank")
    if arguments.patch is None and (arguments.stride is not None or arguments.border != "pad"):
        given = "--stride" if arguments.stride is not None else "--border"
        raise ConfigError(f"{given} is for patches: give --patch, too")
    if arguments.plot is None:
        return
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('--plot needs matplotlib: pip install "zarrfeed[plot]"')
    if (arguments.ranks or 1) > MOST_RANKS:
        raise ConfigError(f"--ranks = {arguments.ranks}, must be at most {MOST_RANKS} with --plot")


def _draw(data: Data, schedule: Schedule, arguments: argparse.Namespace) -> None:
    ranks = arguments.ranks or 1
    name = Path(arguments.paths[0].rstrip("/")).name
    if len(arguments.paths) > 1:
        name += f" and {len(arguments.paths) - 1} more"
    patching = data.resolved.patching
    if patching is None:
        from zarrfeed.tools.plot import draw_rows
        from zarrfeed.tools.plot.row_figure import RowFigure

        rows = RowFigure.of(schedule, arguments.epoch, ranks)
        draw_rows.draw(rows, arguments.plot, name=name, shuffle=arguments.shuffle)
        return
    from zarrfeed.tools.plot import draw_patches
    from zarrfeed.tools.plot.patch_figure import PatchFigure

    dims = [dim if isinstance(dim, str) else f"axis {dim}" for dim in patching.dims]
    patches = PatchFigure.of(schedule, arguments.epoch, ranks)
    draw_patches.draw(patches, arguments.plot, name=name, dims=dims, shuffle=arguments.shuffle)


def _sizes(text: str) -> dict[str | int, int]:
    """Parse `z=64,y=64,x=64` to sizes by dimension."""
    sizes: dict[str | int, int] = {}
    for one in text.split(","):
        dim, _, size = one.partition("=")
        if not dim or dim in sizes or not (size.isascii() and size.isdecimal() and int(size)):
            raise argparse.ArgumentTypeError(f"{text}, must be sizes from 1, such as z=64,y=64,x=64")
        sizes[int(dim) if dim.isascii() and dim.isdecimal() else dim] = int(size)
    return sizes


def _picture(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise argparse.ArgumentTypeError(f"{text}, must end with {' or '.join(PLOT_SUFFIXES)}")
    return path
