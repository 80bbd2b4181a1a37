"""Arrays that are described by consolidated metadata, and what their own metadata documents say.

Consolidated metadata are a copy of the documents of all arrays of a group. Whoever changes an array afterwards changes
its own document, and the copy stays as it was: a reader that believes it gets too few samples, or decodes chunks by a
description of before. The same holds of a `zarr.Array` that was opened before a change.

Invariant: one request for each array, all at once. A document that is not there, or that may not be read, says
nothing: some writers write consolidated metadata alone, and some servers show nothing else.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import zarr
from zarr.buffer import cpu
from zarr.storage import LocalStore, MemoryStore

from zarrfeed.base.errors import StaleMetadataWarning, StoreReadError, ZarrfeedError
from zarrfeed.base.redaction import redact
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.array_changes import layout_changes, metadata_changes
from zarrfeed.metadata.array.cf import find_decoding
from zarrfeed.spec.arrays.array import ArraySpec, Documented
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.checked_nodes import checked, node_name
from zarrfeed.storage.access.retry import reading
from zarrfeed.storage.access.store_errors import errno_of, is_transient, reason_of, says_no_permission
from zarrfeed.storage.access.zarr_internals import ArrayMetadata


@dataclass(frozen=True)
class OwnMetadata:
    """The own document of an array, compared with a copy of it.

    Attributes
    ----------
    array
        The array by its own document. None: it has none, or it may not be read.
    is_absent
        True if there is no such document.
    changes
        The differences of the document from the description that was compared, in words; "" if there are none.
    lacks_attributes
        True if its attributes are in a document of their own, which was not asked for.
    """

    array: zarr.Array[Any] | None = None
    is_absent: bool = False
    changes: str = ""
    lacks_attributes: bool = False


def array_from(documents: Mapping[str, bytes | None], zarr_format: int) -> zarr.Array[Any]:
    """Return the array that metadata documents describe, which has no chunks; reads no store.

    Raises
    ------
    Exception
        If zarr-python cannot parse them.
    """
    held = {key: cpu.Buffer.from_bytes(text) for key, text in documents.items() if text is not None}
    return checked(
        zarr.open_array(store=MemoryStore(held), mode="r", zarr_format=zarr_format),  # type: ignore[arg-type]
        next(iter(documents)),
    )


def read_own(arrays: Sequence[zarr.Array[Any]], access: StoreAccess) -> list[OwnMetadata]:
    """Compare descriptions of arrays with their own documents, which are asked for side by side.

    Parameters
    ----------
    arrays
        The arrays as they were opened.
    access
        The access to the stores.

    Raises
    ------
    StoreReadError
        If a store does not answer, after all retries.
    """
    if not arrays:
        return []
    reads = [partial(_documents, array) for array in arrays]

    async def ask_all() -> list[dict[str, bytes | None] | BaseException]:
        asked = (reading(access.policy, read, is_far=True) for read in reads)
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = access.ask(ask_all, str(arrays[0].store_path))
    return [_compared(array, answer) for array, answer in zip(arrays, answers, strict=True)]


async def _documents(array: zarr.Array[Any]) -> dict[str, bytes | None]:
    """Return the documents of an array by key; the one of its attributes only in a local store of format 2."""
    store, path = array.store_path.store, array.store_path.path
    keys = ["zarr.json"] if array.metadata.zarr_format == 3 else [".zarray"]
    is_local = type(store) is LocalStore
    if is_local and keys == [".zarray"]:
        keys.append(".zattrs")
    found: dict[str, bytes | None] = {}
    for key in keys:
        try:
            data = await store.get(f"{path}/{key}" if path else key, cpu.buffer_prototype)
        except (FileNotFoundError, KeyError):
            data = None
        found[key] = None if data is None else data.to_bytes()
    return found


def _compared(array: zarr.Array[Any], answer: dict[str, bytes | None] | BaseException) -> OwnMetadata:
    name = node_name(array)
    if isinstance(answer, BaseException):
        cause = answer.__cause__ if isinstance(answer, StoreReadError) and answer.__cause__ is not None else answer
        if says_no_permission(cause):
            return OwnMetadata()
        if isinstance(answer, StoreReadError) or (isinstance(answer, Exception) and is_transient(answer)):
            redact(answer)  # it was returned, and is not handled here
            text = f"{name}: its metadata cannot be read: {reason_of(answer)}"
            raise StoreReadError(errno_of(answer), text) from answer
        return OwnMetadata()  # a store that has no such keys, in words of its own
    key, document = next(iter(answer.items()))
    if document is None:
        return OwnMetadata(is_absent=True)
    try:
        own = array_from(answer, array.metadata.zarr_format)
    except Exception as error:  # noqa: BLE001 (what zarr-python's parsers raise is of any class)
        return OwnMetadata(changes=f"its own document {key} cannot be read: {error!r}")
    read: ArrayMetadata = array.metadata
    if metadata_changes(read, own.metadata):  # an array that was just made may have other objects for the same codecs
        read = _as_parsed(read)
    lacks_attributes = ".zarray" in answer and ".zattrs" not in answer
    if lacks_attributes:
        read = replace(read, attributes={})
    return OwnMetadata(own, False, "; ".join(metadata_changes(read, own.metadata)), lacks_attributes)


def _as_parsed(metadata: ArrayMetadata) -> ArrayMetadata:
    """Return metadata as zarr-python would parse them, if they had been written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of dtypes without a specification, which was said when the array was made
        written = metadata.to_buffer_dict(cpu.buffer_prototype)
        try:
            documents = {key: text.to_bytes() for key, text in written.items()}
            return array_from(documents, metadata.zarr_format).metadata
        except Exception:  # noqa: BLE001 (what zarr-python's parsers raise is of any class)
            return metadata


