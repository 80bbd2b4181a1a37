"""Files and folders that are no Zarr node, and the line that reads each: the error of `zarrfeed.open` for such a path.

Nothing is read but names, the first bytes of files, and the members of a tar archive up to a bound.
"""

from __future__ import annotations

import errno
import os
import shlex
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError, printable
from zarrfeed.storage.access.file_kinds import CALLED, kind_of_content, kind_of_name, refused_by_name
from zarrfeed.storage.access.local_files import NODE_NAMES, is_node, lacking
from zarrfeed.storage.files.inside_path import split_at_file
from zarrfeed.storage.files.open_file import are_references, is_read_in_place

#: Files below a folder, or in an archive, that are looked at to tell what is in it.
_LOOKED_AT = 1000
#: Folders above a file that are looked at to find the node that it belongs to.
_MOST_FOLDERS = 32
_NOTHING = "no Zarr array is there"

_FOLDERS = {
    "anndata": "AnnData files in HDF5",
    "hdf5": "HDF5 files",
    "xarray": "NetCDF or GRIB files",
    "npy": "files of NumPy arrays",
    "arrow": "Parquet, Arrow or Feather files",
    "webdataset": "tar archives",
    "images": "images",
}
#: Names that tell a folder of another format -> what it is, and how it is read.
_OTHER_FOLDERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("snapshots", "manifests"),
        "the folder is an Icechunk repository: give the repository itself, "
        "icechunk.Repository.open(icechunk.local_filesystem_storage({path}))",
    ),
    (("attributes.json",), "the folder is an N5 store: write it as Zarr first, such as by zarr.copy of zarr-python 2"),
)

#: Endings of files that hold numbers and say nothing of their dtype.
_RAW = (".bin", ".dat", ".raw")


def not_zarr(source: str | Path, path: Path) -> ZarrfeedError:
    """Return the error for a path where zarr-python finds no array and no group.

    Parameters
    ----------
    source
        The path, or the file:// URL, as the user gave it.
    path
        The path that it names.

    Returns
    -------
    `ConfigError` for a file, which is of another kind; `StoreReadError` (ENOENT) where there is no file.
    """
    name = printable(source)
    if not path.exists():
        return StoreReadError(errno.ENOENT, f"{name}: {_NOTHING}{_missing(path)}")
    inside = _inside_of(path)
    if path.is_dir():
        text = inside or _folder(path)
        return StoreReadError(errno.ENOENT, f"{name}: {_NOTHING}: {text}")
    return ConfigError(f"{name}: {_NOTHING}: {inside or _file(path)}")


def _missing(path: Path) -> str:
    if os.path.lexists(path):
        return ": it is a link to something that is missing"
    if path.parts[:1] and path.parts[0].startswith("~"):
        return f": Python does not replace the ~ of a path; give {str(path.expanduser())!r}"
    in_place, inside = split_at_file(path)
    if inside:
        shown = f"zarrfeed info {_quoted(in_place)} --tree"
        return f": the file {printable(in_place)} has no array {inside!r}; `{shown}` draws what lies in it"
    for parent in path.parents:
        if parent.is_file():
            return f": {printable(parent)} is a file, and no folder"
    return f": {lacking(path)}"


def _inside_of(path: Path) -> str:
    """Say which Zarr node a file or a folder belongs to; "" if to none."""
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - resolving links would change the names
    for folder in islice(absolute.parents, _MOST_FOLDERS):
        if is_node(folder):
            shown = folder if path.is_absolute() else Path(os.path.relpath(folder))
            return f"it is a part of the Zarr store {printable(shown)}: give that path"
    return ""


def _file(path: Path) -> str:
    if not path.is_file():
        return "it is neither a regular file nor a folder"
    if not path.stat().st_size:
        return "the file is empty"
    content = kind_of_content(path)
    named = kind_of_name(path.name)
    kind = named if named in CALLED and content != "zarr" else content
    if kind is None:
        kind = named
    if content == "zarr":
        return f"it is a zip file without a Zarr store: unzip it, {_or_objects()}"
    if content == "webdataset" and _has_zarr(path):
        folder = printable(shlex.quote(str(path.parent)))
        return f"it is a tar archive of a Zarr store, which has to be unpacked: tar -xf {_quoted(path)} -C {folder}"
    if kind in CALLED:
        return f"it is {CALLED[kind]}; {_packed(path)}"
    if are_references(path):
        return "it is a file of references (kerchunk, VirtualiZarr) without a document of Zarr at its root"
    refused = refused_by_name(path.name)
    if refused is not None:
        return f"the file {refused}"
    if path.suffix in _RAW:
        call = f"zarrfeed.open(np.memmap({_quoted(path)}, dtype='uint16', mode='r'))"
        return f"it may hold bare numbers: {call} reads these"
    return f"it is a file of no kind that zarrfeed knows; {_or_objects()}"


