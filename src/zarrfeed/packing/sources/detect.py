"""Detection of the kind of source that paths are, and expansion of the patterns among them."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.base.validate import check_choice
from zarrfeed.packing.sources.cells.anndata_elements import is_anndata
from zarrfeed.packing.sources.files import some_of
from zarrfeed.packing.sources.path_patterns import expanded
from zarrfeed.packing.sources.source import KINDS, READ_WHOLE, SourceCall, SourceOptions
from zarrfeed.storage.access.file_kinds import kind_of_content, kind_of_name, refused_by_name
from zarrfeed.storage.access.key_urls import KeyUrl, is_url
from zarrfeed.storage.access.local_files import METADATA_NAMES
from zarrfeed.storage.files.fits import is_fits
from zarrfeed.storage.files.open_file import are_references
from zarrfeed.storage.files.tiff import is_tiff, is_tiff_array

#: Kinds whose own library has to read them from a disk.
_NOT_FROM_URLS = ("anndata", "arrow", "webdataset")
#: Files below a folder that are looked at, at most, to tell the kind of its content.
_LOOKED_AT = 10_000


def call_of(paths: Sequence[str], kind: str | None = None, options: SourceOptions | None = None) -> SourceCall:
    """Return the call that opens a source: its kind, and its paths, absolute, patterns and braces expanded.

    Parameters
    ----------
    paths
        Paths, URLs, and patterns such as `train/*.zarr` or `train-{000..099}.tar`.
    kind
        Name of the kind in `KINDS`. None: the kind that suffixes and contents of the paths say.
    options
        Options of the source. None: the defaults.

    Raises
    ------
    ConfigError
        If the paths are of no known kind, or of several, or one is there twice.
    StoreReadError
        If there is nothing at a path, or nothing that a pattern matches.

    Examples
    --------
    >>> import numpy as np, pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for i in range(3):
    ...         np.save(f"{folder}/{i}.npy", np.zeros(4))
    ...     call = call_of([f"{folder}/*.npy"])
    ...     call.kind, [pathlib.Path(path).name for path in call.paths]
    ('npy', ['0.npy', '1.npy', '2.npy'])
    """
    if not paths:
        raise ConfigError("no source is given, must be at least one path or URL")
    if kind is not None:
        check_choice("kind", kind, tuple(KINDS))
    options = options or SourceOptions()
    found = [one for path in paths for one in expanded(path, options)]
    twice = [path for path, count in Counter(found).items() if count > 1]
    if twice:
        raise ConfigError(f"sources: got {some_of(twice)} twice; give each once")
    by_kind: dict[str, list[str]] = {}
    for path in found:
        by_kind.setdefault(kind or _kind_of(path, is_alone=len(found) == 1), []).append(path)
    if len(by_kind) > 1:
        listed = ", ".join(f"{name} ({some_of(which, 1)})" for name, which in by_kind.items())
        raise ConfigError(f"sources are of several kinds: {listed}; pack one kind at a time")
    ((kind, found),) = by_kind.items()
    if kind == "webdataset":
        found = [one for path in found for one in _archives(path)]
    if options.targets is not None:
        if kind != "images":
            raise ConfigError(f"targets are for folders of images, and the source is of the kind {kind}")
        options = replace(options, targets=_existing(options.targets))
    if options.files_are == "samples" and kind not in READ_WHOLE:
        raise ConfigError(
            f"files_are = 'samples' is for files of {', '.join(READ_WHOLE)}, and the source is of the kind {kind}, "
            "which says itself what its samples are"
        )
    return SourceCall(kind, tuple(found), options)


def _existing(path: str) -> str:
    (found,) = expanded(path, SourceOptions(), patterns=False)
    return found


def _kind_of(path: str, *, is_alone: bool) -> str:
    """Return the kind of the source at a path, which exists, in a file, or at a URL.

    Arrays in files, files at URLs, and references are read as `zarrfeed.open` reads them. A TIFF that is the only
    source is an array, unless it is a picture; a FITS file that is the only source is one.

    Raises
    ------
    ConfigError
        If it is of none, or must not be read so.
    """
    named = kind_of_name(KeyUrl.of(path).key if is_url(path) else path)
    if is_url(path):
        if named in _NOT_FROM_URLS:
            raise ConfigError(f"{printable(path)}: such files are not packed from URLs; copy it to this machine first")
        return "zarr"
    if Path(path).is_dir():
        return _kind_of_folder(path)
    if not Path(path).exists() or are_references(Path(path)):
        return "zarr"
    if is_alone and named in (None, "images") and is_tiff(Path(path)) and is_tiff_array(Path(path)):
        return "zarr"
    if is_alone and named is None and is_fits(Path(path)):
        return "zarr"
    refused = refused_by_name(path)
    kind = (named if named != "zarr" else None) or (None if refused else kind_of_content(path)) or named
    if kind is None:
        what = refused or f"is of no known kind; kind must be one of {', '.join(KINDS)}"
        raise ConfigError(f"{printable(path)}: {what}")
    return kind


def _is_store(folder: str) -> bool:
    return folder.endswith(".zarr") or any(Path(folder, name).exists() for name in METADATA_NAMES)


def _kind_of_folder(folder: str) -> str:
    if _is_store(folder):
        return "anndata" if is_anndata(folder) else "zarr"
    examples: dict[str, str] = {}
    for path, kind in islice(_below(folder), _LOOKED_AT):
        if kind is not None:
            examples.setdefault(kind, path)
    where = printable(folder)
    if len(examples) > 1:
        listed = ", ".join(f"{kind} ({printable(path)})" for kind, path in examples.items())
        raise ConfigError(f"{where}: has files of several kinds: {listed}; give a pattern such as *.npy, or a kind")
    if not examples:
        raise ConfigError(f"{where}: nothing in it is of a known kind; kind must be one of {', '.join(KINDS)}")
    ((kind, path),) = examples.items()
    if kind == "zarr":
        pattern = Path(path).parent / f"*{Path(path).suffix}"
        raise ConfigError(f"{where}: has stores in it; name them by a pattern such as {printable(pattern)}")
    return kind


def _below(folder: str) -> Iterator[tuple[str, str | None]]:
    """Yield files and stores below a folder, with the kind that the name says; hidden ones are passed over."""
    entered = set()
    for root, folders, files in os.walk(folder, followlinks=True):
        status = Path(root).stat()
        if (status.st_dev, status.st_ino) in entered:  # by a link
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        stores = {name for name in folders if _is_store(f"{root}/{name}")}
        folders[:] = [name for name in folders if name not in stores]
        yield from ((f"{root}/{name}", "zarr") for name in sorted(stores))
        for name in sorted(files):
            if not name.startswith("."):
                yield f"{root}/{name}", kind_of_name(name)


def _archives(path: str) -> list[str]:
    """Return the tar archives in a folder, sorted; the path of a file as it is."""
    if not Path(path).is_dir():
        return [path]
    found = sorted(str(one) for one in Path(path).iterdir() if one.suffix == ".tar")
    if not found:
        raise StoreReadError(errno.ENOENT, f"{printable(path)}: no .tar file is in it")
    return found
