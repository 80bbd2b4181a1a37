"""Datasets of HDF5 whose chunks h5py decodes: text of any length, and items or filters that no codec of Zarr reads.

Invariant: an array has the values that h5py reads of its dataset. Its document has no compressor, since its chunks are
encoded when they are read: text as vlen-utf8, other items as NumPy has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numcodecs import VLenBytes

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.storage.files.data_file import AnyFile
from zarrfeed.storage.files.hdf5_library import chunks_of, dataset_at, is_text, load_filters, opened_file, shape_of
from zarrfeed.storage.files.table_store import array_document, plain_dtype, text_document


def document_of_values(dataset: Any) -> dict[str, Any]:
    """Return the document of Zarr v2 for the values that h5py reads of a dataset.

    Raises
    ------
    UnsupportedError
        If they have no place in Zarr; says why.
    """
    try:
        dtype = dataset.dtype
    except TypeError as error:  # such as points in time
        raise UnsupportedError(f"h5py cannot read its items: {error}") from error
    if not is_text(dataset):
        return array_document(shape_of(dataset), chunks_of(dataset), plain_dtype(dtype), dataset.fillvalue)
    fill = dataset.fillvalue
    return text_document(shape_of(dataset), chunks_of(dataset), fill.decode("utf-8", "replace") if fill else "")


def read_values(file: AnyFile, path: str, index: Sequence[int]) -> bytes | None:
    """Return the bytes of a chunk as its document says, padded to its shape; None if it lies outside of the array.

    Raises
    ------
    StoreReadError
        If the file is damaged.
    """
    with opened_file(file, path) as one:
        dataset = dataset_at(one, path)
        chunk = chunks_of(dataset)
        begins = tuple(number * length for number, length in zip(index, chunk, strict=True))
        if any(begin >= length for begin, length in zip(begins, dataset.shape, strict=True)):
            return None
        load_filters(dataset)
        values = dataset[tuple(slice(begin, begin + length) for begin, length in zip(begins, chunk, strict=True))]
        text, fill = is_text(dataset), dataset.fillvalue
        padded: Any = np.full(chunk, fill or b"", object) if text else np.full(chunk, fill, plain_dtype(dataset.dtype))
    padded[tuple(map(slice, np.shape(values)))] = values
    return bytes(VLenBytes().encode(padded.reshape(-1))) if text else padded.tobytes()
