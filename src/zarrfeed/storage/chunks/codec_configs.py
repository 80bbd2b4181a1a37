"""The configurations of an array's codecs: read as their writer means them, or refused before a chunk is decoded.

numcodecs and zarr-python do not look at most configurations until they decode, or never. So a number that was written
as text fails in every chunk, as if all of them were damaged, and a size that contradicts the dtype gives other values.

Invariant: `as_meant` returns an array whose codecs decode what the writer encoded; or it raises `ConfigError`, which
names the array, the codec, the key, its value, and what would be allowed. Numbers that decoding does not use, such as
compression levels, are never refused. zarr-python's own codecs check themselves when it opens the array.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import zarr
from numcodecs.errors import UnknownCodecError
from numcodecs.registry import get_codec
from zarr.abc.codec import ArrayArrayCodec, Codec
from zarr.codecs import BytesCodec, ShardingCodec, VLenBytesCodec, VLenUTF8Codec
from zarr.dtype import UInt64

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, StoreReadError, printable
from zarrfeed.storage.access.checked_nodes import node_name
from zarrfeed.storage.access.store_errors import errno_of, reason_of
from zarrfeed.storage.access.zarr_internals import (
    ArrayMetadata,
    ArrayV2Metadata,
    ChunkSpec,
    chunk_spec,
    configured,
    numcodecs_codec,
    read_document,
    regular_chunk_shape,
    with_metadata,
)
from zarrfeed.storage.chunks.codec_guards import Expected
from zarrfeed.storage.chunks.guarded_chain import encoded, expected_of

#: Size of a `char *`: netCDF-C shuffles strings of fixed length by it, whatever their length.
_POINTER_BYTES: Final = 8
#: Codecs whose output has another dtype than their input; all others leave the items as they are.
_OF_ITEMS: Final = ("astype", "delta", "fixedscaleoffset", "quantize", "packbits")
_MOST_SEED: Final = 2**32 - 1
_ZFP_MODES: Final = {2: "rate", 3: "precision", 4: "tolerance"}

Changes = dict[str, Any]


class _RefusedError(Exception):
    """A value of a configuration that nobody can have meant."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(f"{key} = {value!r}, must be {allowed}")


class _WrongItemsError(_RefusedError):
    """A codec of an array whose items it cannot hold."""

    def __init__(self, given: np.dtype[Any], allowed: str) -> None:
        Exception.__init__(self, f"encodes {allowed} only, the items are {given.str}")


@dataclass(frozen=True)
class _CodecContext:
    """The configuration of one codec, and what its decoded bytes are.

    Attributes
    ----------
    config
        The configuration as numcodecs has it, without defaults that its writer left out.
    decoded
        Size and dtype of what the codec was given when it encoded.
    items
        Dtype of the items in those bytes; other than `decoded.dtype` behind codecs of bytes.
    """

    config: dict[str, Any]
    decoded: Expected
    items: np.dtype[Any]

    @property
    def has_items(self) -> bool:
        """True if the codec is given the items, and not the output of a codec of bytes."""
        return self.decoded.dtype == self.items and self.decoded.is_exact


def as_meant(array: zarr.Array[Any], name: str | None = None) -> zarr.Array[Any]:
    """Return an array with the configurations of its codecs as their writer means them.

    Parameters
    ----------
    array
        Any array of zarr-python's. Returned as it is where nothing has to change.
    name
        Path or URL that messages name.

    Raises
    ------
    ConfigError
        If a configuration contradicts the dtype, or has a value that its codec cannot use.
    StoreReadError
        If the metadata have to be read again, and cannot be.
    """
    metadata: ArrayMetadata = array.metadata
    changed: ArrayMetadata
    name = name or node_name(array)
    if isinstance(metadata, ArrayV2Metadata):
        changed = _read_v2(metadata, name, array)
    elif not any(_is_read(codec) for codec in metadata.codecs):
        return array
    else:
        chunk = chunk_spec(metadata, regular_chunk_shape(metadata, name))
        chain = _read_v3(metadata.codecs, chunk, name)
        changed = metadata if _are_same(chain, metadata.codecs) else replace(metadata, codecs=chain)
    return array if changed is metadata else with_metadata(array, changed)


def _is_read(codec: Codec) -> bool:
    """Return whether a codec of format 3 has a configuration that zarr-python does not check when it opens an array."""
    is_wrapper = str(getattr(codec, "codec_name", "")).startswith("numcodecs.")
    return is_wrapper or isinstance(codec, ShardingCodec | VLenUTF8Codec | VLenBytesCodec)


