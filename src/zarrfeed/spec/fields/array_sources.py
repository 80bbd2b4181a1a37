"""`ArraySource`: a stored array that is opened, fetched and decoded once for all fields that draw from it.

Invariant: fields draw from one source only if they surely read the same chunks of the same store in the same way. The
names that users give to fields, and what is made of the rows (windows, conversions, patches, stacks), do not matter.
Each layout of a field is an output of the engine, and has a number there (`engine/engine_fields.py`). A source is known
by the number of the first output that draws from it, so every output has a source number, also those of arrays in
memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from zarrfeed.spec.arrays.array import ArraySpec, StagedArray, StoreLocation
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.field import Field

#: The properties that tell stored arrays apart, beside the stores that Python reads. The name is for messages.
_identity_of = attrgetter(*(one.name for one in dataclasses.fields(ArraySpec) if one.compare and one.name != "name"))


@dataclass(frozen=True)
class ArraySource:
    """A stored array, or one layout of an array in several stores, with the fields that draw from it.

    Attributes
    ----------
    number
        The number that the engine knows it by: that of the first output that draws from it.
    layout
        The location and encoding of its rows, as the first of the fields has them; without a conversion, since each
        field has its own.
    draws
        The fields that draw from it: for each the number of the field, and the number of its layout that this is.
        Ascending; a field draws at most once from a source.
    """

    number: int
    layout: Layout
    draws: tuple[tuple[int, int], ...]

    @property
    def spec(self) -> ArraySpec:
        """The description of the array; with several stores, of all of them together."""
        return self.layout.spec

    @property
    def fields(self) -> tuple[int, ...]:
        """The numbers of the fields that draw from it, ascending."""
        return tuple([field for field, _ in self.draws])


def array_sources(fields: Sequence[Field], *, resident: bool = False) -> tuple[ArraySource, ...]:
    """Return the stored arrays that fields draw from, each once, in the order of the first field that does.

    Parameters
    ----------
    fields
        Fields of any kind; others than stored ones draw from no source.
    resident
        True: return the sources of fields that are read into memory once. False: of those that are streamed.
    """
    found: list[tuple[int, Layout, list[tuple[int, int]]]] = []
    alike: dict[object, list[int]] = {}  # by all but their stores -> positions in `found`
    output = 0
    for number, field in enumerate(fields):
        streams = field.is_streamed
        layouts = field.layouts if streams or field.resident else ()
        for layout_number, layout in enumerate(layouts if field.resident == resident else ()):
            candidates = alike.setdefault((_identity_of(layout.spec), layout.parts), [])
            for same in candidates:
                if _same_store(found[same][1].spec, layout.spec):
                    break
            else:
                candidates.append(same := len(found))
                found.append((output + layout_number, dataclasses.replace(layout, conversion=None), []))
            found[same][2].append((number, layout_number))
        output += len(layouts) if streams else 1
    return tuple([ArraySource(first, layout, tuple(draws)) for first, layout, draws in found])


def loaded_with(fields: Sequence[Field]) -> dict[int, int]:
    """Map each field that is read into memory to the first field with the same rows there, by their numbers."""
    sources_of: dict[int, list[int]] = {}
    for number, source in enumerate(array_sources(fields, resident=True)):
        for one, _ in source.draws:
            sources_of.setdefault(one, []).append(number)
    first: dict[object, int] = {}
    found = {}
    for number, sources in sorted(sources_of.items()):
        conversions = (layout.conversion for layout in fields[number].layouts)
        found[number] = first.setdefault((*sources, *conversions), number)
    return found


def _same_store(one: ArraySpec, other: ArraySpec) -> bool:
    """Return whether two arrays that are alike otherwise lie in the same store, and are cached alike."""
    return _is_same_location(one.source, other.source) and _is_same_cache(one.staged, other.staged)


def _is_same_location(one: StoreLocation | None, other: StoreLocation | None) -> bool:
    return one is other or (one is not None and other is not None and one.reads_as(other))


def _is_same_cache(one: StagedArray | None, other: StagedArray | None) -> bool:
    return one is other or one == other
