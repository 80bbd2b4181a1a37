"""Groups, mappings and arrays in memory: every part of a batch belongs to the same samples."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.flat import iterable_dataset
from tests.support.oracle import NUMCODECS_WARNING, AnyArray, Layout, assert_rows_equal, no_thread_left, read_all
from zarrfeed import (
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    UnsupportedError,
    ZarrIterableDataset,
)

N = 53  # divides nothing

pytestmark = pytest.mark.filterwarnings(NUMCODECS_WARNING)

#: Name -> how it is stored. The chunk lengths do not nest in each other.
FIELDS = {
    "wind": Layout(shape=(N, 4, 5), chunks=(6, 3, 5), codec="blosc-lz4-shuffle"),
    "mask": Layout(shape=(N, 4), chunks=(4, 4), dtype="b1", codec="zstd"),
    "height": Layout(zarr_format=2, shape=(N, 3), chunks=(9, 2), dtype="i2", big_endian=True, codec="zlib"),
    "time": Layout(shape=(N,), chunks=(N,), dtype="i8"),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write a group of four arrays, one of which is of Zarr v2."""
    zarr.create_group(tmp_path / "g")
    for name, layout in FIELDS.items():
        if layout.zarr_format == 3:
            layout.write(tmp_path / "g" / name)
    FIELDS["height"].write(tmp_path / "height")
    return tmp_path


def expected() -> dict[str, AnyArray]:
    return {name: np.ascontiguousarray(layout.data(), dtype=np.dtype(layout.dtype)) for name, layout in FIELDS.items()}


def mapping(store: Path, kind: str) -> dict[str, Any]:
    """Return all four as what `kind` says."""
    paths = {name: store / ("height" if name == "height" else f"g/{name}") for name in FIELDS}
    data = expected()
    kinds: dict[str, Any] = {
        "paths": paths,
        "arrays": {name: zarr.open_array(path, mode="r") for name, path in paths.items()},
        "numpy": data,
        "tensors": {name: torch.from_numpy(rows) for name, rows in data.items()},
        "mixed": {
            "wind": str(paths["wind"]),
            "mask": data["mask"],
            "height": zarr.open_array(paths["height"], mode="r"),
            "time": torch.from_numpy(data["time"]),
        },
    }
    return dict(kinds[kind])


KINDS = ("paths", "arrays", "numpy", "tensors", "mixed")