def _are_same(chain: Sequence[Any], before: Sequence[Any]) -> bool:
    return all(codec is former for codec, former in zip(chain, before, strict=True))


def whole_number(value: object) -> int | None:
    """Return a whole number, also one that is written as text or as a float; None for anything else."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_v2(metadata: ArrayV2Metadata, name: str, array: zarr.Array[Any]) -> ArrayV2Metadata:
    filters, compressor = tuple(metadata.filters or ()), metadata.compressor
    if not any(getattr(codec, "codec_id", None) in _RULES for codec in (*filters, compressor)):
        return metadata
    expected = expected_of(chunk_spec(metadata, regular_chunk_shape(metadata, name)))
    items = expected.dtype
    chain: list[Any] = []
    for number, codec in enumerate((*filters, *((compressor,) if compressor else ()))):
        config = dict(codec.get_config())
        if config["id"] == "shuffle" and config["elementsize"] == 4 != _item_bytes(items):  # numcodecs' default
            config = _as_stored(array, number, len(filters), config)
        changes = _check(str(config["id"]), name, _CodecContext(config, expected, items), codec)
        chain.append(get_codec({**codec.get_config(), **changes}) if changes else codec)
        expected = encoded(chain[-1], expected)
        items = expected.dtype if config["id"] in _OF_ITEMS else items
    if _are_same(chain, (*filters, compressor)[: len(chain)]):
        return metadata
    compressor = chain.pop() if compressor else None
    return replace(metadata, filters=tuple(chain) or None, compressor=compressor)


def _as_stored(array: zarr.Array[Any], number: int, num_filters: int, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a codec of format 2 without the defaults that numcodecs added to it."""
    try:
        content = read_document(array, ".zarray")
    except Exception as error:  # what stores raise is of any class
        raise StoreReadError(errno_of(error), f"{printable(array.store_path)}/.zarray: {reason_of(error)}") from error
    try:
        document = parse_json(content) if content is not None else {}
        stored = document["filters"][number] if number < num_filters else document["compressor"]
        return {key: value for key, value in config.items() if key in stored}
    except (ValueError, LookupError, TypeError):  # the metadata came from another document, or a writer is at work
        return config


def _read_v3(chain: Sequence[Codec], chunk: ChunkSpec, name: str) -> tuple[Codec, ...]:
    meant: list[Codec] = []
    expected = expected_of(chunk)
    items = expected.dtype
    for codec in chain:
        if isinstance(codec, ShardingCodec):
            codec = _read_shards(codec, chunk, name)
        elif isinstance(codec, VLenUTF8Codec | VLenBytesCodec):
            if items.kind not in "OTU":
                wrong = _WrongItemsError(items, "text or bytes of any length")
                raise ConfigError(f"{name}: codec {codec.to_dict()['name']!r}: {wrong}")
        elif _is_read(codec):
            codec = _read_wrapped(codec, _CodecContext({}, expected, items), name)
        meant.append(codec)
        if isinstance(codec, ArrayArrayCodec):
            chunk = codec.resolve_metadata(chunk)
            expected = expected_of(chunk)
            items = expected.dtype
        elif not isinstance(codec, BytesCodec):
            expected = encoded(_loaded(codec, name), expected)
    return tuple(meant)