def _folder(path: Path) -> str:
    with suppress(OSError):
        names = sorted(os.listdir(path))  # noqa: PTH208 - names are all that is needed
        if not names:
            return "the folder is empty"
        for marks, text in _OTHER_FOLDERS:
            if set(marks) <= set(names):
                return text.format(path=repr(str(path)))
        stores = [name for name in names[:_LOOKED_AT] if is_node(path / name)]
        if stores:
            ends = {Path(name).suffix for name in stores}
            pattern = path / f"*{ends.pop()}" if len(ends) == 1 and len(stores) > 1 else path / stores[0]
            several = "give one of them, or several as a pattern" if len(stores) > 1 else "give that path"
            listed = ", ".join(map(repr, map(printable, stores[:3]))) + ", ..." * (len(stores) > 3)
            return f"the folder has Zarr stores in it, {listed}: {several}, such as {str(pattern)!r}"
        below = _names_below(path)
        if not below:
            return "the folder has folders in it, and no file"
        kinds = {kind_of_name(name) for name in below} - {None, "zarr"}
        if len(kinds) == 1:
            (kind,) = kinds
            in_place = _pattern_in_place(path, names)
            if in_place:
                samples = f", if each has samples; {_packed(path)} otherwise" if kind == "npy" else ""
                return f"the folder has {_FOLDERS[str(kind)]} in it: give them as a pattern, {in_place!r}{samples}"
            objects = f", or read them as they are: {_objects(path)}" if kind == "images" else ""
            return f"the folder has {_FOLDERS[str(kind)]} in it; {_packed(path)}{objects}"
        if kinds:
            listed = ", ".join(sorted(_FOLDERS[str(kind)] for kind in kinds))
            return f"the folder has {listed} in it; `zarrfeed pack` writes files of one kind as Zarr"
    wanted = ", ".join(NODE_NAMES)
    return f"the folder has none of {wanted}; {_or_objects()}"


def _pattern_in_place(folder: Path, names: Iterable[str]) -> str:
    """Return the pattern of the files in a folder; "" unless the first one is of a format that is read in place."""
    for name in names:
        if kind_of_name(name) is not None and (folder / name).is_file():
            return str(folder / f"*{Path(name).suffix}") if is_read_in_place(folder / name) else ""
    return ""


def _names_below(folder: Path) -> list[str]:
    walked = islice(os.walk(folder), _LOOKED_AT)
    names = (name for _, _, files in walked for name in files if not name.startswith("."))
    return list(islice(names, _LOOKED_AT))


def _has_zarr(path: Path) -> bool:
    with suppress(tarfile.TarError, OSError, EOFError, ValueError), tarfile.open(path) as archive:
        return any(Path(member.name).name in NODE_NAMES for member in islice(archive, _LOOKED_AT))
    return False


def _packed(path: Path) -> str:
    """Return the line that writes a file or a folder as Zarr."""
    out = path.with_suffix(".zarr") if path.name and not path.is_dir() else path.with_name(f"{path.name}.zarr")
    if out == path:
        out = path.with_name("NEW.zarr")
    elif out.exists():
        return f"give {str(out)!r} beside it, if that was made of it; else write it as Zarr: {_command(path, None)}"
    return f"write it as Zarr once, and open that: {_command(path, out)}"


def _command(path: Path, out: Path | None) -> str:
    return f"`zarrfeed pack {_quoted(path)} -o {'NEW.zarr' if out is None else _quoted(out)}`"


def _quoted(path: Path) -> str:
    return printable(shlex.quote(str(path)))


def _objects(path: Path) -> str:
    return f"zarrfeed.objects.ObjectIterableDataset({str(path)!r}, decode='image', batch_size=64)"


def _or_objects() -> str:
    return "a folder of files of any kind is read by zarrfeed.objects.ObjectIterableDataset(folder, decode=function)"
