"""Values of segments, and samples that are chosen by segment, against NumPy; every sample holds its own index."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from torch.utils.data import DataLoader

import zarrfeed
from zarrfeed import ConfigError, Data, UnsupportedError, ZarrDataset, ZarrIterableDataset

#: Samples of each segment of each store; some segments have none.
LENGTHS = ([3, 1, 0, 7, 5], [4], [0, 6, 2, 2], [9, 1])
TASKS = np.array(["pick", "place", "Öl nachfüllen"])


class Oracle:
    """The values of each sample, by NumPy."""

    def __init__(self, lengths: Any) -> None:
        each = [np.asarray(one) for one in lengths]
        self.lengths = np.concatenate(each)
        self.numbers = np.concatenate([100 * store + np.arange(len(one)) for store, one in enumerate(each)])
        self.segment = np.repeat(np.arange(len(self.lengths)), self.lengths)
        self.age = self.numbers[self.segment]
        self.task = TASKS[self.age % 3]
        self.ends = np.cumsum(self.lengths)

    def check(self, batch: dict[str, Any], index: np.ndarray) -> None:
        assert batch["task"] == self.task[index].tolist()
        assert batch["age"].dtype == torch.int16
        assert np.array_equal(batch["age"], self.age[index])
        assert np.array_equal(batch["weight"], self.age[index].astype("f4") / 2)
        assert np.array_equal(batch["goal"], np.multiply.outer(self.age[index], np.ones((2, 3), "f4")))


def write(path: Path, lengths: list[int], first: int, begin: int) -> str:
    """Write a replay buffer; its samples hold their index among those of all stores."""
    root = zarr.create_group(path)
    numbers, total = first + np.arange(len(lengths)), sum(lengths)
    root.create_array("data/x", data=np.arange(begin, begin + total).astype("f4"), chunks=(4,))
    root.create_array("meta/episode_ends", data=np.cumsum(lengths))
    root.create_array("meta/age", data=numbers.astype("i2"))
    packed: dict[str, Any] = {"scale_factor": 0.5, "_FillValue": -1}
    root.create_array("meta/weight", data=numbers.astype("i2"), attributes=packed)
    root.create_array("meta/goal", data=np.multiply.outer(numbers, np.ones((2, 3), "f4")).astype("f4"))
    tasks = root.create_array("meta/task", shape=(len(lengths),), dtype=str)
    tasks[:] = TASKS[numbers % 3].astype(object)
    return str(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder, begins = tmp_path_factory.mktemp("segments"), np.cumsum([0, *map(sum, LENGTHS)])
    return [
        write(folder / f"{number}.zarr", lengths, 100 * number, int(begin))
        for number, (lengths, begin) in enumerate(zip(LENGTHS, begins, strict=False))
    ]


def with_values(data: Data) -> Data:
    return data.segment_field("task", age="meta/age", weight="weight", goal="goal")


def read(data: Data) -> tuple[dict[str, Any], np.ndarray]:
    batch, index = ZarrDataset(data, return_index=True)[list(range(len(data)))]
    return batch, index.numpy()


def test_samples_have_the_values_of_their_segment_in_one_store_and_in_many(stores: list[str]) -> None:
    oracle, alone = Oracle(LENGTHS), Oracle(LENGTHS[:1])
    plain = zarrfeed.open([f"{one}/data" for one in stores]).segments("meta/episode_ends")
    for data, known in (
        (zarrfeed.open(stores[0]), alone),
        (zarrfeed.open(stores), oracle),
        (zarrfeed.concat(stores), oracle),
        (plain, oracle),
        (zarrfeed.open(f"{stores[0]}/data").segments(zarr.open_array(f"{stores[0]}/meta/episode_ends")), alone),
    ):
        batch, index = read(with_values(data))
        assert np.array_equal(batch["x"], index)
        known.check(batch, index)
        numbers, _ = read(data.segment_field("segment"))
        assert np.array_equal(numbers["segment"], known.segment)


@pytest.mark.parametrize("shuffle", [False, True])
def test_windows_ranks_workers_and_resuming_deliver_the_same_values(stores: list[str], shuffle: bool) -> None:
    oracle = Oracle(LENGTHS)
    data = with_values(zarrfeed.open(stores)).window((-1, 0), pad="edge")
    found: list[int] = []
    for rank in range(2):
        options: dict[str, Any] = {"batch_size": 4, "shuffle": shuffle, "seed": 3, "return_index": True}
        with ZarrIterableDataset(data, rank=rank, world_size=2, even="off", **options) as dataset:
            batches = iter(dataset)
            first, state = [next(batches), next(batches)], dataset.state_dict()
            rest = list(batches)
        with ZarrIterableDataset(data, rank=rank, world_size=2, even="off", **options) as resumed:
            resumed.load_state_dict(state)
            again = list(resumed)
        for batch, index in (*first, *rest):
            oracle.check(batch, index.numpy())
            begins = oracle.ends - oracle.lengths
            before = np.maximum(index.numpy() - 1, begins[oracle.segment[index.numpy()]])
            assert np.array_equal(batch["x"], np.stack([before, index.numpy()], 1))
            found += index.tolist()
        assert [index.tolist() for _, index in again] == [index.tolist() for _, index in rest]
        for batch, index in again:
            oracle.check(batch, index.numpy())
    assert sorted(found) == list(range(len(oracle.segment)))


def test_workers_deliver_text_of_segments(stores: list[str]) -> None:
    data = with_values(zarrfeed.open(stores))
    with ZarrIterableDataset(data, batch_size=8, shuffle=True, return_index=True) as dataset:
        for batch, index in DataLoader(dataset, batch_size=None, num_workers=1):
            Oracle(LENGTHS).check(batch, index.numpy())


@pytest.mark.parametrize("number", range(8))
def test_sel_segments_chooses_what_numpy_chooses(stores: list[str], number: int) -> None:
    oracle, data = Oracle(LENGTHS), zarrfeed.open(stores)
    of_segment = TASKS[oracle.numbers % 3]
    ask, wanted = (
        ({"task": "pick"}, of_segment == "pick"),
        (
            {"task": ["pick", "place"], "age": slice(1, 200)},
            (of_segment != TASKS[2]) & (oracle.numbers >= 1) & (oracle.numbers <= 200),
        ),
        ({"meta/age": lambda age: age % 2 == 1}, oracle.numbers % 2 == 1),
        ("task == 'place' and age > 3", (of_segment == "place") & (oracle.numbers > 3)),
        ([0, -1, 3], np.isin(np.arange(len(oracle.numbers)), [0, 3, len(oracle.numbers) - 1])),
        (slice(2, None, 3), np.arange(len(oracle.numbers)) % 3 == 2),
        (oracle.lengths > 3, oracle.lengths > 3),
        ({"segment": [1, 3]}, np.isin(np.arange(len(oracle.numbers)), [1, 3])),
    )[number]
    samples = np.flatnonzero(wanted[oracle.segment])
    chosen = data.sel_segments(ask)
    assert np.array_equal(read(with_values(chosen))[1], samples)
    assert np.array_equal(
        read(data.select(slice(2, 30)).sel_segments(ask))[1], samples[(samples >= 2) & (samples < 30)]
    )
    windows, index = read(with_values(chosen).window((0, 1), rows="selected"))
    assert np.array_equal(index, samples[~np.isin(samples + 1, oracle.ends)])
    assert np.array_equal(windows["x"], np.stack([index, index + 1], 1))
    oracle.check(windows, index)
    copy = pickle.loads(pickle.dumps(chosen))
    assert copy == chosen
    assert copy != data.sel_segments([4])
    assert np.array_equal(read(copy)[1], samples)


def test_a_column_of_segments_is_a_column_of_samples(stores: list[str]) -> None:
    oracle, data = Oracle(LENGTHS), zarrfeed.open(stores)
    for part in data.split((0.5, 0.5), groups="segment"):
        index = read(part)[1]
        assert np.isin(oracle.segment[index], oracle.segment).all()
        assert len(index) == np.isin(oracle.segment, oracle.segment[index]).sum()
    assert np.array_equal(
        read(data.where(task=lambda task: task == "place"))[1], np.flatnonzero(oracle.task == "place")
    )
    assert np.array_equal(read(data.sel(task="place"))[1], np.flatnonzero(oracle.task == "place"))
    with ZarrIterableDataset(data.balance("task", n=300), batch_size=300, return_index=True) as dataset:
        (_, index) = next(iter(dataset))
    assert np.unique(oracle.task[index], return_counts=True)[1].tolist() == [100, 100, 100]
    in_memory = zarrfeed.open({"x": np.arange(6)}).segments([2, 2, 6]).segment_field(task=["a", "b", "c"])
    assert read(in_memory.sel_segments(task="c"))[1].tolist() == [2, 3, 4, 5]
    assert sorted(map(len, in_memory.split((0.5, 0.5), groups="task"))) == [2, 4]


def test_segments_of_window_serve_fields_and_steps_of_values_are_asked_by_name(stores: list[str]) -> None:
    data = zarrfeed.open({"x": np.arange(6, dtype="f4")}).window((0, 1), segment_ends=[2, 6])
    data = data.segment_field(age=torch.tensor([3.0, 5.0]), task=["a", "b"])
    sample = ZarrDataset(data.cast("float16").normalize({"age": (1, 2)}))[3]
    assert sample["x"].dtype == torch.float16
    assert sample["age"] == 2
    assert sample["task"] == "b"
    channels = zarrfeed.open({"x": np.arange(6, dtype="f4")}).segments([2, 6]).segment_field(age=np.array([3, 5], "f4"))
    assert ZarrDataset(channels.stack(["x", "age"], name="both"))[4]["both"].tolist() == [4, 5]
    assert "one row for each of 5 segments" in str(
        ZarrIterableDataset(with_values(zarrfeed.open(stores[0])), batch_size=2).explain()
    )


def test_what_cannot_be_is_refused(stores: list[str]) -> None:
    data, bare = zarrfeed.open(stores[0]), zarrfeed.open({"x": np.arange(6)})
    refused: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: bare.segment_field(a=[1]), "no segments"),
        (lambda: bare.segments([2, 7]), "must end with the number of samples, 6"),
        (lambda: bare.segments([2, 6]).segment_field(a=[1]), r"shape \(1,\), must have a row for each of 2 segments"),
        (lambda: data.segment_field("nothing"), "no column 'nothing' is stored"),
        (lambda: data.segment_field("x"), "has 16 values, must have one for each of 5 segments"),
        (lambda: data.segment_field("task", "task"), "names an array twice"),
        (lambda: data.segment_field(x="task"), "have an array of this name"),
        (lambda: data.segment_field("task").window({"task": (0, 1)}), "same for all rows of a segment"),
        (lambda: data.sel_segments(task="walk"), "has no 'walk'"),
        (lambda: data.sel_segments(task=len), "gives an array of shape"),
        (lambda: data.sel_segments([2]), "none of the 16 chosen samples"),
        (lambda: data.sel_segments({}), "names nothing"),
        (lambda: data.sel_segments([0], task="pick"), "each once"),
        (lambda: data.window((0, 1)).sel_segments([0]), "follows window"),
        (lambda: data.segment_field("task").segments([16]), "must precede it"),
        (lambda: zarrfeed.concat([data.segment_field("task"), data]), "after zarrfeed.concat"),
        (lambda: zarrfeed.open(stores).segments([4, 36 + 4]), "no segment ends with"),
    )
    for wrong, message in refused:
        with pytest.raises(ConfigError, match=message):
            wrong()
    with pytest.raises(UnsupportedError, match="which are no tensors"):
        bare.segments([2, 6]).segment_field(day=np.array(["2020-01-01", "2020-01-02"], "M8[D]"))


def test_a_chosen_segment_is_packed_with_its_end(stores: list[str], tmp_path: Path) -> None:
    zarrfeed.pack(zarrfeed.open(stores[0]).sel_segments([0, 3]), tmp_path / "some.zarr", verify=True)
    packed = zarrfeed.open(tmp_path / "some.zarr")
    assert read(packed)[0]["x"].tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    assert len(packed.window((0, 1))) == 8
