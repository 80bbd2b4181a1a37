"""The watch over the arrays that a dataset reads: each pass checks that they are stored as when they were opened.

The engine decodes chunks by a description that was made when an array was opened. If another array is written in its
place meanwhile, the same chunks decode to other numbers, or samples that are gone arrive as fill values. So each pass
looks at the metadata documents, and compares what they say with the description that is in use.

Invariant: an array that was opened as its document says, and whose document says the same now, passes whatever its
bytes. A look that cannot be made, because a store does not answer, finds nothing and is no error of the pass. A look
reads documents alone.

A file is known again by its times, size and inode, if it is older than two seconds; an object of obstore by its ETag.
Otherwise the document is read. An epoch asks for at most 64 far arrays and 16384 local ones, and subsequent epochs have
all of them. Zip files and snapshots of Icechunk do not change, and are left out.
"""

from __future__ import annotations

import asyncio
import errno
import json
import re
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError, StoreReadError, ZarrfeedError
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.array_changes import MEANING, decoding_change, layout_changes
from zarrfeed.metadata.array.cf import find_decoding
from zarrfeed.metadata.array.meaning import normal_units
from zarrfeed.metadata.array.own_metadata import array_from
from zarrfeed.metadata.stores.store_parts import locations_in
from zarrfeed.plan.order.keyed_random import permutation
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import Field
from zarrfeed.storage.access.access import StoreAccess
from zarrfeed.storage.access.retry import FailedAttempt, reading
from zarrfeed.storage.access.shared_access import SharedAccess
from zarrfeed.storage.access.store_errors import reason_of
from zarrfeed.storage.access.zarr_internals import with_length
from zarrfeed.storage.chunks.metadata_documents import DocumentLocation, Documents, Seen

#: Arrays whose documents a look reads. A file costs some microseconds, a request a round trip and maybe money.
MOST_FILES, MOST_ASKED = 16384, 64
#: Key of the order in which the arrays of very many stores have their turn.
_TURNS = 0x6C6F6F6B
#: A writer that does not replace its documents as a whole has so long to end what it began.
_TORN_TRIES, _TORN_PAUSE_S = 5, 0.05
#: Seconds in which reads whose time is up say so.
_UNTIL_TOLD_S = 1.0
#: Documents are parsed in memory, which has a name of its own.
_NAMELESS = re.compile(r"^memory://\S*: ")
_HEEDED = (*MEANING, "_ARRAY_DIMENSIONS")


@dataclass(frozen=True)
class Watched:
    """One array that is in use.

    Attributes
    ----------
    name
        The name of the array in messages.
    location
        The location of its documents.
    layout
        The layout of the array, perhaps with others that are stored alike.
    rows
        Rows that are read of it; 0: the length of the layout.
    """

    name: str
    location: DocumentLocation
    layout: Layout
    rows: int = 0


