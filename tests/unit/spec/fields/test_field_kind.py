"""What fields of each kind answer, and that another kind of field needs no more than to answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.dtype import VariableLengthBytes
from zarr.storage import MemoryStore

from zarrfeed.base.errors import ConfigError
from zarrfeed.engine.engine_fields import EngineFields
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.face.data_page import field_rows
from zarrfeed.plan.blocks.blocks import choose_primary, plan_blocks
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.plan.order.carry import carries
from zarrfeed.plan.order.order import Order
from zarrfeed.report.explain import explain
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.arrays.layout import Layout
from zarrfeed.spec.fields.array_sources import array_sources
from zarrfeed.spec.fields.field import FieldSet, HostRows, IndexField, ObjectField, StoredField, VlenField, check_pad
from zarrfeed.spec.fields.field_kind import FieldKind
from zarrfeed.spec.fields.images import Images
from zarrfeed.spec.fields.segment_text import SegmentTextField
from zarrfeed.spec.fields.sparse import CsrField, Elements
from zarrfeed.spec.fields.stack import StackSlice
from zarrfeed.spec.fields.window_fields import LeadField, PadMaskField
from zarrfeed.spec.patches.patch import FieldPatch, PatchAxis, Volumes
from zarrfeed.spec.samples.row_map import OneRow, RowMap, SegmentRows
from zarrfeed.spec.samples.window import Lead, Pad, Window
from zarrfeed.spec.values.conversion import Conversion
from zarrfeed.spec.values.record import Record

N = 24

PADDED = Window((-1, 0), pad=Pad("fill", 7.0))
SEGMENTS = SegmentRows(np.append(np.arange(1, N), 100))
STACK = StackSlice("samples", (4, 3), 48, 12, 1, 1)
CUT = FieldPatch((PatchAxis(0, 4), PatchAxis(1, 2)), Volumes(np.array([0]), np.array([N])), fill=-1.0)


def array(shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "f4", **options: Any) -> ArraySpec:
    """Return the description of an array in memory."""
    stored = zarr.create_array(MemoryStore(), shape=shape, chunks=chunks, dtype=dtype, **options)
    return replace(read_layout(stored), name="data.zarr")


def elements(dtype: str, chunk: int) -> Elements:
    """Return the elements of a matrix with two stored values a row."""
    zero = np.zeros(1, dtype=np.int64)
    spec = array((2 * N // chunk, chunk), (1, chunk), dtype)
    return Elements((Layout(spec),), zero, zero, np.array([0, 2 * N]))


def text_array() -> ArraySpec:
    return array((N, 2), (4, 2), str)


def encoded_array() -> ArraySpec:
    return array((N,), (4,), VariableLengthBytes(), zarr_format=2)


@functools.cache
def made() -> Any:
    """Return fields of all kinds, with what they answer: made when first asked for, as zarr starts a thread."""
    stored = StoredField("samples", array((N, 3), (4, 3), shards=(8, 3)))
    resident = field_in_memory("samples", np.arange(N * 3, dtype="i2").reshape(N, 3), 0)
    record = Record(np.dtype([("x", "<f4"), ("y", "u1", 3)]), ("x", "y"))
    in_records = field_in_memory("samples", np.zeros(N, record.dtype), 0, record)
    matrix = CsrField(
        "samples", "m.h5ad/X", 5, np.arange(N + 1) * 2, np.array([0, N]), elements("i4", 8), elements("f4", 16)
    )

    # The answers of a field that the engine computes, and that nothing is read for.
    computed: Mapping[str, Any] = MappingProxyType(
        {
            "array_path": "",
            "chosen_items": "",
            "batch_item_bytes": 8,
            "conversion": None,
            "described_dtype": "int64",
            "described_items": "int64",
            "dtype_name": "int64",
            "fill_value": None,
            "has_numbers": False,
            "has_one_row": False,
            "has_rows": False,
            "has_rows_axis": False,
            "images": None,
            "is_lookup": False,
            "is_of_segments": False,
            "is_sharded": False,
            "is_sparse": False,
            "is_stored": False,
            "is_streamed": False,
            "item_type": "",
            "label": "index",
            "layouts": (),
            "lists_order": False,
            "num_rows": N,
            "num_samples": N,
            "pad": None,
            "patch": None,
            "record": None,
            "resident": False,
            "resident_bytes": 0,
            "row_map": None,
            "sample_bytes": 8,
            "sample_shape": (),
            "shape": (),
            "stack": None,
            "window": None,
        }
    )
    # The same of stored rows of three float32 values.
    rows = {
        **computed,
        "array_path": "data.zarr",
        "batch_item_bytes": 4,
        "described_dtype": "float32",
        "described_items": "float32",
        "dtype_name": "float32",
        "has_numbers": True,
        "has_rows": True,
        "is_sharded": True,
        "is_stored": True,
        "is_streamed": True,
        "label": "samples (data.zarr)",
        "layouts": stored.layouts,
        "resident_bytes": N * 12,
        "sample_bytes": 12,
        "sample_shape": (3,),
        "shape": (3,),
    }
    in_memory = {
        **rows,
        "array_path": "",
        "batch_item_bytes": 2,
        "described_dtype": "int16",
        "described_items": "int16",
        "dtype_name": "int16",
        "is_sharded": False,
        "is_stored": False,
        "is_streamed": False,
        "label": "samples",
        "layouts": (),
        "resident_bytes": 0,
        "sample_bytes": 6,
    }
    looked_up = {
        **computed,
        "array_path": "data.zarr",
        "is_lookup": True,
        "is_stored": True,
        "label": "samples (data.zarr)",
    }
    text = VlenField("samples", text_array())
    encoded = VlenField("samples", encoded_array())
    images = Images(size=(4, 5))

    # Name -> a field, and what differs in its answers from others.
    kinds: dict[str, tuple[FieldKind, dict[str, Any]]] = {
        "stored": (stored, rows),
        "read once": (replace(stored, resident=True), {**rows, "resident": True, "is_streamed": False}),
        "converted": (
            replace(stored, conversion=Conversion("float32", "float64")),
            {
                **rows,
                "batch_item_bytes": 8,
                "conversion": Conversion("float32", "float64"),
                "described_dtype": "float64",
                "described_items": "float64",
                "dtype_name": "float64",
                "layouts": (Layout(stored.spec, None, Conversion("float32", "float64")),),
                "resident_bytes": N * 24,
                "sample_bytes": 24,
            },
        ),
        "windows": (
            replace(stored, window=PADDED),
            {
                **rows,
                "fill_value": 7.0,
                "has_rows_axis": True,
                "pad": PADDED.pad,
                "sample_bytes": 24,
                "sample_shape": (2, 3),
                "shape": (2, 3),
                "window": PADDED,
            },
        ),
        "patches": (
            stored.with_patch(CUT),
            {
                **rows,
                "fill_value": -1.0,
                "patch": CUT,
                "resident_bytes": N * 32,
                "sample_bytes": 32,
                "sample_shape": (4, 2),
                "shape": (4, 2),
            },
        ),
        "joined": (
            stored.with_row_map(RowMap(range(0, N, 2))),
            {**rows, "num_samples": 12, "resident_bytes": 12 * 12, "row_map": RowMap(range(0, N, 2))},
        ),
        "channels": (stored.with_stack(STACK), {**rows, "stack": STACK}),
        "in memory": (resident, in_memory),
        "records": (
            in_records,
            {
                **in_memory,
                "batch_item_bytes": 1,
                "described_dtype": str(record),
                "described_items": "uint8",
                "dtype_name": "uint8",
                "has_numbers": False,
                "record": record,
                "sample_bytes": 7,
                "sample_shape": (7,),
                "shape": (),
            },
        ),
        "one row": (
            replace(resident, row_map=OneRow(100)),
            {**in_memory, "has_one_row": True, "num_samples": 100, "row_map": OneRow(100)},
        ),
        "of segments": (
            replace(resident, row_map=SEGMENTS),
            {**in_memory, "is_of_segments": True, "num_samples": 100, "row_map": SEGMENTS},
        ),
        "text of segments": (
            SegmentTextField("samples", ("a",) * N, SEGMENTS),
            {
                **computed,
                "described_dtype": "str",
                "described_items": "str",
                "dtype_name": "str",
                "is_lookup": True,
                "is_of_segments": True,
                "item_type": "str",
                "label": "samples",
                "num_samples": 100,
                "row_map": SEGMENTS,
            },
        ),
        "index": (IndexField(N), dict(computed)),
        "which rows are padded": (
            PadMaskField(N, PADDED, "is_pad"),
            {
                **computed,
                "batch_item_bytes": 1,
                "described_dtype": "bool",
                "described_items": "bool",
                "dtype_name": "bool",
                "has_rows_axis": True,
                "label": "is_pad",
                "pad": PADDED.pad,
                "sample_bytes": 2,
                "sample_shape": (2,),
                "shape": (2,),
                "window": PADDED,
            },
        ),
        "drawn distance": (LeadField(N, Lead(1, 3)), {**computed, "label": "lead"}),
        "text": (
            text,
            {
                **looked_up,
                "described_dtype": "str",
                "described_items": "str",
                "dtype_name": "str",
                "item_type": "str",
                "layouts": text.layouts,
                "sample_shape": (2,),
                "shape": (2,),
            },
        ),
        "images": (
            replace(encoded, images=images),
            {
                **looked_up,
                "batch_item_bytes": 1,
                "described_dtype": "uint8",
                "described_items": "bytes",
                "dtype_name": "uint8",
                "images": images,
                "item_type": "bytes",
                "layouts": encoded.layouts,
                "sample_bytes": 8 + 60,
                "sample_shape": (3, 4, 5),
                "shape": (3, 4, 5),
            },
        ),
        "sparse": (
            matrix,
            {
                **looked_up,
                "array_path": "m.h5ad/X",
                "batch_item_bytes": 4,
                "described_dtype": "sparse_csr of float32",
                "described_items": "a sparse matrix",
                "dtype_name": "float32",
                "is_sparse": True,
                "label": "samples (m.h5ad/X)",
                "lists_order": True,
                "sample_bytes": 8 + 16,
                "sample_shape": (5,),
                "shape": (5,),
            },
        ),
        "dense": (
            replace(matrix, dense=True),
            {
                **looked_up,
                "array_path": "m.h5ad/X",
                "batch_item_bytes": 4,
                "described_dtype": "float32",
                "described_items": "a sparse matrix",
                "dtype_name": "float32",
                "label": "samples (m.h5ad/X)",
                "lists_order": True,
                "sample_bytes": 8 + 16,
                "sample_shape": (5,),
                "shape": (5,),
            },
        ),
        "objects": (
            ObjectField(N, "abc", 1000),
            {
                **computed,
                "described_dtype": "keys abc",
                "described_items": "keys abc",
                "dtype_name": "keys abc",
                "label": "objects",
                "lists_order": True,
                "sample_bytes": 1000,
            },
        ),
    }
    return SimpleNamespace(stored=stored, resident=resident, matrix=matrix, kinds=kinds)


#: The fields of `made().kinds`.
NAMES = (
    "stored",
    "read once",
    "converted",
    "windows",
    "patches",
    "joined",
    "channels",
    "in memory",
    "records",
    "one row",
    "of segments",
    "text of segments",
    "index",
    "which rows are padded",
    "drawn distance",
    "text",
    "images",
    "sparse",
    "dense",
    "objects",
)
STORES = ("stored", "read once", "converted", "windows", "patches", "joined", "channels", "text", "images")


def answers_of(field: FieldKind) -> dict[str, Any]:
    """Return all that a field of any kind answers without an argument."""
    names = {name for name, value in vars(FieldKind).items() if isinstance(value, property)}
    names |= {"num_samples", "sample_shape"}
    if isinstance(field, ObjectField):
        names -= {"batch_item_bytes"}  # an object is no item of a dtype
    if field.item_type and field.images is None:
        names -= {"batch_item_bytes"}  # and neither is a text
    return {name: getattr(field, name) for name in names}


@pytest.mark.parametrize("name", NAMES)
def test_a_field_answers_all_questions_by_its_kind(name: str) -> None:
    field, expected = made().kinds[name]
    found = answers_of(field)
    assert found == {answer: value for answer, value in expected.items() if answer in found}
    assert set(expected) >= set(found)


def test_each_kind_is_tried() -> None:
    assert tuple(made().kinds) == NAMES


def test_all_arrays_of_a_field_are_those_whose_rows_are_samples_and_those_of_the_elements_of_a_matrix() -> None:
    for name, (field, _) in made().kinds.items():
        both = (*made().matrix.indices.layouts, *made().matrix.data.layouts)
        assert field.arrays() == (both if name in ("sparse", "dense") else field.layouts), name


def test_a_page_says_where_the_values_of_a_field_are() -> None:
    said = {name: field.describe_source() for name, (field, _) in made().kinds.items()}
    assert said == {
        **dict.fromkeys(made().kinds, ""),
        **dict.fromkeys(STORES, "data.zarr, (24, 3) in read chunks of (4, 3)"),
        "text": "data.zarr, (24, 2) in read chunks of (4, 2)",
        "images": "data.zarr, (24,) in read chunks of (4,)",
        "in memory": "in memory",
        "records": "in memory",
        "one row": "in memory, the same for all samples",
        "of segments": "in memory",
        "text of segments": "in memory",
        **dict.fromkeys(("sparse", "dense"), "m.h5ad/X, 24 rows of 5 columns, 48 stored values (2 a row, 40 %)"),
    }


def test_only_a_matrix_has_blocks_of_its_own_and_they_begin_with_rows() -> None:
    for name, (field, _) in made().kinds.items():
        edges = field.find_edges()
        assert (edges is not None) == (name in ("sparse", "dense")), name
    edges = made().matrix.find_edges()
    assert edges[0] == 0
    assert edges[-1] == N


def test_what_tells_values_apart_is_a_hash_in_memory_and_chunks_and_codecs_of_a_store() -> None:
    other = replace(made().resident, rows=HostRows(made().resident.rows.array + np.uint8(1)))
    assert made().resident.describe_values() == replace(made().resident, name="another").describe_values()
    assert made().resident.describe_values() != other.describe_values()
    assert set(made().stored.describe_values()) == {"chunks", "codecs"}
    assert made().stored.describe_values()["chunks"] == (4, 3)


def test_fields_in_memory_are_the_same_by_their_values_and_others_if_they_are_equal() -> None:
    copied = replace(made().resident, rows=HostRows(made().resident.rows.array.copy()))
    other = replace(made().resident, rows=HostRows(made().resident.rows.array + np.uint8(1)))
    assert copied != made().resident
    assert copied.holds_same(made().resident)
    assert not other.holds_same(made().resident)
    assert not replace(copied, name="another").holds_same(made().resident)
    assert not made().resident.holds_same(made().stored)
    assert not made().stored.holds_same(made().resident)
    from_a, from_b = (HostRows(copied.rows.array, source=replace(made().stored, name=name)) for name in "ab")
    assert not replace(made().resident, rows=from_a).holds_same(replace(made().resident, rows=from_b))
    assert not replace(made().resident, rows=from_a).holds_same(made().resident)
    assert replace(made().resident, rows=from_a).holds_same(
        replace(made().resident, rows=HostRows(other.rows.array, source=from_a.source))
    )
    for name, (field, _) in made().kinds.items():
        assert field.holds_same(field), name


def test_all_layouts_of_an_array_are_described_anew_and_fields_without_one_stay() -> None:
    many = replace(made().stored, others=(Layout(array((N, 3), (6, 3))),))
    changed = many.with_specs(lambda spec: replace(spec, name="elsewhere"))
    assert [layout.spec.name for layout in changed.layouts] == ["elsewhere"] * 2
    assert [layout.spec.rows_per_chunk for layout in changed.layouts] == [4, 6]
    for name, (field, _) in made().kinds.items():
        same = field.with_specs(lambda spec: replace(spec, name="elsewhere"))
        assert (same is field) == (not field.layouts), name


def test_a_field_with_windows_can_do_without_them_and_keeps_all_else() -> None:
    windows = (replace(made().stored, window=PADDED), replace(made().resident, window=PADDED))
    assert [one.without_window() for one in windows] == [made().stored, made().resident]
    for name, (field, _) in made().kinds.items():
        if field.window is None:
            assert field.without_window() == field, name


def test_rows_are_joined_and_stacked_only_where_the_engine_copies_them() -> None:
    rows = RowMap(range(3))
    changes: list[Callable[[FieldKind], FieldKind]] = [
        lambda field: field.with_row_map(rows),
        lambda field: field.with_stack(STACK),
        lambda field: field.with_patch(CUT),
    ]
    for name, (field, _) in made().kinds.items():
        if field.has_rows:
            assert field.with_row_map(rows).row_map == rows, name
            assert field.with_stack(STACK).stack == STACK, name
            continue
        for change in changes:
            with pytest.raises(NotImplementedError):
                change(field)


def test_a_value_that_the_dtype_cannot_hold_is_refused_where_it_is_delivered_and_not_in_the_mask() -> None:
    nan = replace(PADDED, pad=Pad("fill", float("nan")))
    with pytest.raises(ConfigError, match="pad of samples = nan: batches have int16"):
        check_pad(replace(made().resident, window=nan))
    check_pad(PadMaskField(N, nan, "is_pad"))
    check_pad(replace(made().stored, window=nan))


@dataclass(frozen=True)
class Constant(FieldKind):
    """The same number for all samples: no more than the parts that a kind must have."""

    num_samples: int
    name: str = "samples['one']"

    sample_shape: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        return "float32"


def test_another_kind_of_field_is_planned_and_explained_by_its_answers() -> None:
    constant = Constant(N)
    assert [one.name for one in fields(Constant)] == ["num_samples", "name", "sample_shape"]
    for all_fields in ((made().stored, constant), (constant, made().stored), (constant,)):
        at = all_fields.index(constant)
        assert choose_primary(all_fields, all_fields) == (None if len(all_fields) == 1 else 1 - at)
        blocks = plan_blocks(all_fields, len(all_fields), room=1 << 20)
        assert blocks.fields[at] is constant
        assert [number for number, _ in EngineFields(all_fields).outputs] == list(range(len(all_fields)))
        assert EngineFields(all_fields).source_numbers == list(range(len(all_fields)))
        assert constant not in [all_fields[n] for source in array_sources(all_fields) for n in source.fields]
        assert not carries(constant)
        described = FieldSet(blocks.fields, (None,), blocks.primary, blocks.rows)
        memory = plan_memory(
            FieldNeeds.of(blocks.fields), batch_size=4, num_threads=1, budget=1 << 30, min_open_batches=1
        )
        assert memory.batch_bytes == 4 * sum(one.sample_bytes for one in all_fields)
        order = Order(num_samples=N, block_rows=blocks.rows, shuffle=True, seed=0, lanes=1)
        explained = explain(
            fields=described, plan=order.plan(0), batch_size=4, memory=memory, max_open_batches=2, pinned=False
        )
        row = explained.fields[at]
        assert (row.name, row.source, row.description, row.chunk_reads) == (
            constant.name,
            "computed",
            "(24,) float32",
            0,
        )
        assert "(24,) float32" in str(explained)
    assert field_rows((constant,)) == [(constant.name, "float32 of shape ()")]
