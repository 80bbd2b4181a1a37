"""The numbers of a small array that describes others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import StoreReadError, printable
from zarrfeed.storage.codec_configs import as_meant
from zarrfeed.storage.errors import errno_of, reason_of


def read_values(array: zarr.Array[Any]) -> npt.NDArray[Any]:
    """Return the numbers of an array.

    Raises
    ------
    StoreReadError
        If it cannot be read.
    ConfigError
        If the configuration of a codec contradicts the dtype.
    """
    array = as_meant(array)
    try:
        return np.asarray(array[...])
    except Exception as error:  # what zarr-python's stores and codecs raise is of any class
        name = printable(array.store_path)
        raise StoreReadError(errno_of(error), f"{name}: cannot be read: {reason_of(error)}") from error