def parts_of(batch: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """List the tensors of a batch or a part of it with the names of their fields, "" for a bare one."""
    if isinstance(batch, dict):
        yield from batch.items()
    else:
        yield "", batch


def check(dataset: ZarrIterableDataset, wanted: list[dict[str, AnyArray]], *, batch_size: int | None = 7) -> list[int]:
    """Read an epoch: each part has exactly the wanted fields, in order, row by row; return the indices."""
    seen: list[int] = []
    with dataset:
        announced = dataset.sample_order(0).tolist()
        for batch in dataset:
            assert isinstance(batch, tuple)
            assert len(batch) == len(wanted) + 1
            index = batch[-1] if batch_size is not None else batch[-1].unsqueeze(0)
            assert len(index) <= (batch_size or 1)
            for part, fields in zip(batch, wanted, strict=False):
                named = dict(parts_of(part))
                assert list(named) == list(fields)
                assert isinstance(part, dict) == ("" not in fields)
                for name, rows in named.items():
                    assert_rows_equal(rows if batch_size is not None else rows.unsqueeze(0), index, fields[name])
            seen += index.tolist()
    assert seen == announced
    assert sorted(seen) == list(range(N))
    return seen


# --- parity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("batch_size", [1, 7, N, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mapping_gives_dicts_in_its_order(kind: str, batch_size: int | None, shuffle: bool, store: Path) -> None:
    source = mapping(store, kind)
    dataset = ZarrIterableDataset(source, batch_size=batch_size, shuffle=shuffle, return_index=True, num_threads=2)
    seen = check(dataset, [expected()], batch_size=batch_size)
    assert (seen == list(range(N))) != shuffle


@pytest.mark.parametrize("as_path", [True, False])
def test_a_group_stands_for_its_arrays_sorted_by_name(as_path: bool, store: Path) -> None:
    zarr.open_group(store / "g").create_group("deep").create_array("other", shape=(3,), dtype="f4")
    source: Any = str(store / "g") if as_path else zarr.open_group(store / "g", mode="r")
    data = expected()
    wanted = {name: data[name] for name in ("mask", "time", "wind")}
    check(ZarrIterableDataset(source, batch_size=7, shuffle=True, return_index=True), [wanted])


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:UserWarning")
def test_groups_of_either_format(zarr_format: Any, consolidated: bool, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g", zarr_format=zarr_format)
    wanted = {}
    for name, rows in (("b", 5), ("a", 8)):
        array = Layout(zarr_format=zarr_format, shape=(N, 3), chunks=(rows, 3)).write(tmp_path / "g" / name)
        wanted[name] = read_all(array)
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "g")
    dataset = ZarrIterableDataset(f"file://{tmp_path / 'g'}", batch_size=7, shuffle=True, return_index=True)
    check(dataset, [{name: wanted[name] for name in ("a", "b")}])


def part(store: Path, kind: str) -> tuple[Any, dict[str, AnyArray]]:
    """Return one part of a batch as an argument, and the fields that it is to have."""
    data = expected()
    if kind == "array":
        return store / "g" / "wind", {"": data["wind"]}
    if kind == "group":
        return store / "g", {name: data[name] for name in ("mask", "time", "wind")}
    if kind == "numpy":
        return data["mask"], {"": data["mask"]}
    if kind == "tensor":
        return torch.from_numpy(data["time"]), {"": data["time"]}
    return mapping(store, "mixed"), data


PARTS = ("array", "group", "numpy", "tensor", "mapping")


@pytest.mark.parametrize("budget", ["64KiB", "1GiB"], ids=["decoded again", "resident"])
@pytest.mark.parametrize("targets", PARTS)
@pytest.mark.parametrize("samples", PARTS)
def test_samples_and_targets_of_every_kind_stay_together(samples: str, targets: str, budget: str, store: Path) -> None:
    (source, wanted), (target_source, target_wanted) = part(store, samples), part(store, targets)
    dataset = ZarrIterableDataset(
        source, target_source, batch_size=7, shuffle=True, return_index=True, memory_budget=budget, mixing={"lanes": 2}
    )
    check(dataset, [wanted, target_wanted])


@pytest.mark.parametrize("mix", [1, 2])
@pytest.mark.parametrize("lanes", [1, 3, 8])
@pytest.mark.parametrize("kind", ["paths", "tensors"])
def test_lanes_and_mixing_of_several_fields(kind: str, lanes: int, mix: int, store: Path) -> None:
    dataset = ZarrIterableDataset(
        mapping(store, kind),
        batch_size=5,
        shuffle=True,
        return_index=True,
        num_threads=3,
        mixing={"lanes": lanes, "mix": mix},
    )
    check(dataset, [expected()], batch_size=5)


@pytest.mark.parametrize("source", [np.arange(N * 3.0).reshape(N, 3), torch.arange(N)], ids=["numpy", "tensor"])
def test_without_targets_and_index_a_bare_tensor_or_a_dict_comes(source: Any) -> None:
    rows = torch.as_tensor(source)
    assert torch.equal(torch.cat(list(ZarrIterableDataset(source, batch_size=7))), rows)
    assert torch.equal(torch.stack(list(ZarrIterableDataset(source))), rows)
    for dataset in (ZarrIterableDataset({"a": source}, batch_size=7), ZarrIterableDataset({"a": source})):
        assert all(isinstance(item, dict) and list(item) == ["a"] for item in dataset)
    pairs = list(ZarrIterableDataset({"a": source}, source))
    assert all(isinstance(pair, tuple) and torch.equal(pair[0]["a"], pair[1]) for pair in pairs)


@pytest.mark.parametrize("axis", [1, -1])
def test_the_sample_axis_is_that_of_every_array_of_the_samples(axis: int, tmp_path: Path) -> None:
    wide = Layout(shape=(4, N), chunks=(3, 6), sample_axis=1).write(tmp_path / "wide")
    memory = np.arange(2 * N).reshape(2, N)
    source: dict[str, Any] = {"wide": wide, "numpy": memory, "tensor": torch.from_numpy(memory)}
    wanted = {"wide": read_all(wide, sample_axis=1), "numpy": memory.T, "tensor": memory.T}
    targets = np.arange(N)
    dataset = ZarrIterableDataset(
        zarrfeed.open(source, targets, sample_axis=axis), batch_size=7, shuffle=True, return_index=True
    )
    check(dataset, [wanted, {"": targets}])


def test_samples_in_memory_are_permuted_anew_in_every_epoch_without_a_store() -> None:
    dataset = ZarrIterableDataset(torch.arange(1000), batch_size=100, shuffle=True, seed=3)
    first, second = (torch.cat(list(dataset)) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.sort().values, torch.arange(1000))
    assert first.tolist() == dataset.sample_order(0).tolist()
    assert dataset.explain().chunks_per_batch > 7
    with no_thread_left():
        dataset.close()


# --- in DataLoaders and other processes -------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("kind", ["mixed", "tensors"])
@pytest.mark.parametrize(("context", "num_workers"), [(None, 0), ("fork", 2), ("forkserver", 1), ("forkserver", 2)])
def test_workers_get_all_fields_and_every_sample_once(
    context: str | None, num_workers: int, kind: str, store: Path
) -> None:
    dataset = ZarrIterableDataset(mapping(store, kind), batch_size=7, shuffle=True, return_index=True)
    next(iter(dataset))  # an engine of the parent is alive
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=context,
        timeout=240 if num_workers else 0,
    )
    seen = []
    for batch, index in loader:
        for name, rows in batch.items():
            assert_rows_equal(rows.clone(), index, expected()[name])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))
    dataset.set_epoch(0)
    check(dataset, [expected()])  # the parent's own fields have not moved


