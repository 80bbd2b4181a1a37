"""What the user passed becomes fields with a common number of samples."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import zarrfeed
from tests.support.oracle import DTYPES, Layout, no_thread_left, numbered, raw_rows, read_all
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.engine.reader import load_resident
from zarrfeed.metadata.group.fields import Source
from zarrfeed.plan.schedule.state import describe_layout
from zarrfeed.spec.fields.field import Field, FieldSet, IndexField, ResidentField, StoredField
from zarrfeed.torch.batches.batch import BatchAssembler
from zarrfeed.torch.batches.host_rows import SharedRows, with_shared_rows
from zarrfeed.torch.batches.tensors import TORCH_DTYPES, torch_dtype

N = 20


def read_fields(
    samples: Source, targets: Source | None = None, *, room: int = 0, return_index: bool = False, sample_axis: int = 0
) -> FieldSet:
    """Return the fields of a reader with so much room for fields in memory."""
    data = zarrfeed.open(samples, targets, sample_axis=sample_axis)
    return data.resolved.planned(room=room, return_index=return_index)[0]


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Write 20 samples in chunks of 6."""
    Layout(shape=(N, 3), chunks=(6, 3)).write(tmp_path / "x")
    return tmp_path / "x"


def targets_of(samples: Source, targets: Source, *, room: int = 0) -> Field:
    field = read_fields(samples, targets, room=room).fields[1]
    assert field.name == "targets"
    return field


def in_memory(targets: Any, samples: Path) -> ResidentField:
    field = targets_of(samples, targets)
    assert isinstance(field, ResidentField)
    return field


def test_a_single_array_is_streamed_and_never_resident(samples: Path) -> None:
    (field,) = read_fields(samples, room=1 << 30).fields
    assert isinstance(field, StoredField)
    assert not field.resident
    assert (field.name, field.num_samples, field.sample_shape) == ("samples", N, (3,))
    assert field.dtype_name == "float32"
    assert field.sample_bytes == 12


@pytest.mark.parametrize(
    ("rows", "nested"), [(6, True), (3, True), (2, True), (1, True), (4, False), (5, False), (12, False), (20, False)]
)
def test_small_targets_whose_chunks_do_not_nest_in_the_blocks_are_kept_in_memory(
    rows: int, nested: bool, samples: Path, tmp_path: Path
) -> None:
    Layout(shape=(N, 2), chunks=(rows, 2), dtype="f8").write(tmp_path / "y")
    size = N * 2 * 8
    for resident_bytes, resident in ((size, not nested), (size - 1, False), (0, False)):
        field = targets_of(samples, tmp_path / "y", room=resident_bytes)
        assert isinstance(field, StoredField)
        assert field.resident == resident


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(N,), (N, 2, 3)])
def test_a_resident_stored_field_is_read_whole(
    zarr_format: Any, shape: tuple[int, ...], samples: Path, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, shape, (7, 2, 2)[: len(shape)], "f8", big_endian=True, codec="blosc-lz4-shuffle")
    array = layout.write(tmp_path / "y")
    field = targets_of(samples, tmp_path / "y", room=1 << 20)
    assert isinstance(field, StoredField)
    with no_thread_left():
        loaded = load_resident(field)[0]
    assert (loaded.num_samples, *loaded.row_shape) == shape
    assert (loaded.rows.array == raw_rows(read_all(array))).all()
    shutil.rmtree(tmp_path / "y")
    with no_thread_left(), pytest.raises(StoreReadError, match="y"):
        load_resident(field)


def test_a_resident_stored_field_that_is_corrupt_is_an_error_with_its_key(samples: Path, tmp_path: Path) -> None:
    Layout(shape=(N,), chunks=(7,), codec="zstd").write(tmp_path / "y")
    (tmp_path / "y" / "c" / "1").write_bytes(b"no chunk")
    field = targets_of(samples, tmp_path / "y", room=1 << 20)
    assert isinstance(field, StoredField)
    with no_thread_left(), pytest.raises(CorruptChunkError, match="y chunk c/1: "):
        load_resident(field)


