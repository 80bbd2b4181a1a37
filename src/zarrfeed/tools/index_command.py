"""`zarrfeed index`: its arguments, and the index files that it writes.

Imports nothing that takes long before it runs: completion in shells imports this module, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zarrfeed.base.errors import ConfigError, printable

if TYPE_CHECKING:
    from zarrfeed.storage.access.access import StoreAccess
    from zarrfeed.storage.files.table_store import TableStore

HELP = "keep where the chunks of a file lie, so that it opens at once"
DESCRIPTION = (
    "Read the metadata of each FILE (HDF5, NetCDF, references in JSON, ...), list its chunks, and keep both in an "
    "index: FILE.index beside it, which zarrfeed.open finds by itself, or another path, which is opened in place of "
    "FILE. An index whose file has changed since is not used."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "paths", nargs="+", metavar="FILE", help="a file that is read in place: a path, a URL, or a pattern in quotes"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="PATH", help="the index, or a folder for those of several files"
    )


def run(arguments: argparse.Namespace, storage_options: Mapping[str, Any] | None, say: Callable[[str], None]) -> int:
    """Write the indexes; return the exit status."""
    from zarrfeed.metadata.stores.many_stores import as_stores
    from zarrfeed.spec.description.error_policy import Faults
    from zarrfeed.storage.access.access import StoreAccess
    from zarrfeed.storage.files.file_index import write_index

    access = StoreAccess(Faults(timeout=arguments.timeout), storage_options)
    sources = [str(file) for path in arguments.paths for file in as_stores(path, access) or [path]]
    for source, out in _outputs(sources, arguments.output).items():
        store = _open(source, access)
        chunks = write_index(store, out)
        say(f"{printable(out)}: {chunks} chunks of {len(store.array_paths)} arrays, {out.stat().st_size} bytes")
    return 0


def _open(source: str, access: StoreAccess) -> TableStore:
    from zarrfeed.storage.access.far_files import open_far_file
    from zarrfeed.storage.access.key_urls import is_url
    from zarrfeed.storage.files.open_file import open_without_index

    if not is_url(source):
        return open_without_index(Path(source))
    store = open_far_file(source, access)
    if store is None:
        raise ConfigError(f"{printable(source)}: does not exist, or cannot be read")
    return store


def _outputs(sources: list[str], output: Path | None) -> dict[str, Path]:
    """Return the path of the index of each file.

    Raises
    ------
    ConfigError
        If a source is no file, or something else than an index lies where an index is to be written.
    """
    from zarrfeed.storage.access.key_urls import is_url
    from zarrfeed.storage.files.file_index import beside, is_index
    from zarrfeed.storage.files.inside_path import split_at_file

    found = {}
    for source in sources:
        path = Path(source)
        if is_url(source) and output is None:
            raise ConfigError(f"{printable(source)}: name the path of the index, --output")
        if not is_url(source) and not path.is_file():
            what = "is a folder, must be a file" if path.exists() else "does not exist"
            file, inside = split_at_file(path)
            if inside:
                what = f"lies in a file; an index is of all of it: zarrfeed index {printable(file)}"
            raise ConfigError(f"{printable(source)}: {what}")
        out = beside(path)
        if output is not None:
            out = output / out.name if output.is_dir() else output
        if out.exists() and not is_index(out):
            raise ConfigError(f"{printable(out)}: is no index, and is not written over; name another path by --output")
        found[source] = out
    if len(set(found.values())) < len(found):
        raise ConfigError(f"{printable(output)}: would be the index of several files, must be a folder")
    return found
