"""Arguments, arrays and stores that cannot work: one clear error of our own, at construction where possible."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.codecs import BytesCodec

from tests.support.flat import iterable_dataset
from tests.support.oracle import (
    AnyArray,
    Layout,
    assert_parity,
    assert_rows_equal,
    chunk_files,
    no_file_left,
    no_thread_left,
    numbered,
    read_all,
)
from tests.support.users import as_nobody
from zarrfeed import (
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
    ZarrfeedError,
    ZarrIterableDataset,
    verify,
)

N = 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write an array of 20 samples of 3 items in chunks of 4."""
    Layout(shape=(N, 3), chunks=(4, 3)).write(tmp_path / "a")
    return tmp_path / "a"


def refused(error: type[ZarrfeedError], message: str, source: Any, targets: Any = None, **options: Any) -> None:
    """Fail unless the construction says so."""
    with pytest.raises(error, match=message) as caught:
        iterable_dataset(source, targets, **{"batch_size": 2, **options})
    assert type(caught.value) is error
    assert len(str(caught.value)) < 2000


def test_every_error_is_ours_and_the_builtin_that_a_caller_would_catch() -> None:
    builtins = {
        ConfigError: ValueError,
        MemoryBudgetError: ValueError,
        UnsupportedError: NotImplementedError,
        CorruptChunkError: ValueError,
        StoreReadError: OSError,
    }
    for ours, builtin in builtins.items():
        assert issubclass(ours, ZarrfeedError)
        assert issubclass(ours, builtin)


NO_BUDGETS: list[Any] = [
    *("", "abc", "-1", "1.2.3", "nan", "inf", "1e400", "5 apples", b"1GiB"),
    *(0, -5, True, []),
]


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("batch_size", 0, "batch_size = 0, must be at least 1"),
        ("batch_size", -1, "batch_size = -1, must be at least 1"),
        ("batch_size", True, "batch_size = True, must be an integer"),
        ("batch_size", 2.5, "batch_size = 2.5, must be an integer"),
        ("batch_size", "3", "batch_size = '3', must be an integer"),
        ("seed", -1, "seed = -1, must be at least 0"),
        ("seed", 2**64, f"seed = {2**64}, must be at most {2**64 - 1}"),
        ("seed", None, "seed = None, must be an integer"),
        ("seed", 1.0, "seed = 1.0, must be an integer"),
        ("lanes", 0, "lanes = 0, must be at least 1"),
        ("lanes", -3, "lanes = -3, must be at least 1"),
        ("lanes", True, "lanes = True, must be an integer"),
        ("mix", 0, "mix = 0, must be at least 1"),
        ("mix", 1.5, "mix = 1.5, must be an integer"),
        ("num_threads", 0, "num_threads = 0, must be at least 1"),
        ("num_threads", 1.5, "num_threads = 1.5, must be an integer"),
        ("sample_axis", 2, r"sample_axis = 2, must be in \[-2, 1\]"),
        ("sample_axis", -3, r"sample_axis = -3, must be in \[-2, 1\]"),
        ("sample_axis", 0.5, "sample_axis"),
        ("sample_axis", None, "sample_axis"),
        ("sample_axis", "time", "sample_axis"),
        ("sample_axis", True, "sample_axis"),
        *[("memory_budget", value, "memory_budget = .*, must be") for value in NO_BUDGETS],
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_argument_that_cannot_work_is_named_with_what_is_allowed(
    name: str, value: Any, message: str, shuffle: bool, store: Path
) -> None:
    """A sample_axis that is no integer was a bare TypeError, and True was axis 1."""
    refused(ConfigError, message, store, shuffle=shuffle, **{name: value})


def test_a_number_beyond_64_bits_is_refused_or_clipped_and_not_an_overflow(store: Path) -> None:
    refused(ConfigError, "mix", store, shuffle=True, mix=2**70)
    assert ZarrIterableDataset(store, shuffle=True, mixing={"lanes": 2**70}).explain().lanes == N


@pytest.mark.parametrize("name", ["shuffle", "drop_last", "return_index"])
def test_a_flag_that_is_no_bool_is_refused_at_construction(name: str, store: Path) -> None:
    """A shuffle was taken for true, and failed in the first next() with pybind11's RuntimeError."""
    refused(ConfigError, f"{name} = 'no', must be True or False", store, **{name: "no"})