@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_targets_are_used_where_they_lie(dtype: str, samples: Path) -> None:
    array = numbered((N, 2), dtype)
    array = np.ascontiguousarray(array)
    assert in_memory(array, samples).rows.address == array.ctypes.data
    tensor = torch.from_numpy(array)
    field = in_memory(tensor, samples)
    assert field.rows.address == tensor.data_ptr()
    assert torch_dtype(field.dtype) == tensor.dtype
    assert field.sample_bytes == 2 * np.dtype(dtype).itemsize == field.rows.array.shape[1]


def test_the_memory_of_targets_is_held_by_the_field(samples: Path) -> None:
    array = np.arange(N * 100_000, dtype="i4").reshape(N, -1)
    expected = array.copy()
    field = in_memory(array, samples)
    del array
    assert (field.rows.array == raw_rows(expected)).all()


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c16", "u8"])
def test_targets_of_either_byte_order_become_native(dtype: str, order: str, samples: Path) -> None:
    values = numbered((N, 2), dtype)
    field = in_memory(values.astype(order + dtype), samples)
    assert (field.rows.array == raw_rows(values)).all()


def test_read_only_targets_are_read_where_they_lie(samples: Path) -> None:
    array = np.arange(N)
    array.flags.writeable = False
    field = in_memory(array, samples)
    assert field.rows.array.view(np.int64).ravel().tolist() == list(range(N))
    assert field.rows.address == array.ctypes.data
    assert len(pickle.loads(pickle.dumps(with_shared_rows(zarrfeed.open(samples, array))))) == N


def test_bfloat16_targets_of_ml_dtypes_keep_their_bits(samples: Path) -> None:
    bits = numbered((N, 3), "u2")
    for array in (bits.view(ml_dtypes.bfloat16), np.asfortranarray(bits.view(ml_dtypes.bfloat16))):
        field = in_memory(array, samples)
        assert field.dtype == "bfloat16"
        assert (field.rows.array.view(np.uint16) == bits).all()


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES.values(), torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_tensors_of_every_dtype_of_torch_are_targets(dtype: torch.dtype, samples: Path) -> None:
    tensor = torch.arange(N).to(dtype)
    field = in_memory(tensor, samples)
    assert torch_dtype(field.dtype) == dtype
    assert field.rows.array.ravel().tolist() == tensor.view(torch.uint8).tolist()


def test_tensors_without_plain_rows_are_refused(samples: Path) -> None:
    with pytest.raises(UnsupportedError, match="targets: "):
        in_memory(torch.eye(N).to_sparse(), samples)


def test_targets_that_require_grad_are_detached(samples: Path) -> None:
    tensor = torch.arange(float(N), requires_grad=True)
    field = in_memory(tensor, samples)
    assert field.rows.array.view(np.float32).ravel().tolist() == list(range(N))
    assert field.rows.address == tensor.data_ptr()


def test_conjugated_targets_are_resolved(samples: Path) -> None:
    """tensor.conj() only sets a bit; the memory below holds the values before it."""
    values = torch.arange(N) * (1 + 2j)
    field = in_memory(values.conj(), samples)
    assert field.rows.array.view(np.complex64).ravel().tolist() == values.numpy().conj().tolist()


def test_the_index_is_one_int64_a_sample() -> None:
    field = IndexField(N)
    assert (field.sample_shape, field.dtype_name, field.sample_bytes) == ((), "int64", 8)


@pytest.mark.parametrize("length", [0, N - 1, N + 1])
def test_targets_of_another_length_are_refused(length: int, samples: Path) -> None:
    with pytest.raises(ConfigError, match=f"targets has {length} samples, samples .* has {N}: they must be equal"):
        in_memory(np.zeros((length, 2)), samples)


def test_targets_are_aligned_along_axis_0_whatever_the_sample_axis_of_the_samples(tmp_path: Path) -> None:
    Layout(shape=(3, N), chunks=(3, 6), sample_axis=1).write(tmp_path / "x")
    Layout(shape=(N, 3), chunks=(6, 3)).write(tmp_path / "y")
    both = read_fields(tmp_path / "x", tmp_path / "y", sample_axis=1)
    assert [f.num_samples for f in both.fields] == [N, N]
    with pytest.raises(ConfigError, match="targets has 3 samples"):
        read_fields(tmp_path / "x", tmp_path / "x", sample_axis=1)


# --- which chunks are the blocks --------------------------------------------------------------------------------


