"""The reader of each kind of field whose samples are looked up by their indices, which the engine delivers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from zarrfeed.engine.batch_arrays import BatchArrays
from zarrfeed.engine.csr_reader import CsrReader
from zarrfeed.engine.element_blocks import MakeReader
from zarrfeed.engine.image_reader import ImageReader
from zarrfeed.engine.sample_lookup import SampleLookup
from zarrfeed.engine.segment_text import SegmentTextLookup
from zarrfeed.engine.vlen import VlenReader
from zarrfeed.engine.vlen_parts import PartedVlenReader
from zarrfeed.plan.budget.memory import MemoryPlan
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import VlenField
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.fields.sparse import CsrField


@dataclass(frozen=True)
class LookupOptions:
    """Options of the reader that look-ups are made for; `make_reader` makes another one, of arrays."""

    batch_size: int
    num_threads: int
    memory: MemoryPlan
    arrays: BatchArrays
    policy: Faults
    make_reader: MakeReader


@singledispatch
def make_lookup(field: FieldKind, options: LookupOptions) -> SampleLookup[Any]:
    """Return a reader that looks up the samples of a field, if `FieldKind.is_lookup` is true of its kind."""
    raise NotImplementedError(f"{field.label}: engine/lookups.py names no reader for this kind of field")


@make_lookup.register
def _(field: VlenField, options: LookupOptions) -> SampleLookup[Any]:
    kind = VlenReader if field.parts is None else PartedVlenReader
    encoded = kind(
        field,
        cache_bytes=options.memory.list_cache_bytes,
        max_decodes=options.num_threads,
        policy=options.policy,
    )
    if field.images is None:
        return encoded
    return ImageReader(
        field,
        encoded,
        batch_size=options.batch_size,
        num_threads=options.num_threads,
        arrays=options.arrays,
    )


@make_lookup.register
def _(field: CsrField, options: LookupOptions) -> SampleLookup[Any]:
    return CsrReader(
        field,
        batch_size=options.batch_size,
        num_threads=options.num_threads,
        cache_bytes=options.memory.list_cache_bytes,
        spare_bytes=options.memory.element_spare,
        arrays=options.arrays,
        policy=options.policy,
        make_reader=options.make_reader,
    )


@make_lookup.register
def _(field: SegmentTextField, options: LookupOptions) -> SampleLookup[Any]:  # noqa: ARG001 (of other kinds)
    return SegmentTextLookup(field)