class ArrayWatch:
    """Looks at the arrays of a dataset, pass after pass, in one process.

    Parameters
    ----------
    policy
        Its timeout and its retries hold for each read of a document.
    """

    def __init__(self, policy: Faults) -> None:
        self._policy = policy
        self._known: tuple[Sequence[Field], list[Watched]] | None = None
        self._marks: dict[Hashable, Hashable] = {}
        self._judged: dict[tuple[int, str], list[str]] = {}

    def look(self, fields: Sequence[Field], turn: int, is_over: Callable[[], bool], shared: SharedAccess) -> list[str]:
        """Look at the arrays of some fields; of very many, at those whose turn it is.

        Parameters
        ----------
        fields
            The fields that are read.
        turn
            The number of the look, such as the epoch. Looks with subsequent numbers look at all arrays.
        is_over
            Returns whether the look is to be given up.
        shared
            Ends requests that are under way.

        Returns
        -------
        Why documents could not be read, one text for each array of which nothing is known therefore.

        Raises
        ------
        StoreReadError
            If an array is stored in another way than when it was opened, or is gone.
        """
        watched, troubles = self._watched(fields), []
        for one in _in_turn([one for one in watched if one.location.source is None], turn, MOST_FILES):
            if is_over():
                return []
            try:
                seen = self._read_files(one)
            except ConfigError as error:
                raise _changed(one.name, str(error)) from error
            except Exception as error:  # noqa: BLE001 (errors of files, and of the retries)
                troubles.append(f"{one.name}: {_reason(error)}")
                continue
            self._check(one, seen, shared)
        far = _in_turn([one for one in watched if one.location.source is not None], turn, MOST_ASKED)
        for one, answer in zip(far, self._ask(far, shared) if far and not is_over() else (), strict=False):
            if isinstance(answer, Seen):
                self._check(one, answer, shared)
            else:
                troubles.append(f"{one.name}: {_reason(answer)}")
        return troubles

    def _ask(self, far: Sequence[Watched], shared: SharedAccess) -> list[Seen | BaseException]:
        """Return the documents of arrays in stores that are asked, all at once, or why they cannot be read."""
        reads = [partial(one.location.ask, self._marks.get(one.location.identity)) for one in far]

        async def ask_all() -> list[Seen | BaseException]:
            asked = (reading(self._policy, read, is_far=True) for read in reads)
            return await asyncio.gather(*asked, return_exceptions=True)

        longer = replace(self._policy, timeout=self._policy.timeout + _UNTIL_TOLD_S)  # each read watches its own time
        try:
            return StoreAccess(longer, shared=shared).ask(ask_all, "metadata documents")
        except StoreReadError as error:  # something blocks the event loop
            return [error] * len(far)

    def _watched(self, fields: Sequence[Field]) -> list[Watched]:
        if self._known is None or self._known[0] is not fields:
            self._known = (fields, list(watched_arrays(fields)))
            self._judged.clear()
        return self._known[1]

    def _read_files(self, one: Watched) -> Seen:
        mark = self._marks.get(one.location.identity)
        begin = time.monotonic()
        try:
            return one.location.read_files(mark)
        except OSError as error:
            failed = FailedAttempt(error, begin)
            access = StoreAccess(self._policy)
            return access.ask(lambda: asyncio.to_thread(one.location.read_files, mark), one.name, failed)

    def _check(self, one: Watched, seen: Seen, shared: SharedAccess) -> None:
        """Raise StoreReadError if documents say something else than the description that is in use."""
        parsed = _parsed(seen.documents)
        for _ in range(_TORN_TRIES - 1):
            if not isinstance(parsed, ValueError):
                break
            time.sleep(_TORN_PAUSE_S)
            again = one.location.read_files() if one.location.source is None else self._ask([one], shared)[0]
            seen = again if isinstance(again, Seen) else seen
            parsed = _parsed(seen.documents)
        if isinstance(parsed, ValueError):
            raise _changed(one.name, f"{one.location.keys[0]} is no JSON: {parsed}") from parsed
        documents = seen.documents
        if documents is None:
            return
        if documents[0] is None:
            text = f"{one.name}/{one.location.keys[0]} is gone: the array was deleted or moved after it was opened"
            raise StoreReadError(errno.ENOENT, text)
        changes = self._changes(one, documents, parsed)
        if changes:
            raise _changed(one.name, "; ".join(changes))
        self._marks[one.location.identity] = seen.mark

    def _changes(self, one: Watched, documents: Documents, parsed: list[Any]) -> list[str]:
        """Describe the differences of an array; documents that are alike but for a length are compared once."""
        spec, documented = one.layout.spec.as_documented, one.layout.spec.documented
        heeds = documented is not None and documented.heeds_attributes
        text, shape = _essence(parsed, spec, heeds=heeds)
        has_own = one.layout.spec.has_other_document
        if shape is not None and (length := self._length_change(one, spec, shape, has_own=has_own)):
            return [length]
        key = (id(one.layout), text)
        if key not in self._judged:
            self._judged[key] = _compare(one, documents)
        return self._judged[key]

    @staticmethod
    def _length_change(one: Watched, spec: ArraySpec, shape: tuple[int, ...], *, has_own: bool) -> str:
        """Describe how the shape has changed; "" if it has not."""
        axis, dims = spec.sample_axis, spec.num_key_axes
        was = spec.shape[:dims]
        is_one_axis = one.layout.spec.merged is None  # stores of one layout have all axes alike otherwise
        if len(shape) == dims and one.layout.parts is not None and is_one_axis:
            stored = one.layout.spec
            in_chunks = len(stored.shape) > len(spec.shape)  # rows of elements of sparse matrices are read chunks
            # An array without elements counts as one with a chunk (`metadata/group/anndata.py`).
            now = max(1, -(-shape[axis] // spec.chunk_shape[axis])) if in_chunks else shape[axis]
            if now == one.rows or (has_own and not in_chunks and now > one.rows):  # of older consolidated metadata
                was = (*was[:axis], shape[axis], *was[axis + 1 :])
            else:
                length = one.rows * (spec.chunk_shape[axis] if in_chunks else 1)
                was = (*was[:axis], length, *was[axis + 1 :])
        return "" if shape == was else f"shape is {shape}, was {was}"


def watched_arrays(fields: Sequence[Field]) -> Iterator[Watched]:
    """Yield the arrays that some fields read, each once, but for those whose metadata cannot change."""
    done: set[Hashable] = set()
    for layout in layouts_of(fields):
        spec = layout.spec
        names = _document_names(spec)
        lengths = [0] if layout.parts is None else (layout.parts.end - layout.parts.begin).tolist()
        for (name, where), rows in zip(locations_in(layout), lengths, strict=True):
            has_own = not isinstance(where, str) or spec.metadata_key
            location = DocumentLocation.of(where, names) if has_own else None
            if location is None or location.identity in done:
                continue
            done.add(location.identity)
            yield Watched(name, location, layout, rows)


def layouts_of(fields: Sequence[Field]) -> Iterator[Layout]:
    """Yield how stores hold the arrays that some fields read."""
    for f in fields:
        yield from f.arrays()


def _document_names(spec: ArraySpec) -> tuple[str, ...]:
    """Return the names of the documents of an array: the attributes have one of their own in Zarr v2."""
    if spec.zarr_format == 3:
        return ("zarr.json",)
    heeds = spec.documented is not None and spec.documented.heeds_attributes
    return (".zarray", ".zattrs") if heeds else (".zarray",)


def _in_turn(watched: list[Watched], turn: int, most: int) -> list[Watched]:
    """Return at most so many arrays; in subsequent turns all of them have theirs."""
    if len(watched) <= most:
        return watched
    order = permutation(len(watched), _TURNS)
    begin = turn * most % len(watched)
    return [watched[number] for number in (order * 2)[begin : begin + most]]


def _parsed(documents: Documents | None) -> list[Any] | ValueError:
    """Parse JSON documents, {} for one that is absent; or return the error of the first that cannot be parsed."""
    try:
        return [{} if text is None else parse_json(text) for text in documents or ()]
    except ValueError as error:
        return error


def _essence(parsed: list[Any], spec: ArraySpec, *, heeds: bool) -> tuple[str, tuple[int, ...] | None]:
    """Return all that decides how an array is read, as text without its length; and its shape, None if it has none."""
    document = parsed[0]
    if not isinstance(document, dict):
        return json.dumps(parsed), None
    attributes = document.pop("attributes", {}) if spec.zarr_format == 3 else parsed[-1] if len(parsed) > 1 else {}
    shape = document.pop("shape", None)
    for name in ("consolidated_metadata", "dimension_names"):
        document.pop(name, None)
    heeded: Any = {}
    if heeds and isinstance(attributes, dict):
        heeded = {name: attributes[name] for name in _HEEDED if name in attributes}
    elif heeds and attributes is not None:
        heeded = attributes  # which are refused
    text = json.dumps([document, heeded], sort_keys=True)
    if not isinstance(shape, list) or not all(type(n) is int for n in shape):
        return text + json.dumps(shape), None
    return text, tuple(shape)


def _compare(one: Watched, documents: Documents) -> list[str]:
    """Describe how an array differs by its documents, but for its length."""
    ours, documented = one.layout.spec.as_documented, one.layout.spec.documented
    try:
        now = array_from(dict(zip(one.location.keys, documents, strict=True)), ours.zarr_format)
        described = with_length(now, 1) if ours.shape == now.shape == (0,) else now
        changes = layout_changes(ours, read_layout(described, sample_axis=ours.sample_axis))
        if documented is not None and documented.heeds_attributes:
            changes += filter(None, [decoding_change(documented.decoding, find_decoding(now))])
            units, were = str(now.metadata.attributes.get("units", "")), documented.units
            if units and were and normal_units(units) != normal_units(were):  # added ones say nothing of the numbers
                changes.append(f"units are {units!r}, were {were!r}")
    except ZarrfeedError as error:
        return [f"cannot be read any more: {_NAMELESS.sub('', str(error))}"]
    except Exception as error:  # noqa: BLE001 (what zarr-python's parsers raise is of any class)
        return [f"zarr-python cannot read its metadata any more: {error!r}"]
    return changes


def _reason(error: BaseException) -> str:
    return str(error.strerror) if isinstance(error, StoreReadError) else reason_of(error)


def _changed(name: str, what: str) -> StoreReadError:
    return StoreReadError(
        errno.ESTALE,
        f"{name}: changed since it was opened: {what}. Open it again with zarrfeed.open, and make the dataset anew; a "
        "store that grows while it is read is opened with zarrfeed.open(..., refresh='epoch')",
    )