def _read_shards(codec: ShardingCodec, shard: ChunkSpec, name: str) -> ShardingCodec:
    inner = _read_v3(codec.codecs, replace(shard, shape=codec.chunk_shape), name)
    counts = tuple(s // max(1, i) for s, i in zip(shard.shape, codec.chunk_shape, strict=True))
    index = _read_v3(codec.index_codecs, replace(shard, shape=(*counts, 2), dtype=UInt64()), name)
    if _are_same(inner, codec.codecs) and _are_same(index, codec.index_codecs):
        return codec
    return replace(codec, codecs=inner, index_codecs=index)


def _read_wrapped(codec: Any, context: _CodecContext, name: str) -> Any:
    """Read a codec of numcodecs in an array of format 3."""
    loaded = _loaded(codec, name)
    if loaded is None:
        return codec
    config = dict(loaded.get_config())
    changes = _check(codec.codec_name, name, replace(context, config=config), loaded)
    return configured(codec, changes) if changes else codec


def _loaded(codec: Any, name: str) -> Any:
    """Return the codec of numcodecs behind one of format 3; None for others, and where its library is not installed."""
    if not str(getattr(codec, "codec_name", "")).startswith("numcodecs."):
        return None
    try:
        return numcodecs_codec(codec)
    except (ImportError, UnknownCodecError):
        return None
    except Exception as error:  # constructors raise exceptions of any class
        described = {key: value for key, value in codec.codec_config.items() if key != "id"}
        raise ConfigError(
            f"{name}: codec {codec.codec_name!r}: its configuration {described} cannot be used: {error}"
        ) from error


def _check(label: str, name: str, context: _CodecContext, codec: Any) -> Changes:
    """Return the changes of a codec's configuration that let it decode as its writer meant."""
    rule = _RULES.get(str(context.config.get("id")))
    if rule is None or not type(codec).__module__.startswith("numcodecs."):
        return {}
    try:
        return rule(context)
    except _RefusedError as error:
        raise ConfigError(f"{name}: codec {label!r}: {error}") from error


# --- rules: what has to change in a configuration ---------------------------------------------------------------------


def _item_bytes(items: np.dtype[Any]) -> int:
    """Return the element size by which netCDF-C shuffles an array."""
    return _POINTER_BYTES if items.kind == "S" and items.itemsize > 1 else items.itemsize


def _read_numbers(*keys: str) -> Callable[[_CodecContext], Changes]:
    """Return the rule of a codec whose numbers matter only to a writer, such as an `Appender`."""

    def read(context: _CodecContext) -> Changes:
        texts = {key: whole_number(context.config.get(key)) for key in keys if isinstance(context.config.get(key), str)}
        return {key: number for key, number in texts.items() if number is not None}

    return read


def _read_shuffle(context: _CodecContext) -> Changes:
    """netCDF-C takes the size from the dtype, and writes 0, the size as text, or nothing at all."""
    value = context.config.get("elementsize")
    size, item = whole_number(value), _item_bytes(context.items)
    if value is None or size == 0:
        size = item
    if size is None or size < 1 or (isinstance(value, str) and size != item):
        raise _RefusedError("elementsize", value, f"a whole number of at least 1, such as the item size {item}")
    if context.decoded.is_exact and context.decoded.limit % size:
        raise _RefusedError("elementsize", value, f"a divisor of the {context.decoded.limit} bytes that are shuffled")
    return {} if type(value) is int and value == size else {"elementsize": size}


def _check_numbers(context: _CodecContext, *keys: str) -> None:
    """Refuse a dtype that has no numbers, such as the empty one that NumPy makes of an empty list."""
    for key in keys:
        if np.dtype(context.config[key]).kind not in "biufcmM":
            raise _RefusedError(key, context.config[key], "a dtype of numbers")


def _read_delta(context: _CodecContext) -> Changes:
    """Differences are of the items, or of their bits as whole numbers."""
    _check_numbers(context, "dtype", "astype")
    dtype, given = np.dtype(context.config["dtype"]), context.decoded.dtype
    if given.kind == "V" or not context.has_items:  # records, or bytes: the codec cuts them into numbers of any size
        if context.decoded.is_exact and context.decoded.limit % dtype.itemsize:
            raise _RefusedError("dtype", dtype.str, f"of a size that divides {context.decoded.limit} bytes")
    elif _plain(dtype) != _plain(given) and not (dtype.kind in "iu" and dtype.itemsize == given.itemsize):
        raise _RefusedError("dtype", dtype.str, f"that of the items, {given.str}, or integers of their size")
    named = {key: np.dtype(context.config[key]) for key in ("dtype", "astype")}
    return {key: _plain(one).str for key, one in named.items() if one.kind in "mM"}  # NumPy adds no points in time


def _read_same_dtype(key: str, stored: str) -> Callable[[_CodecContext], Changes]:
    """Return the rule of a codec that calculates with the values: it names the dtype of the items, and that of its own.

    `key` and `stored` are the keys of these dtypes.
    """

    def read(context: _CodecContext) -> Changes:
        _check_numbers(context, key, stored)
        dtype, given = np.dtype(context.config[key]), context.decoded.dtype
        if context.has_items and _plain(dtype) != _plain(given):
            raise _RefusedError(key, dtype.str, f"that of the items, {given.str}")
        return {}

    return read


def _plain(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of the numbers that are stored: those of times, durations and booleans are integers."""
    if dtype.kind in "mM":
        return np.dtype(f"{dtype.byteorder}i8")
    return np.dtype("u1") if dtype.kind == "b" else dtype


def _read_scale(context: _CodecContext) -> Changes:
    changes: Changes = {}
    for key in ("scale", "offset"):
        value = context.config.get(key)
        number = _number(value)
        if number is None or (key == "scale" and number == 0):
            raise _RefusedError(key, value, "a number other than 0" if key == "scale" else "a number")
        if isinstance(value, str):
            changes[key] = number
    _read_same_dtype("dtype", "astype")(context)
    return changes


def _number(value: object) -> float | int | None:
    """Return a finite number, also one that is written as text."""
    whole = whole_number(value) if not isinstance(value, float) else None
    if whole is not None:
        return whole
    try:
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _read_items(kinds: str, allowed: str, sizes: Sequence[int] = ()) -> Callable[[_CodecContext], Changes]:
    """Return the rule of a codec that holds items of some kinds and sizes."""

    def read(context: _CodecContext) -> Changes:
        given = context.decoded.dtype
        if context.has_items and (given.kind not in kinds or (sizes and given.itemsize not in sizes)):
            raise _WrongItemsError(given, allowed)
        return {}

    return read


def _read_jenkins(context: _CodecContext) -> Changes:
    value = context.config.get("initval")
    seed = whole_number(value)
    if seed is None or not 0 <= seed <= _MOST_SEED:
        raise _RefusedError("initval", value, f"a whole number in [0, {_MOST_SEED}]")
    return {} if type(value) is int else {"initval": seed}


def _read_lzma(context: _CodecContext) -> Changes:
    """Streams name their filters themselves, but for raw ones; LZMA wants to be told those of raw streams alone."""
    value, filters = context.config.get("format"), context.config.get("filters")
    kind = whole_number(value)
    kinds = (lzma.FORMAT_AUTO, lzma.FORMAT_XZ, lzma.FORMAT_ALONE, lzma.FORMAT_RAW)
    if kind not in kinds:
        raise _RefusedError("format", value, f"one of {', '.join(map(str, kinds))}")
    changes: Changes = {} if type(value) is int else {"format": int(kind)}
    if kind != lzma.FORMAT_RAW:
        return changes if filters is None else {**changes, "filters": None}
    meant = _lzma_filters(filters)
    try:
        lzma.LZMADecompressor(lzma.FORMAT_RAW, None, meant)
    except (lzma.LZMAError, ValueError, TypeError, OverflowError) as error:
        raise _RefusedError("filters", filters, f"a list of LZMA filters, as format = 3 has: {error!r}") from None
    return changes if meant == filters else {**changes, "filters": meant}


def _lzma_filters(filters: Any) -> Any:
    """Return filters with the numbers that are written as text as numbers."""
    if not isinstance(filters, list) or not all(isinstance(one, dict) for one in filters):
        return filters
    return [
        {key: whole_number(value) if isinstance(value, str) else value for key, value in one.items()} for one in filters
    ]


def _read_zfp(context: _CodecContext) -> Changes:
    _read_items("if", "int32, int64, float32 and float64", (4, 8))(context)
    value = context.config.get("mode")
    mode = whole_number(value)
    if mode not in _ZFP_MODES:
        raise _RefusedError("mode", value, "2 (rate), 3 (precision) or 4 (tolerance)")
    changes: Changes = {} if type(value) is int else {"mode": mode}
    key = _ZFP_MODES[mode]
    number = _number(context.config.get(key))
    if number is None:
        raise _RefusedError(key, context.config.get(key), "a number")
    if isinstance(context.config[key], str):
        changes[key] = number
    return changes


#: The rule of each codec of numcodecs whose configuration matters, or that takes certain dtypes only. Not here are
#: checksums, which check `location` themselves.
_RULES: dict[str, Callable[[_CodecContext], Changes]] = {
    "shuffle": _read_shuffle,
    "delta": _read_delta,
    "fixedscaleoffset": _read_scale,
    "quantize": _read_same_dtype("dtype", "astype"),
    "astype": _read_same_dtype("decode_dtype", "encode_dtype"),
    "bitround": _read_items("f", "floats"),
    "packbits": _read_items("biu", "booleans", (1,)),
    "jenkins_lookup3": _read_jenkins,
    "lzma": _read_lzma,
    "blosc": _read_numbers("clevel", "shuffle", "blocksize"),
    "zlib": _read_numbers("level"),
    "gzip": _read_numbers("level"),
    "bz2": _read_numbers("level"),
    "zstd": _read_numbers("level"),
    "lz4": _read_numbers("acceleration"),
    "pcodec": _read_items("iuf", "integers and floats of at most 8 bytes", (1, 2, 4, 8)),
    "zfpy": _read_zfp,
}