def test_single_samples_are_collated_by_a_dataloader(store: Path) -> None:
    dataset = ZarrIterableDataset(mapping(store, "mixed"), np.arange(N), shuffle=True)
    seen = []
    for batch, index in DataLoader(dataset, batch_size=10):
        for name, rows in batch.items():
            assert_rows_equal(rows, index, expected()[name])
        seen += index.tolist()
    assert sorted(seen) == list(range(N))


@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_pickled_dataset_reads_the_same(kind: str, used_before: bool, store: Path) -> None:
    dataset = ZarrIterableDataset(mapping(store, kind), batch_size=7, shuffle=True, return_index=True)
    if used_before:
        next(iter(dataset))
        dataset.set_epoch(0)
    again = pickle.loads(pickle.dumps(dataset))
    assert repr(again) == repr(dataset)
    assert check(again, [expected()]) == check(dataset, [expected()])


# --- explain ----------------------------------------------------------------------------------------------------


def test_explain_names_every_field_and_the_one_that_makes_the_blocks(store: Path) -> None:
    dataset = ZarrIterableDataset(mapping(store, "mixed"), store / "g", batch_size=7, shuffle=True)
    explanation = dataset.explain()
    assert explanation.primary == "samples['wind']"
    assert explanation.block_rows == 6
    names = [f"samples[{n!r}]" for n in FIELDS] + [f"targets[{n!r}]" for n in ("mask", "time", "wind")]
    assert [f.name for f in explanation.fields] == names
    page = str(explanation)
    for text in (*names, "blocks are the chunks of samples['wind']", "in memory", "kept in memory"):
        assert text in page
    assert len({line.index("  ") for line in page.splitlines() if line.startswith("samples['")}) > 0
    in_memory = ZarrIterableDataset(torch.arange(N), batch_size=7).explain()
    assert in_memory.primary is None
    assert "all fields are in memory" in str(in_memory)
    assert in_memory.memory_bytes <= in_memory.memory.budget


@pytest.mark.parametrize("shuffle", [False, True])
def test_chunk_reads_of_every_field_are_predicted(shuffle: bool, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "g")
    for name, rows in (("a", 12), ("b", 4), ("c", 9)):
        Layout(shape=(N, 64), chunks=(rows, 64)).write(tmp_path / "g" / name)
    dataset = ZarrIterableDataset(
        tmp_path / "g", batch_size=7, shuffle=shuffle, memory_budget="64KiB", mixing={"lanes": 1}
    )
    explanation = dataset.explain()
    assert explanation.primary == "samples['a']"
    assert [f.amplification for f in explanation.fields[:2]] == [1, 1]
    assert explanation.fields[2].amplification > 1
    for _ in dataset:
        pass
    assert dataset.stats().chunks_read == sum(f.chunk_reads for f in explanation.fields)


def test_repr_names_the_fields(store: Path) -> None:
    text = repr(ZarrIterableDataset(mapping(store, "mixed"), np.arange(N), batch_size=7))
    assert "53 samples of {'wind': (4, 5) float32, 'mask': (4,) bool, " in text
    assert "a: " not in text
    assert "53 samples of (3,) float64" in repr(ZarrIterableDataset(np.zeros((N, 3)), batch_size=7))


# --- what is refused --------------------------------------------------------------------------------------------


