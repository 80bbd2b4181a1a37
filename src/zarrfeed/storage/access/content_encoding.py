"""Objects that a server keeps compressed and says so by the header Content-Encoding: what they decode to.

Clients of HTTP undo such an encoding; obstore hands over the bytes as they came.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from typing import Any

from zarrfeed.base.errors import DecodeError, printable

#: Content encoding -> what undoes it.
_DECODERS: dict[str, Callable[[Any], bytes]] = {
    "gzip": gzip.decompress,
    "x-gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


def encoding_of(answer: Any) -> str:
    """Return the content encodings of an object, as obstore's result of a request has them; "" if it has none."""
    given: Any = answer.attributes.get("Content-Encoding", "")
    return ", ".join(one for one in map(str.strip, str(given).lower().split(",")) if one not in ("", "identity"))


def decoded(data: Any, encodings: str) -> bytes:
    """Return the content of an object that has content encodings, such as "gzip".

    Raises
    ------
    DecodeError
        If there is no decoder for one of them, or the bytes do not decode.
    """
    for encoding in reversed(encodings.split(", ") if encodings else []):
        decode = _DECODERS.get(encoding)
        if decode is None:
            raise DecodeError(
                f"the object has the Content-Encoding {printable(encoding)!r}, supported: {', '.join(_DECODERS)}; "
                "store it without, or open it with zarr-python over fsspec and pass the zarr.Array",
            )
        try:
            data = decode(data)
        except (OSError, EOFError, zlib.error) as error:
            text = f"the object has the Content-Encoding {encoding!r}, and its bytes are not {encoding}: {error}"
            raise DecodeError(text) from error
    return bytes(data)
