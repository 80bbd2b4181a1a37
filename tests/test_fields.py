"""What the user passed becomes fields with a common number of samples."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from oracle import DTYPES, Layout, no_thread_left, numbered, raw_rows, read_all
from zarrfeed import ConfigError, CorruptChunkError, StoreReadError, UnsupportedError
from zarrfeed.feed import load_resident
from zarrfeed.fields import (
    IndexField,
    ResidentField,
    StoredField,
    make_samples_field,
    make_targets_field,
    sample_bytes,
)
from zarrfeed.layout import TORCH_DTYPES

N = 20


@pytest.fixture
def samples(tmp_path: Path) -> StoredField:
    """Write 20 samples in chunks of 6."""
    Layout(shape=(N, 3), chunks=(6, 3)).write(tmp_path / "x")
    return make_samples_field(tmp_path / "x", sample_axis=0)


def in_memory(targets: Any, samples: StoredField) -> ResidentField:
    field = make_targets_field(targets, samples, resident_bytes=0)
    assert isinstance(field, ResidentField)
    return field


def test_samples_are_streamed_and_never_resident(samples: StoredField) -> None:
    assert not samples.resident
    assert (samples.name, samples.num_samples, samples.sample_shape) == ("samples", N, (3,))
    assert samples.torch_dtype == torch.float32
    assert sample_bytes(samples) == 12


@pytest.mark.parametrize("source", [np.zeros((4, 2)), torch.zeros(4, 2)])
def test_samples_in_memory_are_refused(source: Any) -> None:
    with pytest.raises(ConfigError, match=f"got a {type(source).__name__}, must be a Zarr array"):
        make_samples_field(source, sample_axis=0)


@pytest.mark.parametrize(
    ("rows", "nested"), [(6, True), (3, True), (2, True), (1, True), (4, False), (5, False), (12, False), (20, False)]
)
def test_small_targets_whose_chunks_do_not_nest_in_the_blocks_are_kept_in_memory(
    rows: int, nested: bool, samples: StoredField, tmp_path: Path
) -> None:
    Layout(shape=(N, 2), chunks=(rows, 2), dtype="f8").write(tmp_path / "y")
    size = N * 2 * 8
    for resident_bytes, resident in ((size, not nested), (size - 1, False), (0, False)):
        field = make_targets_field(tmp_path / "y", samples, resident_bytes=resident_bytes)
        assert isinstance(field, StoredField)
        assert field.resident == resident


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("shape", [(N,), (N, 2, 3)])
def test_a_resident_stored_field_is_read_whole(
    zarr_format: Any, shape: tuple[int, ...], samples: StoredField, tmp_path: Path
) -> None:
    layout = Layout(zarr_format, shape, (7, 2, 2)[: len(shape)], "f8", big_endian=True, codec="blosc-lz4-shuffle")
    array = layout.write(tmp_path / "y")
    field = make_targets_field(tmp_path / "y", samples, resident_bytes=1 << 20)
    assert isinstance(field, StoredField)
    with no_thread_left():
        rows = load_resident(field)[0].rows
    assert rows.shape == shape
    assert (raw_rows(rows) == raw_rows(read_all(array))).all()
    shutil.rmtree(tmp_path / "y")
    with no_thread_left(), pytest.raises(StoreReadError, match="y"):
        load_resident(field)


def test_a_resident_stored_field_that_is_corrupt_is_an_error_with_its_key(samples: StoredField, tmp_path: Path) -> None:
    Layout(shape=(N,), chunks=(7,), codec="zstd").write(tmp_path / "y")
    (tmp_path / "y" / "c" / "1").write_bytes(b"no chunk")
    field = make_targets_field(tmp_path / "y", samples, resident_bytes=1 << 20)
    assert isinstance(field, StoredField)
    with no_thread_left(), pytest.raises(CorruptChunkError, match="y chunk c/1: "):
        load_resident(field)


@pytest.mark.parametrize("dtype", DTYPES)
def test_contiguous_targets_are_used_where_they_lie(dtype: str, samples: StoredField) -> None:
    array = numbered((N, 2), dtype)
    array = np.ascontiguousarray(array)
    assert in_memory(array, samples).rows.data_ptr() == array.ctypes.data
    tensor = torch.from_numpy(array)
    field = in_memory(tensor, samples)
    assert field.rows.data_ptr() == tensor.data_ptr()
    assert field.torch_dtype == tensor.dtype
    assert field.to_core()["address"] == tensor.data_ptr()
    assert sample_bytes(field) == 2 * np.dtype(dtype).itemsize == field.to_core()["sample_bytes"]


def test_the_memory_of_targets_is_held_by_the_field(samples: StoredField) -> None:
    array = np.arange(N * 100_000, dtype="i4").reshape(N, -1)
    expected = array.copy()
    field = in_memory(array, samples)
    del array
    assert (field.rows.numpy() == expected).all()


@pytest.mark.parametrize("order", [">", "<"])
@pytest.mark.parametrize("dtype", ["i2", "f4", "f8", "c16", "u8"])
def test_targets_of_either_byte_order_become_native(dtype: str, order: str, samples: StoredField) -> None:
    values = numbered((N, 2), dtype)
    field = in_memory(values.astype(order + dtype), samples)
    assert (raw_rows(field.rows) == raw_rows(values)).all()


def test_read_only_targets_are_copied_since_torch_has_no_read_only_tensors(samples: StoredField) -> None:
    array = np.arange(N)
    array.flags.writeable = False
    field = in_memory(array, samples)
    assert field.rows.tolist() == list(range(N))
    assert field.rows.data_ptr() != array.ctypes.data


def test_bfloat16_targets_of_ml_dtypes_keep_their_bits(samples: StoredField) -> None:
    bits = numbered((N, 3), "u2")
    for array in (bits.view(ml_dtypes.bfloat16), np.asfortranarray(bits.view(ml_dtypes.bfloat16))):
        field = in_memory(array, samples)
        assert field.torch_dtype == torch.bfloat16
        assert (field.rows.view(torch.uint16).numpy() == bits).all()


@pytest.mark.parametrize("dtype", [*TORCH_DTYPES.values(), torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_tensors_of_every_dtype_of_torch_are_targets(dtype: torch.dtype, samples: StoredField) -> None:
    tensor = torch.arange(N).to(dtype)
    field = in_memory(tensor, samples)
    assert field.torch_dtype == dtype
    assert field.rows.view(torch.uint8).tolist() == tensor.view(torch.uint8).tolist()


def test_tensors_without_plain_rows_are_refused(samples: StoredField) -> None:
    with pytest.raises(UnsupportedError, match="targets: "):
        in_memory(torch.eye(N).to_sparse(), samples)


def test_targets_that_require_grad_are_detached(samples: StoredField) -> None:
    tensor = torch.arange(float(N), requires_grad=True)
    field = in_memory(tensor, samples)
    assert not field.rows.requires_grad
    assert field.rows.data_ptr() == tensor.data_ptr()


def test_conjugated_targets_are_resolved(samples: StoredField) -> None:
    """tensor.conj() only sets a bit; the memory below holds the values before it."""
    values = torch.arange(N) * (1 + 2j)
    field = in_memory(values.conj(), samples)
    assert not field.rows.is_conj()
    assert field.rows.numpy().tolist() == values.numpy().conj().tolist()


def test_the_index_is_one_int64_a_sample() -> None:
    field = IndexField(N)
    assert (field.sample_shape, field.torch_dtype, sample_bytes(field)) == ((), torch.int64, 8)


@pytest.mark.parametrize("length", [0, N - 1, N + 1])
def test_targets_of_another_length_are_refused(length: int, samples: StoredField) -> None:
    with pytest.raises(ConfigError, match=f"targets has {length} samples, samples .* has {N}: they must be equal"):
        in_memory(np.zeros((length, 2)), samples)


def test_targets_are_aligned_along_axis_0_whatever_the_sample_axis_of_the_samples(tmp_path: Path) -> None:
    Layout(shape=(3, N), chunks=(3, 6), sample_axis=1).write(tmp_path / "x")
    Layout(shape=(N, 3), chunks=(6, 3)).write(tmp_path / "y")
    samples = make_samples_field(tmp_path / "x", sample_axis=1)
    assert samples.num_samples == N
    assert make_targets_field(tmp_path / "y", samples, resident_bytes=0).num_samples == N
    with pytest.raises(ConfigError, match="targets has 3 samples"):
        make_targets_field(tmp_path / "x", samples, resident_bytes=0)
