"""The codecs of an array, from its metadata: which of them the engine decodes, and in which order.

zarr-python parses the metadata; this module translates codecs into `CodecSpec`s, and refuses those that nobody decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError, UnsupportedError
from zarrfeed.spec.arrays.codec import NATIVE_CODECS, CodecSpec
from zarrfeed.storage.access.zarr_internals import ArrayV2Metadata, has_snappy
from zarrfeed.storage.chunks.codec_configs import whole_number
from zarrfeed.storage.files.file_codecs import is_file_codec

#: Shards that lie in each other: writers make one, or two where a shard is to have shards for chunks.
MOST_SHARDS = 8

#: Elements that numcodecs shuffles have a size of 32 bits.
_MOST_ELEMENT_BYTES = 2**31 - 1

#: Blosc stores the size of its blocks in 32 bits.
_MOST_BLOCK_BYTES = 2**31 - 1


def _codec(name: str, config: dict[str, Any], array: str) -> CodecSpec:
    """Translate a codec, named as in the metadata; one that the engine does not have is left to zarr-python."""
    short = name.removeprefix("numcodecs.")
    if short not in NATIVE_CODECS:
        return CodecSpec(name=name, label=short, native=False)
    if is_file_codec(short):
        return _file_codec(short, config)
    label = short
    if short == "blosc":
        label = f"blosc({config.get('cname')}, {_shuffle_label(config.get('shuffle'), array)})"
        if config.get("cname") == "snappy":
            if not has_snappy():
                raise UnsupportedError(
                    f"{array}: is compressed by Blosc with snappy, which is not supported, as in numcodecs"
                )
            return CodecSpec(name="blosc with snappy", label=label, native=False)
    if short == "shuffle":
        size = config.get("elementsize")
        if not isinstance(size, int) or not 1 <= size <= _MOST_ELEMENT_BYTES:
            return CodecSpec(name=name, label=short, native=False)
        return CodecSpec(name=short, label=f"shuffle({size})", element_bytes=size)
    if short == "delta":
        return _delta(name, config)
    location = config.get("location") or "end"  # numcodecs takes null for the default
    if short == "crc32c" and location not in ("start", "end"):
        raise UnsupportedError(f"{array}: crc32c location {location!r}, must be 'start' or 'end'")
    return CodecSpec(
        name=short,
        label=label,
        checksum_at_start=location == "start",
        block_bytes=_block_bytes(config.get("blocksize"), array) if short == "blosc" else 0,
    )


def _file_codec(name: str, config: dict[str, Any]) -> CodecSpec:
    """Translate a codec of HDF5 or TIFF, which checked its own configuration."""
    options = {key: value for key, value in config.items() if key not in ("id", "decoded_bytes")}
    return CodecSpec(name=name, label=name.partition(".")[2], **options)


def _delta(name: str, config: dict[str, Any]) -> CodecSpec:
    """Translate differences; the engine adds up integers that are stored as what they are."""
    dtype = np.dtype(config["dtype"])
    if np.dtype(config.get("astype") or dtype) != dtype or dtype.kind not in "iu":
        return CodecSpec(name=name, label="delta", native=False)
    label, is_big = f"delta({dtype.str.lstrip('|')})", dtype.str.startswith(">")
    return CodecSpec(name="delta", label=label, element_bytes=dtype.itemsize, big_endian=is_big)


def _shuffle_label(shuffle: object, array: str) -> str:
    if not isinstance(shuffle, int | float | str | None):
        raise ConfigError(f"{array}: Blosc shuffle = {shuffle!r}, must be a number or a name")
    return {0: "noshuffle", 1: "shuffle", 2: "bitshuffle", -1: "autoshuffle"}.get(shuffle, str(shuffle))  # type: ignore[arg-type]


def _block_bytes(blocksize: object, array: str) -> int:
    if blocksize is None:
        return 0
    size = whole_number(blocksize)
    if size is None or size > _MOST_BLOCK_BYTES:
        raise ConfigError(f"{array}: Blosc blocksize = {blocksize!r}, must be a whole number up to {_MOST_BLOCK_BYTES}")
    return max(0, size)


def codecs_v2(metadata: ArrayV2Metadata, name: str) -> tuple[CodecSpec, ...]:
    """Return the codecs of a v2 array in decoding order."""
    encoded = [*(metadata.filters or ()), *([metadata.compressor] if metadata.compressor else ())]
    configs = [codec.get_config() for codec in reversed(encoded)]
    return tuple(_codec(str(config["id"]), config, name) for config in configs)


def described(codec: Any) -> tuple[str, dict[str, Any]]:
    """Return name and configuration of a v3 codec: an object of zarr-python, or its form in metadata."""
    described = codec if isinstance(codec, dict) else codec.to_dict()
    return str(described["name"]), dict(described.get("configuration") or {})


def check_depth(chain: Sequence[tuple[str, dict[str, Any]]], name: str) -> None:
    """Refuse an array whose shards lie in shards, deeper than anybody writes them.

    Raises
    ------
    UnsupportedError
        If there are more than `MOST_SHARDS` in each other.
    """
    depth, inner = 0, list(chain)
    while shards := [config for kind, config in inner if kind == "sharding_indexed"]:
        depth += 1
        if depth > MOST_SHARDS:
            raise UnsupportedError(f"{name}: nests more than {MOST_SHARDS} shards; write it anew with fewer")
        inner = [described(codec) for config in shards for codec in config["codecs"]]


def codecs_v3(
    chain: Sequence[tuple[str, dict[str, Any]]], dtype: np.dtype[Any], ndim: int, name: str, *, in_shards: bool
) -> tuple[tuple[CodecSpec, ...], tuple[int, ...], bool]:
    """Return the codecs of bytes in decoding order, the storage order, and whether items are big-endian."""
    order = tuple(range(ndim))
    stored_big = False
    codecs: list[CodecSpec] = []
    is_plain = not any(kind == "transpose" or config.get("endian") == "big" for kind, config in chain)
    for kind, config in chain:
        if kind == "transpose":
            order = tuple(order[axis] for axis in config["order"])
        elif kind == "bytes":
            stored_big = str(config.get("endian", "little")) == "big"
        elif kind == "sharding_indexed":  # zarr-python decodes these shards as a whole: they are the read chunks
            beside = [other for other, _ in chain if other != kind]
            index = [other for other, _ in map(described, config["index_codecs"])]
            reason = f"beside {', '.join(beside)}" if beside else f"with the index codecs {', '.join(index)}"
            reason = "inside of shards" if in_shards else reason
            codecs.append(CodecSpec(name=f"{kind} {reason}", label=kind, native=False))
        elif kind == "numcodecs.delta" and not (is_plain and np.dtype(config["dtype"]) == dtype):
            # zarr-python adds up items as they lie in its memory, with other results
            codecs.append(CodecSpec(name=kind, label="delta", native=False))
        else:
            codecs.append(_codec(kind, config, name))
    return tuple(reversed(codecs)), order, stored_big