def stale_text(name: str, zarr_format: int, changes: str) -> str:
    """Return a sentence that says what is stale, what it was compared with, and what mends it."""
    document = "zarr.json" if zarr_format == 3 else ".zarray"
    return (
        f"{name}: stale metadata: the consolidated metadata that it was opened by, and its own document {document}, "
        f"differ: {changes}. Consolidate them anew (zarr.consolidate_metadata), or open the array by its own path"
    )


def stale_fields(fields: Sequence[FieldKind]) -> list[str]:
    """Describe how the arrays of opened fields differ from their own documents, one text for each that does."""
    texts = []
    for layout in (layout for f in fields for layout in f.layouts):
        read, own = replace(layout.spec, choice=None), layout.spec.as_documented
        if layout.spec.has_other_document:
            changes = layout_changes(read, own)
            if own.shape != read.shape:
                changes.insert(0, f"shape is {own.shape}, was {read.shape}")
            texts.append(stale_text(read.name, read.zarr_format, "; ".join(changes) or "attributes"))
    return texts


def with_own(spec: ArraySpec, own: OwnMetadata) -> ArraySpec:
    """Return the description of an array with what its own document says; warn if that is something else.

    Parameters
    ----------
    spec
        The description by the metadata that are read.
    own
        The array's own document.
    """
    documented = spec.documented
    if own.is_absent:  # a missing chunk is then no sign that the array was deleted
        return replace(spec, metadata_key="", documented=None)
    if own.array is None and not own.changes:
        return replace(spec, metadata_key="", documented=None)
    if own.lacks_attributes and documented is not None:  # so a pass cannot tell whether they changed since then
        spec = replace(spec, documented=None)
        documented = None
    if not own.changes:
        return spec
    warnings.warn(
        stale_text(spec.name, spec.zarr_format, own.changes) + ". The consolidated metadata are read",
        StaleMetadataWarning,
        stacklevel=2,
    )
    if own.array is None:
        return spec
    try:
        described = replace(read_layout(own.array, sample_axis=spec.as_documented.sample_axis), name=spec.name)
        heeds = documented is not None and documented.heeds_attributes
        decoding = find_decoding(own.array) if heeds else None
    except ZarrfeedError:  # it is no array that could be read; each pass says so
        return spec
    units = str(own.array.metadata.attributes.get("units", "")) if heeds else ""
    return replace(spec, documented=Documented(described, heeds, decoding, units))
