"""`PackJob`: a source, a target, and the division of the work into units that do not depend on each other.

Positions are those in the packed store, over all of its parts; numbers are those in the source. Without a seed they are
the same. A unit is a run of positions that makes whole stored objects, so that any process can do any unit, again too.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.packing.sources.source import Int64, SourceCall
from zarrfeed.packing.targets.pack_layout import FieldLayout, SparseLayout
from zarrfeed.plan.order.random_bijection import RandomBijection
from zarrfeed.storage.chunks.chunk_encoder import Encoding

#: Version of the files that a job keeps.
FORMAT = 1


@dataclass(frozen=True)
class PartOfStore:
    """A group of the packed store, or all of it: the positions [begin, end).

    Attributes
    ----------
    name
        Name of the group; "" for the whole store.
    """

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class Unit:
    """A run of positions [begin, end) of one part, which makes whole stored objects."""

    number: int
    part: PartOfStore
    begin: int
    end: int


@dataclass(frozen=True)
class Gathering:
    """One stored object of an array whose objects have samples of several units: the positions [begin, end) of a part.

    Attributes
    ----------
    field
        Number of the array.
    of_pointers
        True if this is all of `indptr` of a sparse matrix. Otherwise [begin, end) of such a matrix are elements of the
        part, of one stored object of `data` and one of `indices`.
    """

    field: int
    part: PartOfStore
    begin: int
    end: int
    of_pointers: bool = False


@dataclass(frozen=True)
class PackJob:
    """A source, a target, and the rules by which the source becomes the target. Processes send it to each other.

    Attributes
    ----------
    source
        The call that opens the source.
    fingerprint
        Fingerprint of the source.
    out
        Path of the store.
    identity
        A hash of the request: a run goes on only where one with the same identity began.
    num_samples
        Number of samples of the source.
    layouts
        Layouts of the arrays, in the order of the source's fields.
    parts
        Parts of the store, in the order of positions.
    step_rows
        Samples that are read, encoded and written at once: whole stored objects.
    unit_rows
        Samples of a unit.
    seed
        Seed of the order. None: the order is that of the source.
    source_rows
        Samples of a unit of the first pass, which deals the samples of the source to the units of the second one. 0:
        there is no first pass.
    run
        Id of one call of `pack`: what a process opened for another call, it opens again.
    """

    source: SourceCall
    fingerprint: str
    out: str
    identity: str
    num_samples: int
    layouts: tuple[FieldLayout, ...]
    parts: tuple[PartOfStore, ...]
    step_rows: int
    unit_rows: int
    seed: int | None = None
    source_rows: int = 0
    run: str = field(default_factory=lambda: secrets.token_hex(8))

    @cached_property
    def order(self) -> RandomBijection | None:
        """The position of each number; None: its own."""
        return None if self.seed is None else RandomBijection(self.num_samples, self.seed)

    def numbers(self, begin: int, end: int) -> Int64:
        """Return the numbers of the samples at the positions [begin, end)."""
        positions = np.arange(begin, end)
        return positions if self.order is None else self.order.numbers(positions)

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units, in the order of positions."""
        made: list[Unit] = []
        for part in self.parts:
            for begin in range(part.begin, part.end, self.unit_rows):
                made.append(Unit(len(made), part, begin, min(part.end, begin + self.unit_rows)))
        return tuple(made)

    @cached_property
    def gatherings(self) -> tuple[Gathering, ...]:
        """All stored objects that need several units."""
        made: list[Gathering] = []
        for number, layout in enumerate(self.layouts):
            if layout.sparse is not None:
                each = layout.sparse.data.shard_rows
                for part, count in zip(self.parts, layout.sparse.elements, strict=True):
                    made += [Gathering(number, part, n, min(count, n + each)) for n in range(0, count, each)]
                    made.append(Gathering(number, part, 0, part.end - part.begin + 1, of_pointers=True))
            elif layout.is_gathered:
                each = layout.shard_rows
                for part in self.parts:
                    starts = range(part.begin, part.end, each)
                    made += [Gathering(number, part, begin, min(part.end, begin + each)) for begin in starts]
        return tuple(made)

    @property
    def stages(self) -> dict[str, int]:
        """The stages, one after the other, and how many units each has."""
        dealt = {"deal": self.num_source_units} if self.source_rows else {}
        return {**dealt, "write": len(self.units), "gather": len(self.gatherings)}

    @property
    def num_source_units(self) -> int:
        """Units of the first pass."""
        return -(-self.num_samples // self.source_rows) if self.source_rows else 0

    def units_of(self, positions: Int64) -> Int64:
        """Return the number of the unit that each position is in."""
        return np.searchsorted(self._ends, positions, side="right")

    @cached_property
    def _ends(self) -> Int64:
        return np.array([unit.end for unit in self.units])

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: what follows from them, such as the units, is not sent to other processes."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}

    def to_json(self) -> dict[str, Any]:
        """Return the data that another process needs beside the source, without credentials."""
        names = ("fingerprint", "identity", "num_samples", "step_rows", "unit_rows", "seed", "source_rows")
        plain = {name: getattr(self, name) for name in names}
        layouts = [dataclasses.asdict(layout) for layout in self.layouts]
        parts = [dataclasses.asdict(part) for part in self.parts]
        return {"format": FORMAT, **plain, "layouts": layouts, "parts": parts}

    @classmethod
    def from_json(cls, known: Mapping[str, Any], source: SourceCall, out: str) -> PackJob:
        """Return the job of such a mapping.

        Raises
        ------
        ConfigError
            If another version wrote it.
        """
        if known.get("format") != FORMAT:
            raise ConfigError(f"{out}: was begun by another version of zarrfeed, format {known.get('format')!r}")
        rest = {name: value for name, value in known.items() if name not in ("format", "layouts", "parts")}
        layouts = tuple(_layout(one) for one in known["layouts"])
        return cls(
            source=source, out=out, layouts=layouts, parts=tuple(PartOfStore(**p) for p in known["parts"]), **rest
        )


def _layout(known: Mapping[str, Any]) -> FieldLayout:
    encoding, shape, sparse = Encoding(**known["encoding"]), tuple(known["shape"]), known.get("sparse")
    if sparse is not None:
        arrays = {name: _layout(sparse[name]) for name in ("data", "indices", "indptr")}
        sparse = SparseLayout(**{**sparse, **arrays, "elements": tuple(sparse["elements"])})
    return FieldLayout(**{**known, "encoding": encoding, "shape": shape, "sparse": sparse})


def cut_parts(num_samples: int, shares: Mapping[str, float] | None) -> tuple[PartOfStore, ...]:
    """Return the parts of a store: its first samples, and so on, by their shares.

    Raises
    ------
    ConfigError
        If the shares are not positive, do not add up to 1, or leave a part without samples.
    """
    if shares is None:
        return (PartOfStore("", 0, num_samples),)
    values = list(shares.values())
    if not values or min(values) <= 0 or abs(sum(values) - 1) > 1e-6:
        raise ConfigError(f"split = {', '.join(map(str, values))}: shares must be positive and add up to 1")
    ends = [round(num_samples * share) for share in np.cumsum(values)]
    begins = [0, *ends[:-1]]
    for name, begin, end in zip(shares, begins, ends, strict=True):
        if begin == end:
            raise ConfigError(f"split: {name!r} gets none of {num_samples} samples")
        if not name or "/" in name or name.startswith("."):
            raise ConfigError(f"split: {name!r} is no name for a group")
    return tuple(PartOfStore(*one) for one in zip(shares, begins, ends, strict=True))


def share_of(numbers: Sequence[int] | range, part: tuple[int, int] | None) -> Iterator[int]:
    """Yield the numbers that part i of n has to do; all of them without a part."""
    index, count = part or (0, 1)
    return iter(numbers[index::count])
