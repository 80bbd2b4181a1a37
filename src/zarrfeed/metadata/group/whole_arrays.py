"""Arrays that are small next to the samples, such as coordinates, and are read whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

from zarrfeed.base.errors import CorruptChunkError, StoreReadError
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.chunks.codec_configs import as_meant

#: Items of such an array, at most.
MOST_VALUES = 1 << 28


def read_whole(array: zarr.Array[Any], where: str, access: StoreAccess) -> npt.NDArray[Any]:
    """Read all items of an array, as they are stored.

    Raises
    ------
    ConfigError, StoreReadError, CorruptChunkError
        If it cannot be read.
    """
    array = as_meant(array, where)
    try:
        read = access.ask(lambda: array.async_array.getitem(...), where)
    except StoreReadError:
        raise
    except OSError as error:
        raise StoreReadError(errno_of(error), f"{where}: cannot be read: {reason_of(error)}") from error
    except Exception as error:  # what codecs raise is of any class
        raise CorruptChunkError(f"{where}: cannot be decoded: {reason_of(error)}") from error
    return np.asarray(read)