def refused(error: type[Exception], message: str, *sources: Any, **options: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        iterable_dataset(*sources, **{"batch_size": 2, **options})
    assert type(caught.value) is error
    assert len(str(caught.value)) < 2000


def test_lengths_that_differ_are_named_with_their_numbers(store: Path) -> None:
    short = np.zeros(N - 1)
    refused(
        ConfigError,
        r"samples\['b'\] has 52 samples, samples\['a'\] \(.*wind\) has 53: they must be equal",
        {"a": store / "g" / "wind", "b": short},
    )
    refused(ConfigError, r"targets\['b'\] has 52 samples, samples has 53", np.zeros(N), {"b": short})
    refused(ConfigError, r"targets\['mask'\] has 53 samples, samples has 52", short, store / "g")
    zarr.open_group(store / "g").create_array("latitude", shape=(721,), dtype="f4")
    refused(ConfigError, r"samples\['mask'\] has 53 samples, samples\['latitude'\] .* has 721", store / "g")


def test_groups_without_arrays_are_refused_and_say_what_is_in_them(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    refused(ConfigError, "samples: .*g: is a group without arrays$", tmp_path / "g")
    refused(ConfigError, "targets: .*g: is a group without arrays$", np.zeros(3), group)
    group.create_group("b")
    group.create_group("a")
    refused(ConfigError, r"groups in it, which depth=1 enters, or variables=\[\.\.\.\]: a, b", tmp_path / "g")


@pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")
def test_a_group_with_an_array_that_cannot_be_read_is_refused_by_its_name(store: Path) -> None:
    group = zarr.open_group(store / "g")
    group.create_array("names", shape=(N,), dtype=np.dtype([("x", "U4")]))
    refused(UnsupportedError, r"samples\['names'\]: .*names: ", store / "g")
    del group["names"]
    group.create_array("crs", shape=(), dtype="i4")
    refused(ConfigError, r"samples\['crs'\]: .*crs: has no axes", store / "g")
    refused(ConfigError, r"targets\['crs'\]: .*crs: has no axes", np.zeros(N), store / "g")


@pytest.mark.filterwarnings("ignore:Object at .* is not recognized as a component:zarr.errors.ZarrUserWarning")
@pytest.mark.parametrize("text", ["{", "[]", "null"])
def test_a_group_with_a_damaged_member_is_our_error(text: str, store: Path) -> None:
    (store / "g" / "wind" / "zarr.json").write_text(text)
    refused(ConfigError, "samples: .*g/wind: zarr-python cannot open it", store / "g")
    refused(ConfigError, "targets: .*g/wind: zarr-python cannot open it", np.zeros(N), store / "g")


def test_mappings_that_name_nothing_usable_are_refused(store: Path) -> None:
    refused(ConfigError, "samples: is an empty mapping", {})
    refused(ConfigError, "samples: has the key 3, a int; names must be str", {3: np.zeros(N)})
    refused(ConfigError, r"samples\['a'\]: got a list, ", {"a": [1, 2]})
    refused(ConfigError, r"samples\['a'\]: got a dict, ", {"a": {"b": np.zeros(N)}})
    refused(ConfigError, r"samples\['a'\]: .*g: is a group, must be an array", {"a": store / "g"})
    refused(ConfigError, r"samples\['a'\]: .*g: is a group", {"a": zarr.open_group(store / "g")})
    refused(StoreReadError, r"samples\['a'\]: .*nothing", {"a": store / "nothing"})
    refused(UnsupportedError, r"targets\['a'\]: ftp://b", np.zeros(N), {"a": "ftp://b"})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.array(1.0), r"has no axes \(0-d\)"),
        (np.zeros((0, 3)), r"has the shape \(0, 3\)"),
        (torch.zeros(3, 0), r"has the shape \(3, 0\)"),
        (np.ma.masked_array(np.zeros(3)), "is a masked array"),
        (torch.zeros(3, device="meta"), "is on meta, must be in host memory"),
    ],
)
def test_arrays_in_memory_that_are_no_samples_are_refused(source: Any, message: str) -> None:
    refused(ConfigError, f"samples: {message}", source)
    refused(ConfigError, rf"samples\['a'\]: {message}", {"a": source})


def test_dtypes_and_axes_of_arrays_in_memory_are_checked() -> None:
    refused(UnsupportedError, "samples: dtype .* has no torch equivalent", np.zeros(3, "U1"))
    refused(UnsupportedError, r"samples\['a'\]: a torch.sparse_coo tensor", {"a": torch.eye(3).to_sparse()})
    refused(ConfigError, r"samples: sample_axis = 1, must be in \[-1, 0\]", np.zeros(3), sample_axis=1)
    refused(ConfigError, r"samples\['b'\]: sample_axis = 1", {"a": np.zeros((2, 3)), "b": np.zeros(3)}, sample_axis=1)
    refused(ConfigError, "batch_size = 0", np.zeros(3), batch_size=0)
    refused(MemoryBudgetError, "memory_budget = 1 B, must be at least", np.zeros((3, 100)), memory_budget=1)


def test_a_damaged_chunk_of_any_field_is_an_error_with_its_key(store: Path) -> None:
    (store / "g" / "mask" / "c" / "2" / "0").write_bytes(b"no chunk")
    dataset = ZarrIterableDataset(store / "g", batch_size=7, memory_budget="64KiB")
    with no_thread_left(), pytest.raises(CorruptChunkError, match="mask chunk c/2/0: "):
        list(dataset)
