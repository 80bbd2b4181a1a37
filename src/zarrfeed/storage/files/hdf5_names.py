"""Names and attributes in HDF5 files, as HDF5 and netCDF-4 write them: dimensions, and attributes as JSON has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from zarrfeed.base.json_attributes import json_attributes

#: netCDF-4 numbers the scales of its dimensions by this attribute.
DIMENSION_NUMBER = "_Netcdf4Dimid"
#: Attributes by which HDF5 and netCDF-4 connect datasets with their dimensions.
_INTERNAL = (
    *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST", "DIMENSION_LABELS"),
    *(DIMENSION_NUMBER, "_Netcdf4Coordinates", "_NCProperties", "_nc3_strict"),
)
#: Members of the matrix of counts that Cell Ranger (10x Genomics) writes: features along the rows, cells one by one.
_OF_CELL_RANGER = {"data", "indices", "indptr", "shape", "barcodes"}
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
#: netCDF-4 puts this before the name of a variable that has the name of a dimension, and is not along it alone.
_NOT_ALONG = "_nc4_non_coord_"


def member_name(link: str) -> str:
    """Return what users call a dataset or a group, by the name of its link in HDF5.

    >>> member_name("_nc4_non_coord_time"), member_name("t2m")
    ('time', 't2m')
    """
    return link.removeprefix(_NOT_ALONG)


def link_to(group: Any, name: str) -> str:
    """Return the link of a member that users know by a name: that of netCDF-4's variable, before its dimension's."""
    return _NOT_ALONG + name if _NOT_ALONG + name in group else name


def is_dimension_alone(dataset: Any) -> bool:
    """Return whether netCDF-4 wrote a dataset for the name of a dimension, without values."""
    return bytes(np.asarray(dataset.attrs.get("NAME", b"")).astype("S").item()).startswith(_NO_VARIABLE)


def dims_of(dataset: Any) -> tuple[str | None, ...]:
    """Return the names of a dataset's dimensions: labels, or the names of their scales."""
    if dataset.is_scale and len(dataset.shape) == 1:
        return (dataset.name.rpartition("/")[2],)
    names = []
    for dim in dataset.dims:
        scale = dim[0].name if not dim.label and len(dim) else None
        names.append(dim.label or (scale.rpartition("/")[2] if scale else None))
    return tuple(names)


def attributes_of_group(group: Any) -> dict[str, Any]:
    """Return the attributes of a group; those of a sparse matrix in AnnData for a matrix of Cell Ranger.

    Its columns are cells, and are stored one after another, so that it is a matrix of AnnData with a row for each cell.
    """
    found = attributes_of(group)
    if not set(group) >= _OF_CELL_RANGER or "encoding-type" in found:
        return found
    try:
        features, cells = (int(size) for size in group["shape"][()])
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        return found  # it is no such matrix, or a damaged one
    return {**found, "encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [cells, features]}


def attributes_of(node: Any, dtype: np.dtype[Any] | None = None) -> dict[str, Any]:
    """Return the attributes of a dataset or a file as JSON, without those that connect datasets."""
    found = {}
    for name in node.attrs:
        if name in _INTERNAL:
            continue
        try:
            value = node.attrs[name]
        except (OSError, TypeError):
            continue  # of a type that h5py does not read
        # netCDF-4 stores numbers as lists of one
        found[name] = value[0] if isinstance(value, np.ndarray) and value.shape == (1,) else value
    return json_attributes(found, dtype)
