"""`zarrfeed index`: its arguments, and the index files that it writes.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from zarrfeed.base.errors import ConfigError, printable

HELP = "keep where the chunks of a file lie, so that it opens at once"
DESCRIPTION = (
    "Read the metadata of each FILE (HDF5, NetCDF, references in JSON, ...), list its chunks, and keep both in an "
    "index: FILE.index beside it, which zarrfeed.open finds by itself, or another path, which is opened in place of "
    "FILE. An index whose file has changed since is not used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("paths", nargs="+", metavar="FILE", help="a file that is read in place")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="the index, or a folder for those of several files"
    )


def run(arguments: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Write the indexes; return the exit status."""
    from zarrfeed.storage.files.file_index import write_index
    from zarrfeed.storage.files.open_file import open_without_index

    outs = _outputs(list(map(Path, arguments.paths)), arguments.output)
    for source, out in outs.items():
        store = open_without_index(source)
        chunks = write_index(store, out)
        say(f"{printable(out)}: {chunks} chunks of {len(store.array_paths)} arrays, {out.stat().st_size} bytes")
    return 0


def _outputs(sources: list[Path], output: Path | None) -> dict[Path, Path]:
    """Return the path of the index of each file.

    Raises
    ------
    ConfigError
        If a source is no file, or something else than an index lies where an index is to be written.
    """
    from zarrfeed.storage.files.file_index import beside, is_index

    found = {}
    for source in sources:
        if not source.is_file():
            what = "is a folder, must be a file" if source.exists() else "does not exist"
            raise ConfigError(f"{printable(source)}: {what}")
        out = beside(source)
        if output is not None:
            out = output / out.name if output.is_dir() else output
        if out.exists() and not is_index(out):
            raise ConfigError(f"{printable(out)}: is no index, and is not written over; name another path by --output")
        found[source] = out
    if len(set(found.values())) < len(found):
        raise ConfigError(f"{printable(output)}: would be the index of several files, must be a folder")
    return found
