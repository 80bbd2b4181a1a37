"""`zarrfeed pack`: its arguments, and the bar that it shows.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from zarrfeed.tools.cli_parser import EXECUTORS, add_sample_dim, add_sel, select
from zarrfeed.tools.progress_bar import show_progress

if TYPE_CHECKING:
    from zarrfeed.packing.pack_report import PackReport

HELP = "write any data as the Zarr store that trains fastest"
DESCRIPTION = (
    "Write the samples of SOURCE (Zarr, NetCDF, HDF5, .npy, Parquet, Arrow, AnnData, a folder of images, WebDataset "
    "shards) as one Zarr store of few large shards. A run that was interrupted goes on with --resume; several machines "
    "share the work with --part or --executor. Exits with 0 if the store is complete, 1 if --verify finds a "
    "difference, 2 for wrong arguments or if something cannot be read or written, 3 if this part is done and others "
    "are not."
)
#: Values of `--kind`; packing/sources/source.py has the same, and takes long to import.
KINDS = "zarr, npy, xarray (NetCDF, GRIB), hdf5, arrow (Parquet), images, webdataset, anndata"
#: The exit status of a part that is not the last one.
EXIT_OTHERS_LEFT = 3


def add_arguments(parser: argparse.ArgumentParser, positive: Callable[[str], int], seed: Callable[[str], int]) -> None:
    """Add the arguments; `positive` and `seed` parse numbers."""
    parser.add_argument("source", nargs="+", metavar="SOURCE", help="paths, URLs or patterns; several are one")
    parser.add_argument("-o", "--out", required=True, metavar="STORE", help="the store, which must not exist")
    parser.add_argument("--kind", metavar="KIND", help=f"what SOURCE is: {KINDS} (default: as its name tells)")
    parser.add_argument("--variables", nargs="+", metavar="NAME", help="arrays or columns (default: all)")
    parser.add_argument("--sample-axis", type=int, metavar="AXIS", help="axis of samples (default: 0)")
    add_sample_dim(parser, "in its place, the name of the dimension")
    add_sel(parser)
    parser.add_argument(
        "--files-are",
        choices=["samples", "runs"],
        help="what each of several files is: a sample, or a run of samples (default: what alone is possible)",
    )
    parser.add_argument("--targets", metavar="FILE", help="of images: a CSV or JSON file with more values for each")
    parser.add_argument(
        "--resize", type=_size, metavar="HxW", help="decode images to uint8 of this size (default: keep their bytes)"
    )
    parser.add_argument(
        "--sample-chunk",
        type=lambda text: None if text == "auto" else positive(text),
        metavar="N",
        help="samples of a chunk (default: auto, about 1 MiB decoded)",
    )
    parser.add_argument("--shard", default="64MiB", metavar="SIZE", help="decoded, or none (default: 64MiB)")
    parser.add_argument(
        "--codec",
        action="append",
        metavar="[NAME=]CODEC",
        help="none, lz4, zstd-3-bitshuffle, plain-zstd-5 and such, or auto: by timing; may be repeated (default: lz4)",
    )
    parser.add_argument(
        "--dtype", action="append", metavar="[NAME=]DTYPE", help="of floats, such as float16 (default: as stored)"
    )
    parser.add_argument("--shuffle", type=seed, metavar="SEED", help="pack in a random order (default: as stored)")
    parser.add_argument(
        "--split", type=_shares, metavar="SHARES", help="groups, such as 0.9,0.1 or train=0.8,val=0.1,test=0.1"
    )
    parser.add_argument("--jobs", type=positive, metavar="N", help="units done at once (default: one for each core)")
    parser.add_argument("--executor", metavar="WHERE", help=EXECUTORS)
    parser.add_argument("--part", type=_part, metavar="I/N", help="do only part I of N, from 0, such as $ID/16")
    parser.add_argument("--resume", action="store_true", help="go on with a run that was interrupted")
    parser.add_argument("--verify", action="store_true", help="prove at the end that no sample is lost or changed")


def run(arguments: argparse.Namespace, storage_options: Mapping[str, Any] | None) -> PackReport:
    """Pack, with a bar on stderr."""
    from zarrfeed.metadata.face.open_data import open as open_data
    from zarrfeed.packing.pack import pack

    with show_progress() as show:
        opening = {
            "sample_dim": arguments.sample_dim,
            "variables": arguments.variables,
            "storage_options": storage_options,
            "zarr_format": arguments.zarr_format,
        }
        source: Any = arguments.source
        selects = bool(arguments.sel) or isinstance(arguments.sample_dim, tuple)
        if selects:
            data = open_data(
                source[0] if len(source) == 1 else source,
                sample_axis=arguments.sample_axis or 0,
                timeout=arguments.timeout,
                **opening,
            )
            source, opening = select(data, arguments.sel), {}
        return pack(
            source,
            arguments.out,
            kind=arguments.kind,
            sample_axis=None if selects else arguments.sample_axis,
            **opening,
            files_are=arguments.files_are,
            targets=arguments.targets,
            resize=arguments.resize,
            timeout=arguments.timeout,
            sample_chunk=arguments.sample_chunk,
            shard=None if arguments.shard == "none" else arguments.shard,
            codec=_by_name(arguments.codec) if arguments.codec else None,
            dtype=_by_name(arguments.dtype) if arguments.dtype else None,
            shuffle=arguments.shuffle,
            split=arguments.split,
            jobs=arguments.jobs,
            executor=arguments.executor,
            part=arguments.part,
            resume=arguments.resume,
            verify=arguments.verify,
            on_progress=lambda now: show(now.done, now.total, now.stage),
        )


def _by_name(texts: list[str]) -> dict[str, str]:
    """Return values by the names before them; "" for one without."""
    pairs = [text.rpartition("=") for text in texts]
    return {name: value for name, _, value in pairs}


def _size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([1-9][0-9]*)(?:x([1-9][0-9]*))?", text, flags=re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}, must be HEIGHTxWIDTH, such as 224x224")
    return int(found[1]), int(found[2] or found[1])


def _shares(text: str) -> tuple[float, ...] | dict[str, float]:
    pairs = [one.rpartition("=") for one in text.split(",")]
    try:
        values = [float(value) for *_, value in pairs]
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}, must be shares such as 0.9,0.1 or train=0.9,val=0.1") from error
    names = [name for name, *_ in pairs]
    if not any(names):
        return tuple(values)
    if not all(names) or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text}: each share needs a name of its own")
    return dict(zip(names, values, strict=True))


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]+)/([1-9][0-9]*)", text, flags=re.ASCII)
    if found is None or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"{text}, must be I/N with I from 0 to N - 1, such as 3/16")
    return int(found[1]), int(found[2])
