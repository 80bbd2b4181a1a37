"""Differences between two descriptions of one array, in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.values.conversion import Decoding
from zarrfeed.storage.access.zarr_internals import ArrayMetadata, dtype_name
from zarrfeed.storage.chunks.location import StoreSource


def _codecs(spec: ArraySpec) -> str:
    return " -> ".join(str(codec.name) for codec in reversed(spec.codecs)) or "none"


def _fill(spec: ArraySpec) -> str:
    numbers = not spec.dtype.hasobject and spec.fill and len(spec.fill) % spec.dtype.itemsize == 0
    return str(np.frombuffer(spec.fill, spec.dtype)[0]) if numbers else repr(spec.fill)


#: Attribute of an array -> what people call it, and how it is shown.
_MUST_STAY: dict[str, tuple[str, Callable[[ArraySpec], object]]] = {
    "stored_dtype": ("dtype", lambda spec: spec.stored_dtype),
    "chunk_shape": ("chunk shape", lambda spec: spec.chunk_shape),
    "shard": ("shards", lambda spec: None if spec.shard is None else spec.shard_shape),
    "codecs": ("codecs", _codecs),
    "fill": ("fill value", _fill),
    "key_separator": ("separator of chunk keys", lambda spec: repr(spec.key_separator)),
    "storage_order": ("order of axes", lambda spec: spec.storage_order),
    "swap_bytes": ("byte order", lambda spec: "swapped" if spec.swap_bytes else "native"),
    "sample_shape": ("shape of a sample", lambda spec: spec.sample_shape),
}


def layout_changes(ours: ArraySpec, now: ArraySpec) -> list[str]:
    """Describe how the storage of an array differs, but for its length and its location: "dtype is ..., was ...".

    Parameters
    ----------
    ours
        The array as it was opened.
    now
        The array as its metadata describe it now.
    """
    changes = []
    for name, (what, show) in _MUST_STAY.items():
        if getattr(now, name) != getattr(ours, name):
            if name == "fill" and now.dtype != ours.dtype:
                continue  # which says enough
            is_now, was = show(now), show(ours)
            changes.append(f"{what} is {is_now}, was {was}" if is_now != was else f"{what}: configured otherwise")
    if not changes:
        decided, decides = _decoder(ours), _decoder(now)
        changes = [
            f"{what} is {_short(decides.get(what))}, was {_short(decided.get(what))}"
            for what in dict.fromkeys((*decided, *decides))
            if decided.get(what) != decides.get(what)
        ]
    if not changes and _without_location(now) != _without_location(ours):
        changes = ["its metadata differ from those that it was opened with"]
    return changes


def decoding_change(ours: Decoding | None, now: Decoding | None) -> str:
    """Describe how attributes that give a meaning to numbers have changed; "" if they have not."""
    return "" if ours == now else f"{_in_words(now)}, {_in_words(ours).replace('is', 'was', 1)}"


def metadata_changes(read: ArrayMetadata, own: ArrayMetadata) -> list[str]:
    """Describe the differences of metadata from the array's own document: "shape (20,), and (30,)".

    Compared is what decides how an array is read: all but attributes, and those of them that say what numbers mean.
    """
    ours, theirs = _decisive(read), _decisive(own)
    return [
        f"{name} {_short(ours.get(name))}, and {_short(theirs.get(name))}"
        for name in dict.fromkeys((*ours, *theirs))
        if ours.get(name) != theirs.get(name)
    ]


#: The attributes that say what the numbers of an array mean.
MEANING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "dtype", "units", "calendar")
#: Attributes of zarr-python's metadata that decide how an array is read -> what people call them.
_OF_ALL = {"shape": "shape", "fill_value": "fill value"}
_OF_V2 = {
    **_OF_ALL,
    "dtype": "dtype",
    "chunks": "chunks",
    "compressor": "compressor",
    "filters": "filters",
    "order": "order",
    "dimension_separator": "dimension_separator",
}
_OF_V3 = {
    **_OF_ALL,
    "data_type": "dtype",
    "chunk_grid": "chunk grid",
    "codecs": "codecs",
    "chunk_key_encoding": "chunk key encoding",
    "dimension_names": "dimension names",
}
_SHORT = 100
#: Kinds of dtypes that have a byte order.
_ORDERED = "iufcmMU"


def _decisive(metadata: ArrayMetadata) -> dict[str, Any]:
    names = _OF_V2 if metadata.zarr_format == 2 else _OF_V3
    known = {what: _plain(getattr(metadata, name, None)) for name, what in names.items()}
    native, name = metadata.dtype.to_native_dtype(), dtype_name(metadata.dtype)
    if metadata.zarr_format == 3:
        if native.kind in _ORDERED:  # a codec says which byte order is stored
            native = native.newbyteorder("=")
        if not any(one is not None for one in metadata.dimension_names or ()):  # names that are all null are none
            known["dimension names"] = "None"
    known["dtype"] = name if str(native) == name else f"{name} {native}"
    attributes = dict(metadata.attributes)
    return known | {f"attribute {name}": _plain(attributes[name]) for name in MEANING if name in attributes}


def _plain(value: Any) -> Any:
    """Return a value of metadata as what can be compared: text, but for what is short."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        value = tuple(value)
    return value if isinstance(value, tuple) and all(type(one) is int for one in value) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 (numcodecs' codecs look their options up, whatever was written there)
        if isinstance(value, tuple):
            return f"({', '.join(map(_text, value))})"
        return f"{type(value).__name__} {getattr(value, '__dict__', '')}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."


def _without_location(spec: ArraySpec) -> ArraySpec:
    shape = tuple(0 if axis == spec.sample_axis else n for axis, n in enumerate(spec.shape))
    return replace(spec, name="", root="", metadata_key="", shape=shape)


def _decoder(spec: ArraySpec) -> dict[str, Any]:
    """Return all that decides how Python decodes the chunks, by names for people; {} if the engine decodes."""
    source = spec.source
    if not isinstance(source, StoreSource) or source.decoder is None:
        return {}
    decides = _decisive(source.decoder.metadata)
    known = {what: value for what, value in decides.items() if what != "shape" and "attribute" not in what}
    return known | {"reading of shards": source.decoder.in_shards}


def _in_words(decoding: Decoding | None) -> str:
    if decoding is None:
        return "decoding by attributes is none"
    fills = f", fill values {decoding.fills}" if decoding.fills else ""
    return (
        f"decoding by attributes is {decoding.items} -> {decoding.result}, scale_factor {decoding.scale}, "
        f"add_offset {decoding.offset}{fills}"
    )
