"""Codecs of HDF5 and TIFF that neither Zarr nor numcodecs has: the engine decodes them, for zarr-python, too.

Invariant: numcodecs knows each of them by a name with "zarrfeed.", and only stores that this package makes of files
have such names in their documents. Importing this module registers them.
"""

from __future__ import annotations

import struct
from typing import Any, ClassVar, NoReturn

from numcodecs.abc import Codec
from numcodecs.compat import ndarray_copy
from numcodecs.registry import register_codec

from zarrfeed.base.errors import UnsupportedError
from zarrfeed.base.native import core

_PREFIX = "zarrfeed."
_MOST_BYTES = 2**63 - 1
_LITERALS = 32


def is_file_codec(name: str) -> bool:
    """Return whether a codec is one of this module."""
    return name.startswith(_PREFIX)


class FileCodec(Codec):  # type: ignore[misc]  # numcodecs has no types
    """A codec of files, by its name in the engine's table.

    Parameters
    ----------
    decoded_bytes
        The bytes that a chunk has when the codec was undone; compressors may make fewer.
    element_bytes, run_bytes, stride, big_endian
        As in cpp/spec/codec_spec.h.
    """

    codec_id: ClassVar[str]

    def __init__(
        self,
        *,
        decoded_bytes: int,
        element_bytes: int = 1,
        run_bytes: int = 0,
        stride: int = 1,
        big_endian: bool = False,
    ) -> None:
        least = {"decoded_bytes": 0, "element_bytes": 1, "run_bytes": 0, "stride": 1}
        given = {"decoded_bytes": decoded_bytes, "element_bytes": element_bytes}
        given |= {"run_bytes": run_bytes, "stride": stride}
        for name, value in given.items():
            if type(value) is not int or not least[name] <= value <= _MOST_BYTES:
                raise ValueError(f"{self.codec_id}: {name} = {value!r}, must be a whole number, at least {least[name]}")
        self.decoded_bytes, self.element_bytes = decoded_bytes, element_bytes
        self.run_bytes, self.stride, self.big_endian = run_bytes, stride, bool(big_endian)

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, without options that are those of every codec."""
        plain = {"element_bytes": 1, "run_bytes": 0, "stride": 1, "big_endian": False}
        options = {name: value for name, value in vars(self).items() if plain.get(name) != value}
        return {"id": self.codec_id, **options}

    def decode(self, buf: Any, out: Any = None) -> Any:
        """Decode a chunk. Raises CorruptChunkError."""
        options = {name: value for name, value in self.get_config().items() if name not in ("id", "decoded_bytes")}
        made = core.undo_codec(core.CodecSpec(self.codec_id, **options), memoryview(buf), self.decoded_bytes)
        return made if out is None else ndarray_copy(made, out)

    def encode(self, buf: Any) -> Any:  # noqa: ARG002 - the name of the base class
        """Raise UnsupportedError: files are never written."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise UnsupportedError(f"{self.codec_id}: a chunk lies in its file without this filter, which is not read")


class Lzf(FileCodec):
    """LZF, in which chunks can be put that HDF5 stored without any filter."""

    codec_id = "zarrfeed.lzf"

    def encode(self, buf: Any) -> bytes:
        """Return bytes as literals of LZF."""
        data = bytes(buf)
        parts = (data[at : at + _LITERALS] for at in range(0, len(data), _LITERALS))
        return b"".join(bytes((len(one) - 1,)) + one for one in parts)


class Hdf5Lz4(FileCodec):
    """LZ4 as HDF5 has it, in which chunks can be put that HDF5 stored without any filter."""

    codec_id = "zarrfeed.hdf5_lz4"

    def encode(self, buf: Any) -> bytes:
        """Return bytes as a block that does not compress."""
        data = bytes(buf)
        return struct.pack(">QII", len(data), len(data), len(data)) + data


def _codec(name: str) -> type[FileCodec]:
    """Return the codec with a name; it is an attribute of this module by that name, by which copies are pickled."""
    made = type(name, (FileCodec,), {"codec_id": _PREFIX + name, "__module__": __name__})
    globals()[name] = made
    return made


for _one in (
    Lzf,
    Hdf5Lz4,
    *map(_codec, ("lzw", "shuffle", "bitshuffle", "bitshuffle_lz4", "bitshuffle_zstd", "delta", "short")),
):
    register_codec(_one)
