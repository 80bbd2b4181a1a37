"""FITS files as a `TableStore`: a file with one image or table is an array, one with several a group of them.

Invariant: the values of an array are those that astropy reads, and a header that lies is an error that names the file.
Source: FITS Standard 4.0, sections 3 (organisation), 4 (headers), 5.2 and 5.3 (data), 7 (extensions).
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from zarrfeed.base.errors import StoreReadError, UnsupportedError
from zarrfeed.base.json_attributes import json_attributes
from zarrfeed.storage.files.chunk_table import ChunkTable, chunks_of_rows
from zarrfeed.storage.files.data_file import AnyFile, FarFile, file_of, name_in
from zarrfeed.storage.files.fits_headers import FitsUnit, read_units
from zarrfeed.storage.files.table_store import TableStore, array_document

#: The shape, the dtype, attributes and codecs of an array.
_Layout: TypeAlias = tuple[tuple[int, ...], np.dtype[Any], dict[str, Any], Sequence[Any]]
_MAGIC = b"SIMPLE  ="
#: BITPIX -> the dtype of items.
_DTYPES = {8: "u1", 16: ">i2", 32: ">i4", 64: ">i8", -32: ">f4", -64: ">f8"}
#: BITPIX -> BZERO of integers of the other signedness, and their dtype.
_OTHER_SIGN = {8: (-128, "i1"), 16: (1 << 15, "u2"), 32: (1 << 31, "u4")}
_ZERO_OF_UINT64 = 1 << 63


def is_fits(path: Path | FarFile) -> bool:
    """Return whether a file is a FITS file, by its content.

    Raises
    ------
    OSError
        If it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def open_fits(path: Path | FarFile) -> TableStore:
    """Return a FITS file as a store.

    Raises
    ------
    StoreReadError
        If it is damaged, or incomplete.
    UnsupportedError
        If its only image or table cannot be read; says why.
    """
    file = file_of(path)
    store = TableStore(file, "FITS", read_table)
    units = _units_by_path(file)
    if "" not in units:
        store.add_group("", {})
    for name, unit in units.items():
        try:
            shape, dtype, attributes, codecs = _layout_of(unit)
        except UnsupportedError as error:
            store.refused[name] = str(error)
            continue
        chunks, stored = chunks_of_rows(shape, dtype.itemsize), json_attributes(unit.cards)
        is_image = unit.kind == "IMAGE" and len(shape) > 1
        named = {"_ARRAY_DIMENSIONS": [*[""] * (len(shape) - 2), "y", "x"]} if is_image else {}
        store.add_array(name, array_document(shape, chunks, dtype, codecs=codecs), {**stored, **attributes, **named})
    store.check_readable("")
    return store


def read_table(file: AnyFile, path: str) -> ChunkTable:
    """Return where the rows of an image or a table lie in a file.

    Raises
    ------
    StoreReadError
        If the file is damaged.
    """
    unit = _units_by_path(file)[path]
    shape, dtype, *_ = _layout_of(unit)
    return ChunkTable.of_rows(file, name_in(file, path), shape, dtype.itemsize, unit.begin)


def _units_by_path(file: AnyFile) -> dict[str, FitsUnit]:
    """Return the units that have data: the only one as "", several by EXTNAME, by "EXTNAME,EXTVER", or by number."""
    units = [one for one in read_units(file) if one.num_bytes]
    if not units:
        raise StoreReadError(errno.EINVAL, f"{file}: it has no image and no table")
    if len(units) == 1:
        return {"": units[0]}
    names = Counter(one.name for one in units)
    versions = Counter((one.name, one.version) for one in units)
    made = {}
    for one in units:
        name = one.name if names[one.name] == 1 else f"{one.name},{one.version}"
        is_name = one.name.strip(".") and "/" not in one.name and versions[one.name, one.version] == 1
        is_free = name not in made and not name.isdecimal()  # a number is that of a unit without a name
        made[name if is_name and is_free else str(one.number)] = one
    return made


def _layout_of(unit: FitsUnit) -> _Layout:
    """Return the layout of an image or a table. Raises as `_image_of` and `_rows_of`."""
    return _image_of(unit) if unit.kind == "IMAGE" else _rows_of(unit)