@pytest.mark.parametrize("epoch", [-1, 2**63, 1.0, True, None])
def test_an_epoch_that_is_no_epoch_is_refused(epoch: Any, store: Path) -> None:
    dataset = ZarrIterableDataset(store, batch_size=2)
    with pytest.raises(ConfigError, match=re.escape(f"epoch = {epoch}")):
        dataset.set_epoch(epoch)


@pytest.mark.parametrize("epoch", [-1, 2**64, 1.5])
def test_sample_order_of_an_epoch_that_is_no_epoch_is_refused(epoch: Any, store: Path) -> None:
    with pytest.raises(ConfigError, match="epoch"):
        ZarrIterableDataset(store, batch_size=2, shuffle=True).sample_order(epoch)


def test_numbers_of_numpy_are_numbers(store: Path) -> None:
    numbers: dict[str, Any] = {name: np.int64(2) for name in ("batch_size", "seed", "lanes", "mix", "num_threads")}
    assert_parity(store, read_all(store), **numbers)


@pytest.mark.parametrize("batch_size", [N + 1, 10**12, 2**63 - 1])
def test_a_batch_larger_than_the_array_is_the_whole_array(batch_size: int, store: Path) -> None:
    assert_parity(store, read_all(store), batch_size=batch_size)


def test_pin_memory_without_an_accelerator_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarrfeed.torch.datasets.options.has_accelerator", lambda: False)
    refused(ConfigError, "pin_memory = True needs an accelerator", store, pin_memory=True)


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chunks", [(4, 300), (64, 75), (1, 300)])
def test_a_budget_that_is_too_small_names_one_that_is_enough(
    chunks: tuple[int, int], shuffle: bool, tmp_path: Path
) -> None:
    layout = Layout(shape=(256, 300), chunks=chunks, codec="zstd")
    layout.write(tmp_path / "a")
    options: dict[str, Any] = {"batch_size": 16, "shuffle": shuffle, "num_threads": 2}
    with pytest.raises(MemoryBudgetError, match=r"must be at least [0-9.]+ \w+") as caught:
        iterable_dataset(tmp_path / "a", memory_budget=1, return_index=True, **options)
    needed = re.search(r"must be at least ([0-9.]+ \w+)", str(caught.value))
    assert needed is not None
    assert_parity(tmp_path / "a", read_all(tmp_path / "a"), memory_budget=needed[1], **options)


