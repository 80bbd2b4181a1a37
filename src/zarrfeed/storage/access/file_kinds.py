"""The kind of a file, by its name or by its first bytes: what it is read as, and what is said of files that are not."""

from __future__ import annotations

from pathlib import Path, PurePath

#: Names of images end in these, in lower case: torchvision's list, and more that Pillow decodes.
IMAGE_SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif", ".jp2", ".avif")
)
_KIND_OF_SUFFIX: dict[str, str] = {
    **dict.fromkeys((".zarr", ".zip"), "zarr"),
    **dict.fromkeys((".npy", ".npz"), "npy"),
    **dict.fromkeys((".nc", ".nc4", ".cdf", ".grib", ".grib2", ".grb", ".grb2"), "xarray"),
    **dict.fromkeys((".h5", ".hdf5"), "hdf5"),
    **dict.fromkeys((".parquet", ".arrow", ".feather"), "arrow"),
    ".tar": "webdataset",
    ".h5ad": "anndata",
    **dict.fromkeys(IMAGE_SUFFIXES, "images"),
}
#: Kind -> what people call such a file.
CALLED = {
    "anndata": "an AnnData file in HDF5",
    "hdf5": "an HDF5 file",
    "xarray": "a NetCDF or GRIB file",
    "npy": "a file of NumPy arrays",
    "arrow": "a Parquet, Arrow or Feather file",
    "webdataset": "a tar archive",
    "images": "an image",
}
_ZIP_MAGIC = (b"PK\x03\x04", b"PK\x05\x06")  # the second one begins an empty archive
#: First bytes of files whose names do not tell.
_KIND_OF_MAGIC: dict[bytes, str] = {
    b"\x93NUMPY": "npy",
    b"CDF\x01": "xarray",
    b"CDF\x02": "xarray",
    b"CDF\x05": "xarray",
    b"GRIB": "xarray",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"PAR1": "arrow",
    b"ARROW1": "arrow",
}
_COMPRESSED = "is compressed: decompress it first, as samples are read at any offset in it"
_TABLE = "is a table; give it as targets of a folder of images, or write it as Parquet"
#: Suffixes that are not read -> what to do.
_REFUSED: dict[str, str] = {
    **dict.fromkeys((".gz", ".tgz", ".bz2", ".xz", ".zst", ".lz4"), _COMPRESSED),
    **dict.fromkeys((".csv", ".tsv", ".json", ".jsonl"), _TABLE),
    ".dmrpp": "is DMR++, which VirtualiZarr reads: give the ManifestStore that its DMRPPParser returns",
}
#: The magic of a tar archive's header, and its offset.
_USTAR = b"ustar"
_USTAR_AT = 257


def kind_of_name(path: str) -> str | None:
    """Return the kind of source that `zarrfeed.pack` takes a file of this name for, or None.

    >>> kind_of_name("cells.H5AD"), kind_of_name("x.zip"), kind_of_name("notes.txt")
    ('anndata', 'zarr', None)
    """
    return _KIND_OF_SUFFIX.get(_suffix_of(path))


def refused_by_name(path: str) -> str | None:
    """Return why a file of this name is not packed, to follow its name in a message; None if nothing is known."""
    return _REFUSED.get(_suffix_of(path))


def kind_of_content(path: str | Path) -> str | None:
    """Return the kind that the first bytes of a file tell, or None; "zarr" for a zip archive of any content.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    begin = _first_bytes(path)
    if begin[_USTAR_AT:] == _USTAR:
        return "webdataset"
    if begin.startswith(_ZIP_MAGIC):
        return "zarr"
    return next((kind for magic, kind in _KIND_OF_MAGIC.items() if begin.startswith(magic)), None)


def not_zarr_url(url: str) -> str:
    """Return the end of a message if no Zarr node is at a URL that names a file of another kind; else "".

    >>> not_zarr_url("s3://bucket/cells.h5ad")
    '; the name is that of an AnnData file in HDF5: copy it to this machine, and write it as Zarr by `zarrfeed pack`'
    """
    kind = kind_of_name(url)
    if _suffix_of(url) == ".zip":
        return "; zip files are read from local paths only: copy it to this machine first"
    if kind not in CALLED:
        return ""
    return f"; the name is that of {CALLED[kind]}: copy it to this machine, and write it as Zarr by `zarrfeed pack`"


def is_zip(path: str | Path) -> bool:
    """Return whether a file begins as a zip archive does.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    return _first_bytes(path).startswith(_ZIP_MAGIC)


def _first_bytes(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_USTAR_AT + len(_USTAR))


def _suffix_of(path: str) -> str:
    return PurePath(path).suffix.lower()
