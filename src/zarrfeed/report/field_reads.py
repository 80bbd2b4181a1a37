"""The chunks that an epoch decodes for each field: of an array, for the first of the fields that draw from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zarrfeed.plan.blocks.decoded_bytes import Grain
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.plan.order.cached_decodes import SharingMemory
from zarrfeed.plan.order.carry import SourceReads, chunks_of_order, chunks_of_plan, source_reads
from zarrfeed.plan.order.order import EpochPlan
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import Field, VlenField


@dataclass(frozen=True)
class FieldReads:
    """The read chunks that an epoch of a consumer decodes for a field.

    Attributes
    ----------
    decoded
        Number of chunks that are decoded. For text and bytes: if all chunks fit in the cache.
    distinct
        Number of different chunks among these.
    of_all
        Number of different chunks that all consumers together decode; 0: chunks that others decode are counted, too.
    decoded_with
        The name of the field whose figures count the chunks; "" if it is this field.
    most
        Chunks that are decoded at most, however long threads hold memory. None: it is not known.
    decoded_bytes
        The bytes that are decoded. None: they are those of `decoded` chunks, at most.
    bytes_of_all
        The bytes of `of_all` chunks, which several layouts have of several sizes.
    are_slabs
        True if slabs of chunks are decoded, each without the rest of its chunk.
    """

    decoded: int = 0
    distinct: int = 0
    of_all: int = 0
    decoded_with: str = ""
    most: int | None = None
    decoded_bytes: float | None = None
    bytes_of_all: int = 0
    are_slabs: bool = False

    def decodes(self, readers: int) -> float:
        """Return the decodes of a byte in an epoch, if each of so many consumers decodes as much."""
        if self.decoded_bytes is None:
            return self.amplification(readers)
        return readers * self.decoded_bytes / self.bytes_of_all if self.bytes_of_all else 1.0

    def amplification(self, readers: int) -> float:
        """Return the reads of a chunk in an epoch, if each of so many consumers reads as much; of slabs, `decodes`."""
        if self.are_slabs:  # of a chunk, each consumer has some slabs
            return self.decodes(readers)
        often = self.decoded / self.distinct if self.distinct else 1.0
        # Other consumers may decode the same ones.
        return max(often, readers * self.decoded / self.of_all) if readers > 1 and self.of_all else often


def sharing_memory(memory: MemoryPlan, batch_size: int, max_open_batches: int) -> SharingMemory:
    """Return the memory for chunks that groups of a plan share."""
    return SharingMemory(memory.carry_bytes, memory.keep_bytes, memory.num_threads, batch_size, max_open_batches)


def reads_of_fields(
    fields: Sequence[Field],
    plan: EpochPlan,
    memory: SharingMemory,
    patched: Sequence[tuple[int, int]] | None,
    grains: Sequence[Grain] = (),
) -> dict[int, FieldReads]:
    """Return the reads of each stored field in an epoch; keys are indices among the fields.

    `grains` has the grain of each of the `array_sources`; empty: only the bytes of slabs are counted.

    `patched` has, for each array that patches are cut out of, the number of decoded chunks and of all chunks; None:
    samples are rows.
    """
    sources, of_sources = array_sources(fields), list[SourceReads]()
    if patched is not None:  # with several layouts, the reads of the first stand for all
        sources = tuple(one for one in sources if one.draws[0][1] == 0 and fields[one.fields[0]].patch is not None)
        of_sources += [SourceReads(decoded, chunks, 0) for decoded, chunks in patched]
    else:
        of_sources += source_reads(plan, fields, memory, grains)
    loaded = [one.fields for one in array_sources(fields, resident=True)]
    with_others = {number: first for first, *others in loaded for number in others}
    counted: dict[int, list[tuple[SourceReads, int]]] = {}  # with the bytes of a chunk
    for source, reads in zip(sources, of_sources, strict=True):
        counted.setdefault(source.fields[0], []).append((reads, source.spec.decoded_bytes))
        with_others |= dict.fromkeys(source.fields[1:], source.fields[0])
    found = {number: FieldReads(decoded_with=fields[first].name) for number, first in with_others.items()}
    for number, sized in counted.items():
        each = [one for one, _ in sized]
        known = [one.most for one in each if one.most is not None]
        in_part = any(one.in_part is not None for one in each)
        parts = [one.decoded if one.in_part is None else one.in_part for one in each]
        found[number] = FieldReads(
            sum(one.decoded for one in each),
            sum(one.distinct for one in each),
            sum(one.of_all for one in each),
            most=sum(known) if len(known) == len(each) else None,
            decoded_bytes=sum(part * size for part, (_, size) in zip(parts, sized, strict=True)) if in_part else None,
            bytes_of_all=sum(one.of_all * size for one, size in sized),
            are_slabs=in_part and plan.order.slabs is not None,
        )
    return {**{number: _reads_of_whole(f, plan) for number, f in enumerate(fields)}, **found}


def _reads_of_whole(field: Field, plan: EpochPlan) -> FieldReads:
    """Return the reads of a field that is read into memory, or looked up."""
    if isinstance(field, VlenField):
        read = sum(len(chunks_of_plan(plan, field, one)) * one.spec.num_cells for one in field.layouts)
        of_all = sum(len(chunks_of_order(plan.order, field, one)) * one.spec.num_cells for one in field.layouts)
        return FieldReads(read, read, of_all)
    if field.resident:
        chunks = sum(layout.num_chunks * layout.spec.num_cells for layout in field.layouts)
        return FieldReads(chunks, chunks, most=chunks)
    return FieldReads()