def test_resident_fields_share_the_room_for_them(tmp_path: Path) -> None:
    Layout(shape=(N, 8), chunks=(6, 8)).write(tmp_path / "x")
    for name in "abc":
        Layout(shape=(N, 1), chunks=(5, 1)).write(tmp_path / name)
    size = N * 4
    for room, kept in ((0, []), (size, ["a"]), (2 * size, ["a", "b"]), (3 * size, ["a", "b", "c"])):
        fields = read_fields({k: tmp_path / k for k in "xabc"}, room=room).fields
        resident = [f.name for f in fields if isinstance(f, StoredField) and f.resident]
        assert resident == [f"samples[{name!r}]" for name in kept]


# --- the shape of a batch ---------------------------------------------------------------------------------------


def test_the_fingerprint_of_the_layout_names_every_field_as_json(samples: Path, tmp_path: Path) -> None:
    Layout(shape=(N, 3), chunks=(6, 3), codec="zstd").write(tmp_path / "moved")
    fields = read_fields({"x": samples, "m": np.zeros((N, 2))}, torch.zeros(N, dtype=torch.bool), return_index=True)
    described = describe_layout(fields.fields)
    assert json.loads(json.dumps(described)) == described
    assert described == {
        "samples['x']": [N, 3, "float32"],
        "samples['m']": [N, 2, "float64"],
        "targets": [N, "bool"],
    }
    assert describe_layout(read_fields(samples).fields) == describe_layout(read_fields(tmp_path / "moved").fields)
    assert describe_layout(read_fields({"x": samples}).fields) != describe_layout(read_fields(samples).fields)


def test_batches_and_samples_have_the_shape_of_what_was_passed() -> None:
    a, b, c = torch.arange(3), torch.arange(3) + 10, torch.arange(3) + 20
    bare = BatchAssembler(FieldSet((), (None,), None, 1))
    assert bare.assemble([a]) is a
    assert [int(s) for s in bare.samples_of([a])] == [0, 1, 2]
    pair = BatchAssembler(FieldSet((), (None, None), None, 1))
    assert pair.assemble([a, b]) == (a, b)
    assert [(int(s), int(t)) for s, t in pair.samples_of([a, b])] == [(0, 10), (1, 11), (2, 12)]
    named = BatchAssembler(FieldSet((), (("u", "v"),), None, 1))
    assert named.assemble([a, b]) == {"u": a, "v": b}
    one = BatchAssembler(FieldSet((), (("u",), None), None, 1))
    assert one.assemble([a, b]) == ({"u": a}, b)
    mixed = BatchAssembler(FieldSet((), (None, ("v", "u")), None, 1))
    assert mixed.assemble([a, b, c]) == (a, {"v": b, "u": c})
    assert list(mixed.assemble([a, b, c])[1]) == ["v", "u"]
    assert list(mixed.samples_of([a, b, c])) == [(i, {"v": i + 10, "u": i + 20}) for i in range(3)]


# --- other processes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dumps", [pickle.dumps, ForkingPickler.dumps], ids=["pickle", "ForkingPickler"])
def test_sending_a_field_in_memory_does_not_move_what_engines_read(dumps: Any) -> None:
    """A tensor that is sent to a process is moved to shared memory, and its old memory is freed."""
    field = with_shared_rows(zarrfeed.open(torch.arange(1000))).resolved.fields[0]
    assert isinstance(field, ResidentField)
    address = field.rows.address
    for _ in range(2):
        received = pickle.loads(dumps(field))
        assert (received.rows.array == field.rows.array).all()
        assert received.rows.address != address
        assert field.rows.address == address


def sent_rows(field: Any) -> torch.Tensor:
    assert isinstance(field, ResidentField)
    assert isinstance(field.rows, SharedRows)
    sent, _ = field.rows.__getstate__()
    return sent


def test_sending_a_field_twice_copies_it_once_and_shared_rows_not_at_all() -> None:
    field = with_shared_rows(zarrfeed.open(torch.arange(1000))).resolved.fields[0]
    assert isinstance(field, ResidentField)
    first, second = (sent_rows(field) for _ in range(2))
    assert first.data_ptr() == second.data_ptr() != field.rows.address
    rows = torch.arange(1000)
    rows.share_memory_()  # type: ignore[no-untyped-call]
    shared = with_shared_rows(zarrfeed.open(rows)).resolved.fields[0]
    assert sent_rows(shared).data_ptr() == rows.data_ptr()
    assert copy.deepcopy(field).rows is field.rows