def test_chunks_that_are_larger_than_the_budget_are_refused_at_construction(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", shape=(2**20, 2**10), chunks=(2**16, 2**10), dtype="f8")
    message = r"memory_budget = 1.0 GiB, must be at least .* GiB"
    refused(MemoryBudgetError, message, tmp_path / "a", shuffle=True, memory_budget="1GiB")


def test_lanes_and_mix_that_do_not_fit_are_refused_at_construction(tmp_path: Path) -> None:
    Layout(shape=(4096, 256), chunks=(64, 256)).write(tmp_path / "a")
    options: dict[str, Any] = {"shuffle": True, "num_threads": 1}
    refused(MemoryBudgetError, "lanes = 64", tmp_path / "a", lanes=64, memory_budget="2MiB", **options)
    refused(MemoryBudgetError, "mix = 64", tmp_path / "a", lanes=1, mix=64, memory_budget="2MiB", **options)


def test_threads_that_no_machine_has_are_refused(store: Path) -> None:
    refused(ConfigError, "num_threads = 1000000000, must be at most 1024", store, num_threads=10**9)


# --- what is no array -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [str, Path, lambda path: f"file://{path}"])
def test_a_path_where_nothing_is_is_a_store_error_with_errno(kind: Callable[[Path], Any], tmp_path: Path) -> None:
    source = kind(tmp_path / "nope")
    with pytest.raises(StoreReadError, match="nope") as caught:
        ZarrIterableDataset(source, batch_size=2)
    assert caught.value.errno == errno.ENOENT


def test_what_is_not_zarr_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.nc").write_bytes(b"CDF\x01")
    (tmp_path / "text").write_bytes(b"no array")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("folder", "file.nc", "loop", "text/inside"):
        with pytest.raises((StoreReadError, ConfigError, UnsupportedError), match=re.escape(name)):
            ZarrIterableDataset(tmp_path / name, batch_size=2)


@pytest.mark.parametrize("source", ["", Path()])
def test_an_empty_path_is_not_taken_for_an_array(source: str | Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((StoreReadError, ConfigError)):
        ZarrIterableDataset(source, batch_size=2)


def test_a_path_that_the_system_does_not_take_is_our_error() -> None:
    for source in ("x" * 5000, "nul\0inside"):
        with pytest.raises((ConfigError, StoreReadError)):
            ZarrIterableDataset(source, batch_size=2)


@pytest.mark.parametrize("url", ["memory://x", "zip://x.zip", "ftp://host/x", "://x", "hf://datasets/x"])
def test_a_url_of_a_scheme_that_is_not_read_is_refused(url: str) -> None:
    refused(UnsupportedError, re.escape(url), url)


def test_a_file_url_of_another_host_is_not_taken_for_this_one(store: Path) -> None:
    with pytest.raises((ConfigError, UnsupportedError), match="elsewhere"):
        ZarrIterableDataset(f"file://elsewhere{store}", batch_size=2)


@pytest.mark.parametrize("source", [None, 3, b"/path", object(), 3.0, np.float32(1)])
def test_what_is_neither_path_nor_array_is_refused_by_its_type(source: Any) -> None:
    refused(ConfigError, f"got a {type(source).__name__}, ", source)


@pytest.mark.parametrize("empty", [[], ()])
def test_no_stores_at_all_are_refused(empty: Any) -> None:
    refused(ConfigError, "an empty list of stores, must name at least one", empty)


def test_a_list_of_paths_says_which_one_is_no_store(store: Path) -> None:
    refused(StoreReadError, "a: no Zarr array is there", [store, "a"])


def test_a_path_with_bytes_that_are_no_utf8_is_read_or_refused(tmp_path: Path) -> None:
    """It was a RuntimeError of pybind11 in the first next(): "Unable to cast Python instance of type str"."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff"))
    array = Layout().write(path)
    assert_parity(path, read_all(array))


# --- metadata ---------------------------------------------------------------------------------------------------


def v3_metadata(store: Path) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads((store / "zarr.json").read_text())
    return metadata


#: Of JSON that names no node type: zarr takes the directory for a group and looks what is in it.
NOT_A_NODE = "ignore:Object at .* is not recognized as a component:zarr.errors.ZarrUserWarning"


@pytest.mark.filterwarnings(NOT_A_NODE)
@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"array"', "3", "\0", "{}", '{"zarr_format": 3}'])
def test_a_zarr_json_that_is_no_metadata_is_our_error(text: str, store: Path) -> None:
    """JSON that is no object was an AttributeError out of zarr-python."""
    (store / "zarr.json").write_text(text)
    with pytest.raises((ConfigError, StoreReadError), match=re.escape(str(store))):
        ZarrIterableDataset(store, batch_size=2)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"array"', "3", "{}", '{"zarr_format": 2}'])
def test_a_zarray_that_is_no_metadata_is_our_error(text: str, tmp_path: Path) -> None:
    Layout(2).write(tmp_path / "a")
    (tmp_path / "a" / ".zarray").write_text(text)
    with pytest.raises((ConfigError, StoreReadError), match=re.escape(str(tmp_path / "a"))):
        ZarrIterableDataset(tmp_path / "a", batch_size=2)


def test_a_zarr_json_that_is_no_utf8_is_our_error(store: Path) -> None:
    (store / "zarr.json").write_bytes(b'{"zarr_format": 3, "\xff\xfe": 1}')
    with pytest.raises((ConfigError, StoreReadError)):
        ZarrIterableDataset(store, batch_size=2)


BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
REGULAR = "regular"


@pytest.mark.parametrize(
    "change",
    [
        {"shape": None},
        {"shape": "x"},
        {"shape": [-1, 3]},
        {"shape": [2.5, 3]},
        {"shape": [20]},
        {"shape": [2**62, 3]},
        {"shape": [2**65, 3]},
        {"shape": [20, 2**62]},
        {"data_type": "float7"},
        {"data_type": 5},
        {"codecs": []},
        {"codecs": "zstd"},
        {"codecs": [{"name": "nonsense"}]},
        {"codecs": [BYTES, BYTES]},
        {"codecs": [{"name": "bytes", "configuration": {"endian": "middle"}}]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [0, 0]}}, BYTES]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0, 2]}}, BYTES]},
        {"chunk_grid": {"name": "rectilinear", "configuration": {"chunk_shapes": [[4], [3]]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [4]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [0, 3]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [4, 0]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [-4, 3]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [2**62, 2**62]}}},
        {"chunk_grid": {"name": REGULAR, "configuration": {"chunk_shape": [2**65, 3]}}},
        {"chunk_key_encoding": {"name": "x"}},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "-"}}},
        {"fill_value": "x"},
        {"zarr_format": 4},
        {"node_type": "thing"},
        {"storage_transformers": [{"name": "x"}]},
        {"future": {"must_understand": True}},
    ],
    ids=json.dumps,
)
def test_metadata_that_cannot_be_is_our_error_and_names_the_array(change: dict[str, Any], store: Path) -> None:
    """A chunk length of 0 was a ZeroDivisionError, a shape of 2**62 or 2**65 a ValueError or OverflowError of NumPy."""
    (store / "zarr.json").write_text(json.dumps(v3_metadata(store) | change))
    with pytest.raises(ZarrfeedError) as caught:
        list(ZarrIterableDataset(store, batch_size=2, shuffle=True))
    if not isinstance(caught.value, MemoryBudgetError):
        assert str(store) in str(caught.value)


def test_bytes_codec_without_endian_is_read_as_zarr_python_does(store: Path) -> None:
    expected = read_all(store)
    metadata = v3_metadata(store) | {"codecs": [{"name": "bytes"}]}
    (store / "zarr.json").write_text(json.dumps(metadata))
    try:
        np.testing.assert_array_equal(read_all(store), expected)
    except ValueError:  # zarr-python since 3.2: the configuration needs to be specified for items of several bytes
        refused(ConfigError, f"{store.name}: zarr-python cannot open it", store)
    else:
        assert_parity(store, expected)


@pytest.mark.parametrize("enabled", [False, True], ids=["as zarr-python comes", "enabled"])
def test_a_rectilinear_chunk_grid_is_refused_by_name(enabled: bool, tmp_path: Path) -> None:
    """zarr-python knows such grids since 3.2, and says how to enable them, which would not help here."""
    group = zarr.create_group(tmp_path / "g")
    for name in ("a", "b"):
        group.create_array(name, shape=(10, 3), chunks=(4, 3), dtype="f4")
    metadata = v3_metadata(tmp_path / "g" / "b")
    chunks = {"kind": "inline", "chunk_shapes": [[4, 6], [3]]}
    metadata["chunk_grid"] = {"name": "rectilinear", "configuration": chunks}
    (tmp_path / "g" / "b" / "zarr.json").write_text(json.dumps(metadata))
    message = rf"{tmp_path}/g/b: chunk grid 'rectilinear', must be 'regular', with chunks of one shape$"
    with zarr.config.set({"array.rectilinear_chunks": enabled}):
        refused(UnsupportedError, f"^{message}", tmp_path / "g" / "b")
        refused(UnsupportedError, rf"^samples.*{message}", tmp_path / "g")
        report = verify(tmp_path / "g", progress_file=None)
    assert {array.path: "rectilinear" in array.problem for array in report.arrays} == {"a": False, "b": True}


# --- arrays that are valid and cannot be read -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "chunks", "message"),
    [
        ((0, 3), (4, 3), r"has the shape \(0, 3\)"),
        ((20, 0), (4, 1), r"has the shape \(20, 0\)"),
        ((0,), (1,), r"has the shape \(0,\)"),
        ((), (), r"has no axes \(0-d\)"),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_without_samples_is_refused(
    shape: tuple[int, ...], chunks: tuple[int, ...], message: str, zarr_format: Any, tmp_path: Path
) -> None:
    zarr.create_array(tmp_path / "a", shape=shape, chunks=chunks, dtype="f4", zarr_format=zarr_format)
    refused(ConfigError, f"a: {message}", tmp_path / "a")
    Layout(shape=(N, 3), chunks=(4, 3)).write(tmp_path / "x")
    refused(ConfigError, message, tmp_path / "x", tmp_path / "a")


#: No v3 specification yet: zarr says so when such an array is made or opened.
UNSTABLE_DTYPE = "ignore:The data type:zarr.errors.UnstableSpecificationWarning"


@pytest.mark.filterwarnings(UNSTABLE_DTYPE)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_dtype_that_torch_does_not_have_is_refused_by_name(zarr_format: Any, tmp_path: Path) -> None:
    dtype = np.dtype([("a", "<f4"), ("b", "<U4")])
    zarr.create_array(tmp_path / "a", shape=(N,), chunks=(4,), dtype=dtype, zarr_format=zarr_format)
    message = f"{re.escape(str(tmp_path / 'a'))}: the member 'b' of its records: dtype <U4 has no torch equivalent"
    refused(UnsupportedError, message, tmp_path / "a")


def test_a_v2_object_array_is_refused(tmp_path: Path) -> None:
    metadata = {
        "zarr_format": 2,
        "shape": [4],
        "chunks": [4],
        "order": "C",
        "fill_value": None,
        "dtype": "|O",
        "compressor": None,
        "filters": [{"id": "pickle", "protocol": 5}],
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".zarray").write_text(json.dumps(metadata))
    with pytest.raises((UnsupportedError, ConfigError), match=re.escape(str(tmp_path / "a"))):
        ZarrIterableDataset(tmp_path / "a", batch_size=2)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_blosc_with_snappy_is_refused_at_construction(zarr_format: Any, tmp_path: Path) -> None:
    codec = "blosc-lz4-shuffle"
    Layout(zarr_format, codec=codec).write(tmp_path / "a")
    metadata = tmp_path / "a" / ("zarr.json" if zarr_format == 3 else ".zarray")
    text = metadata.read_text()
    assert '"lz4"' in text
    metadata.write_text(text.replace('"lz4"', '"snappy"'))
    refused(UnsupportedError, "a: is compressed by Blosc with snappy", tmp_path / "a")


# --- targets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, N - 1, N + 1, 2 * N])
def test_targets_of_another_length_are_refused_with_both_lengths(length: int, store: Path, tmp_path: Path) -> None:
    message = rf"targets has {length} samples, samples \(.*a\) has {N}: they must be equal"
    refused(ConfigError, message, store, np.zeros((length, 2)))
    refused(ConfigError, message, store, torch.zeros(length))
    if length:
        Layout(shape=(length, 2), chunks=(4, 2)).write(tmp_path / "y")
        refused(ConfigError, message, store, tmp_path / "y")


@pytest.mark.parametrize("targets", [np.array(3.0), torch.tensor(3.0)])
def test_targets_without_axes_are_refused(targets: Any, store: Path) -> None:
    refused(ConfigError, r"targets: has no axes \(0-d\)", store, targets)


@pytest.mark.parametrize("targets", [[1] * N, 5, np.float32(1), {1}, range(N)], ids=lambda v: type(v).__name__)
def test_targets_that_are_neither_array_nor_path_are_refused(targets: Any, store: Path) -> None:
    refused(ConfigError, f"got a {type(targets).__name__}", store, targets)


@pytest.mark.parametrize("dtype", ["O", "U1", "S3", "M8[s]", "m8[s]", "V3", np.longdouble], ids=str)
def test_targets_of_a_dtype_that_torch_does_not_have_are_refused(dtype: Any, store: Path) -> None:
    refused(UnsupportedError, "targets: dtype .* has no torch equivalent", store, np.zeros(N, dtype))


def test_targets_that_do_not_lie_in_host_memory_are_refused(store: Path) -> None:
    refused(ConfigError, "targets: is on meta, must be in host memory", store, torch.zeros(N, device="meta"))


def test_sparse_targets_are_refused(store: Path) -> None:
    """It was torch's RuntimeError "unsupported memory format option Contiguous"."""
    with pytest.raises((ConfigError, UnsupportedError), match="targets"):
        ZarrIterableDataset(store, torch.eye(N).to_sparse(), batch_size=2)


def test_masked_targets_are_refused_since_tensors_have_no_mask(store: Path) -> None:
    """The mask was ignored without a word."""
    refused(ConfigError, "masked", store, np.ma.masked_array(np.arange(N), mask=np.arange(N) % 2 == 1))


def targets_of_every_kind() -> dict[str, Any]:
    rows = numbered((N, 4), "i4")
    floats = np.arange(N * 4, dtype="f4").reshape(N, 4)
    read_only = rows.copy()
    read_only.flags.writeable = False
    return {
        "reversed columns": rows[:, ::-1],
        "reversed rows": rows[::-1],
        "every second row": numbered((2 * N, 4), "i4")[::2],
        "Fortran order": np.asfortranarray(rows),
        "read-only": read_only,
        "broadcast": np.broadcast_to(np.int32(7), (N, 3)),
        "big-endian": rows.astype(">i4"),
        "big-endian complex": (floats + 2j * floats).astype(">c16"),
        "big-endian, not contiguous": rows.astype(">i4")[:, ::2],
        "empty samples": np.zeros((N, 0), "f4"),
        "requires grad": torch.from_numpy(floats.copy()).requires_grad_(),
        "requires grad, not a leaf": torch.from_numpy(floats.copy()).requires_grad_() * 2,
        "transposed tensor": torch.from_numpy(floats.copy()).T.contiguous().T,
        "expanded tensor": torch.arange(3.0).expand(N, 3),
        "tensor with an offset": torch.arange(5.0 + N)[5:],
        "parameter": torch.nn.Parameter(torch.arange(float(N))),
        "empty samples, tensor": torch.zeros(N, 2, 0),
    }


@pytest.mark.parametrize("kind", targets_of_every_kind())
def test_targets_in_memory_of_every_kind_arrive_as_they_are(kind: str, store: Path) -> None:
    targets = targets_of_every_kind()[kind]
    expected = targets.detach().numpy() if isinstance(targets, torch.Tensor) else targets
    expected = np.ascontiguousarray(expected, dtype=expected.dtype.newbyteorder("="))
    with ZarrIterableDataset(store, targets, batch_size=3, shuffle=True, return_index=True) as dataset:
        for _, target, index in dataset:
            assert_rows_equal(target, index, expected)
            assert not target.requires_grad


@pytest.mark.parametrize("kind", ["conjugate", "negative"])
def test_targets_that_torch_conjugates_or_negates_lazily_are_not_read_as_they_lie(kind: str, store: Path) -> None:
    """tensor.conj() only sets a bit: the bytes are those of the tensor before it, and were delivered like that."""
    values = torch.arange(N) * (1 + 2j)
    targets = values.conj() if kind == "conjugate" else torch._neg_view(values.real.contiguous())
    assert targets.is_conj() or targets.is_neg()
    expected = targets.resolve_conj().resolve_neg().numpy()
    with ZarrIterableDataset(store, targets, batch_size=3, return_index=True) as dataset:
        for _, target, index in dataset:
            assert_rows_equal(target, index, expected)


def test_targets_that_the_caller_drops_live_on_in_the_dataset(store: Path) -> None:
    expected = numbered((N, 1000), "i8")
    targets = expected.copy()
    with ZarrIterableDataset(store, targets, batch_size=3, return_index=True) as dataset:
        del targets
        for _, target, index in dataset:
            assert_rows_equal(target, index, expected)


# --- chunks that cannot be read ---------------------------------------------------------------------------------


def put_directory(chunk: Path) -> None:
    chunk.mkdir()


def put_symlink_loop(chunk: Path) -> None:
    chunk.symlink_to(chunk.name)


def put_fifo(chunk: Path) -> None:
    os.mkfifo(chunk)


def put_device(chunk: Path) -> None:
    chunk.symlink_to("/dev/zero")


def put_socket(chunk: Path) -> None:
    folder = os.open(chunk.parent, os.O_RDONLY)  # as the path of a socket may have 108 bytes only
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{folder}/{chunk.name}")
    os.close(folder)


def put_long_symlink(chunk: Path) -> None:
    chunk.symlink_to("x" * 300)


@pytest.mark.parametrize(
    ("put", "code", "message"),
    [
        (put_directory, errno.EISDIR, "is a directory"),
        (put_symlink_loop, errno.ELOOP, "cannot be opened"),
        (put_fifo, errno.EINVAL, "is not a regular file"),
        (put_device, errno.EINVAL, "is not a regular file"),
        (put_socket, errno.ENXIO, "cannot be opened"),
        (put_long_symlink, errno.ENAMETOOLONG, "cannot be opened"),
    ],
)
@pytest.mark.parametrize("batch_size", [None, 3])
def test_what_is_no_file_in_the_place_of_a_chunk_is_a_store_error(
    put: Callable[[Path], None], code: int, message: str, batch_size: int | None, store: Path
) -> None:
    """And neither a missing chunk, hence fill values, nor a hang."""
    chunk = store / "c" / "2" / "0"
    chunk.unlink()
    put(chunk)
    with no_thread_left():
        dataset = ZarrIterableDataset(store, batch_size=batch_size, shuffle=True, num_threads=2)
        for _ in range(2):
            with pytest.raises(StoreReadError, match=f"{re.escape(str(store))} chunk c/2/0: .*{message}") as caught:
                list(dataset)
            assert caught.value.errno == code
        dataset.close()


def test_a_file_in_the_place_of_a_chunks_directory_is_a_store_error(store: Path) -> None:
    shutil.rmtree(store / "c" / "2")
    (store / "c" / "2").write_bytes(b"")
    with ZarrIterableDataset(store, batch_size=3) as dataset, pytest.raises(StoreReadError, match="c/2/0") as caught:
        list(dataset)
    assert caught.value.errno == errno.ENOTDIR


@pytest.fixture
def public_store() -> Iterator[Path]:
    """Write the array in a directory that everyone may enter: pytest's own is for its user only."""
    folder = Path(tempfile.mkdtemp(prefix="zarrfeed-public-"))
    folder.chmod(0o755)
    Layout(shape=(N, 3), chunks=(4, 3)).write(folder / "a")
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    yield folder / "a"
    for path in folder.rglob("*"):
        if path.is_dir():
            path.chmod(0o755)
    shutil.rmtree(folder)


def test_a_chunk_that_may_not_be_read_is_a_store_error_and_not_fill_value(public_store: Path) -> None:
    with as_nobody():
        assert_parity(public_store, read_all(public_store))
    (public_store / "c" / "2" / "0").chmod(0)
    dataset = ZarrIterableDataset(public_store, batch_size=3)
    with as_nobody(), pytest.raises(StoreReadError, match="chunk c/2/0: cannot be opened: Permission denied") as caught:
        list(dataset)
    assert caught.value.errno == errno.EACCES
    dataset.close()


def test_a_directory_of_chunks_that_may_not_be_entered_is_a_store_error_and_not_fill_value(public_store: Path) -> None:
    dataset = ZarrIterableDataset(public_store, batch_size=3)
    (public_store / "c" / "2").chmod(0)
    with as_nobody(), pytest.raises(StoreReadError, match=r"chunk c/2/0: .*Permission denied"):
        list(dataset)
    dataset.close()


@pytest.mark.parametrize("what", ["a", "a/zarr.json"])
def test_an_array_that_may_not_be_read_is_a_store_error_with_errno(what: str, public_store: Path) -> None:
    (public_store.parent / what).chmod(0)
    with as_nobody(), pytest.raises(StoreReadError, match="permission denied") as caught:
        ZarrIterableDataset(public_store, batch_size=3)
    assert caught.value.errno == errno.EACCES


def test_an_array_that_may_no_longer_be_read_is_a_store_error(public_store: Path) -> None:
    dataset = ZarrIterableDataset(public_store, batch_size=3)
    with as_nobody():
        list(dataset)
    public_store.chmod(0)
    with as_nobody(), pytest.raises(StoreReadError, match="Permission denied") as caught:
        list(dataset)
    assert caught.value.errno == errno.EACCES
    dataset.close()


@pytest.mark.parametrize("size", [1 << 24, 1 << 40])
def test_an_object_too_long_to_be_a_chunk_is_refused_before_it_is_read(size: int, store: Path) -> None:
    os.truncate(store / "c" / "2" / "0", size)
    with ZarrIterableDataset(store, batch_size=3) as dataset:
        with pytest.raises(CorruptChunkError, match=f"a chunk c/2/0: the stored object has {size} bytes, at most"):
            list(dataset)
        assert dataset.stats().bytes_read < 1 << 20


# --- stores that go away ----------------------------------------------------------------------------------------


def test_a_store_that_is_deleted_between_epochs_is_an_error_and_not_fill_values(store: Path) -> None:
    dataset = ZarrIterableDataset(store, batch_size=3, shuffle=True, return_index=True)
    assert len(list(dataset)) == len(dataset)
    shutil.rmtree(store)
    for _ in range(2):
        with pytest.raises(StoreReadError, match=re.escape(str(store))) as caught:
            list(dataset)
        assert caught.value.errno == errno.ENOENT
    array = Layout(shape=(N, 3), chunks=(4, 3)).write(store)
    for rows, index in dataset:
        assert_rows_equal(rows, index, read_all(array))
    dataset.close()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_whose_metadata_is_gone_is_an_error_and_not_fill_values(zarr_format: Any, tmp_path: Path) -> None:
    Layout(zarr_format).write(tmp_path / "a")
    dataset = ZarrIterableDataset(tmp_path / "a", batch_size=3)
    (tmp_path / "a" / ("zarr.json" if zarr_format == 3 else ".zarray")).unlink()
    with pytest.raises(StoreReadError, match="is gone: the array was deleted or moved"):
        list(dataset)
    dataset.close()


def test_a_chunk_that_is_deleted_between_epochs_is_fill_value_and_is_counted(store: Path) -> None:
    dataset = ZarrIterableDataset(store, batch_size=3, return_index=True)
    list(dataset)
    assert dataset.stats().chunks_missing == 0
    chunk_files(store)[1].unlink()
    expected = read_all(store)
    assert not expected[4:8].any()
    for rows, index in dataset:
        assert_rows_equal(rows, index, expected)
    assert dataset.stats().chunks_missing == 1
    dataset.close()


def test_a_store_that_is_deleted_during_an_epoch_is_an_error_and_not_fill_values(tmp_path: Path) -> None:
    layout = Layout(shape=(4000, 256), chunks=(4, 256))
    array = layout.write(tmp_path / "a")
    expected: AnyArray = read_all(array)
    dataset = ZarrIterableDataset(
        tmp_path / "a", batch_size=4, return_index=True, num_threads=1, memory_budget="128KiB"
    )
    batches = iter(dataset)
    next(batches)
    shutil.rmtree(tmp_path / "a")

    def read() -> None:
        for batch in batches:
            assert isinstance(batch, tuple)
            assert_rows_equal(batch[0], batch[1], expected)

    with pytest.raises(StoreReadError, match="is gone"):
        read()
    dataset.close()


def test_a_store_that_another_thread_deletes_never_gives_fill_values(tmp_path: Path) -> None:
    """The metadata and the last chunk are gone before the second batch is asked for, the others go meanwhile."""
    array = Layout(shape=(4000, 256), chunks=(4, 256)).write(tmp_path / "a")
    expected = read_all(array)
    assert (expected.view("u4") != 0).any(axis=1).all(), "no row is fill value"
    for attempt in range(3):
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        dataset = ZarrIterableDataset(
            tmp_path / "b", batch_size=8, return_index=True, num_threads=1 + attempt % 2, memory_budget="128KiB"
        )
        batches = iter(dataset)
        next(batches)
        begun = threading.Event()
        deleter = threading.Thread(target=delete_metadata_first, args=[tmp_path / "b", begun])
        deleter.start()
        assert begun.wait(240)
        with pytest.raises(StoreReadError, match="is gone"):  # noqa: PT012 - rows are checked until it comes
            for batch in batches:
                assert isinstance(batch, tuple)
                assert_rows_equal(batch[0], batch[1], expected)
        deleter.join()
        dataset.close()


def delete_metadata_first(array: Path, begun: threading.Event) -> None:
    (array / "zarr.json").unlink()
    (array / "c" / "999" / "0").unlink()
    begun.set()
    shutil.rmtree(array)


@pytest.mark.parametrize("budget", ["1GiB", "6MiB"], ids=["resident", "streamed"])
def test_targets_that_are_deleted_before_the_first_epoch_are_an_error(budget: str, tmp_path: Path) -> None:
    Layout(shape=(64, 6), chunks=(8, 6)).write(tmp_path / "x")
    Layout(shape=(64, 16, 64), chunks=(3, 16, 64), dtype="f8").write(tmp_path / "y")
    dataset = ZarrIterableDataset(tmp_path / "x", tmp_path / "y", batch_size=5, memory_budget=budget)
    shutil.rmtree(tmp_path / "y")
    with pytest.raises(StoreReadError, match=re.escape(str(tmp_path / "y"))):
        list(dataset)
    dataset.close()


def test_a_dataset_that_could_not_be_made_leaves_no_thread_and_no_open_file(store: Path) -> None:
    refused(ConfigError, "batch_size", store, batch_size=0)
    with no_file_left(), no_thread_left():
        for _ in range(20):
            refused(ConfigError, "targets has", store, np.zeros(3))
            refused(MemoryBudgetError, "memory_budget", store, memory_budget=1)


def test_errors_while_reading_leave_no_open_file(store: Path) -> None:
    (store / "c" / "2" / "0").write_bytes(b"short")
    dataset = ZarrIterableDataset(store, batch_size=3)
    with pytest.raises(CorruptChunkError):
        list(dataset)
    with no_file_left():
        for _ in range(50):
            with pytest.raises(CorruptChunkError):
                list(dataset)
    dataset.close()


def test_one_item_per_byte_has_no_byte_order(tmp_path: Path) -> None:
    array: zarr.Array[Any] = zarr.create_array(
        tmp_path / "a", shape=(N,), chunks=(3,), dtype="i1", serializer=BytesCodec(endian="big")
    )
    array[...] = np.arange(N, dtype="i1")
    assert_parity(tmp_path / "a", read_all(array))