def _image_of(unit: FitsUnit) -> _Layout:
    """Return the shape, the dtype, attributes and codecs of an image; a plane is one sample of its own.

    Raises
    ------
    UnsupportedError
        If it has random groups, or whole numbers that floats do not hold.
    """
    bits, cards = unit.item_bits, unit.cards
    if cards.get("GROUPS") is True and unit.number == 0:
        raise UnsupportedError("has random groups, which are read by astropy: write the arrays of it as Zarr or .npy")
    if bits not in _DTYPES:
        raise UnsupportedError(f"BITPIX = {bits}, must be one of {', '.join(map(str, _DTYPES))}")
    dtype, shape = np.dtype(_DTYPES[bits]), unit.sizes[::-1]
    shape = (1, *shape) if len(shape) == 2 else shape
    scale, zero = cards.get("BSCALE", 1), cards.get("BZERO", 0)
    if not {type(scale), type(zero)} <= {int, float}:
        raise UnsupportedError(f"BSCALE = {scale!r} and BZERO = {zero!r}, must be numbers")
    other = _OTHER_SIGN.get(bits)
    if (scale, zero) == (1, 0):
        return shape, dtype, {}, []
    if scale == 1 and other is not None and zero == other[0]:
        made = np.dtype(other[1])
        codec = {"id": "fixedscaleoffset", "offset": zero, "scale": 1, "dtype": made.str, "astype": dtype.str}
        return shape, made, {}, [codec, None]
    if bits == 64 and scale == 1 and zero == _ZERO_OF_UINT64:
        raise UnsupportedError("has items of uint64, which FITS stores as int64 minus 2**63: write them as int64")
    blank = cards.get("BLANK") if bits > 0 else None
    fill = {} if blank is None else {"_FillValue": blank}
    return shape, dtype, {"scale_factor": float(scale), "add_offset": float(zero), **fill}, []


def _rows_of(unit: FitsUnit) -> _Layout:
    """Return the shape, the dtype, attributes and codecs of a table, whose rows are records.

    Raises
    ------
    UnsupportedError
        If it is no binary table, holds a compressed image, or has columns that are not stored as NumPy has them.
    """
    cards = unit.cards
    if unit.kind != "BINTABLE":
        what = "a table of text, of fixed columns" if unit.kind == "TABLE" else f"an extension {unit.kind!r}"
        raise UnsupportedError(f"is {what}: write it as a binary table, or as Parquet, and pack that")
    if cards.get("ZIMAGE") is True:
        by = cards.get("ZCMPTYPE", "an unknown method")
        raise UnsupportedError(f"is an image that is compressed in tiles ({by}): `funpack FILE` writes it as it was")
    if len(unit.sizes) != 2:
        raise UnsupportedError(f"is a table of {len(unit.sizes)} axes, must have 2: it is damaged")
    members = [_column_of(unit, number) for number in range(1, unit.count_of("TFIELDS") + 1)]
    try:
        dtype = np.dtype(members)
    except (ValueError, TypeError, OverflowError) as error:
        raise UnsupportedError(f"its columns are no record: {error}") from error
    row_bytes, rows = unit.sizes
    if dtype.itemsize != row_bytes:
        raise UnsupportedError(f"its columns have {dtype.itemsize} bytes, its rows {row_bytes}: it is damaged")
    return (rows,), dtype, {}, []


_KINDS = {"B": "u1", "I": ">i2", "J": ">i4", "K": ">i8", "E": ">f4", "D": ">f8", "C": ">c8", "M": ">c16"}
_NOT_READ = {
    "L": "logical values, which are letters in FITS",
    "X": "bits",
    "P": "arrays of any length",
    "Q": "arrays of any length",
}


def _column_of(unit: FitsUnit, number: int) -> tuple[Any, ...]:
    """Return the member of a record for a column: name, dtype, shape."""
    cards = unit.cards
    form = str(cards.get(f"TFORM{number}", "")).strip()
    name = str(cards.get(f"TTYPE{number}", "")).strip() or f"col{number}"
    digits = form[: len(form) - len(form.lstrip("0123456789"))]
    kind, count = form[len(digits) : len(digits) + 1], int(digits or 1)
    scale, zero = cards.get(f"TSCAL{number}", 1), cards.get(f"TZERO{number}", 0)
    if (scale, zero) != (1, 0):
        what = f"is stored as scaled numbers (TSCAL{number}, TZERO{number})"
    else:
        what = f"has {_NOT_READ.get(kind, f'the format {form!r}')}"
    if (scale, zero) != (1, 0) or kind not in {*_KINDS, "A"} or not count:
        raise UnsupportedError(f"its column {name!r} {what}: write the columns that you need as Parquet or Zarr")
    if kind == "A":
        return name, f"S{count}"
    return name, _KINDS[kind], unit.axes_of(number, count)
