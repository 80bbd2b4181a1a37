"""Arrays in memory next to stored ones: one source, in every order and through every function that joins stores."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataset, ZarrIterableDataset
from zarrfeed.metadata.array.host_memory import field_in_memory
from zarrfeed.metadata.stores.memory_store import as_stored


def numbered(first: int, count: int) -> np.ndarray[Any, Any]:
    rows: np.ndarray[Any, Any] = (np.arange(first, first + count)[:, None] + np.array([0.0, 0.25, 0.5])).astype("f4")
    return rows


STORED, MEMORY = numbered(0, 21), numbered(1000, 13)


def sources() -> tuple[Any, Any]:
    return zarr.array(STORED, chunks=(4, 3)), MEMORY


JOINS: dict[str, Callable[[list[Any]], zarrfeed.Data]] = {
    "concat": zarrfeed.concat,
    "open": zarrfeed.open,
    "concat of descriptions": lambda given: zarrfeed.concat([zarrfeed.open(one) for one in given]),
    "tensors": lambda given: zarrfeed.concat(
        [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in given]
    ),
}


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize("order", ["sm", "ms", "msm", "mms"])
def test_arrays_in_memory_and_stored_ones_are_one_source(join: str, order: str) -> None:
    stored, memory = sources()
    given = [stored if letter == "s" else memory for letter in order]
    expected = np.concatenate([STORED if letter == "s" else MEMORY for letter in order])
    data = JOINS[join](given)
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=True, seed=3, return_index=True)
    for passes in (dataset, pickle.loads(pickle.dumps(dataset))):
        for _ in range(2):  # the second epoch compares metadata with those of before
            seen: list[int] = []
            for batch, index in passes:
                assert np.array_equal(batch.numpy(), expected[index.numpy()])
                seen += index.tolist()
            assert sorted(seen) == list(range(len(expected)))
    some = [len(expected) - 1, 0, 12, 13, 0]
    assert np.array_equal(ZarrDataset(data)[some].numpy(), expected[some])


def test_mixtures_draw_from_both() -> None:
    dataset = ZarrIterableDataset(zarrfeed.mix(list(sources())), batch_size=8, shuffle=True, seed=1)
    drawn = torch.cat(list(dataset)).numpy()
    rows = {tuple(row) for row in drawn.tolist()}
    both = [{tuple(row) for row in source.tolist()} for source in (STORED, MEMORY)]
    assert rows <= both[0] | both[1]
    assert rows & both[0]
    assert rows & both[1]


def test_conversions_windows_and_names_work_as_for_stored_arrays() -> None:
    stored, memory = sources()
    expected = np.concatenate([STORED, MEMORY])
    normalized = zarrfeed.concat([stored, memory]).normalize((1.0, 2.0))
    assert np.array_equal(ZarrDataset(normalized)[[20, 21]].numpy(), (expected[[20, 21]] - 1) / 2)
    before = zarrfeed.concat([zarrfeed.open(one).normalize((1.0, 2.0)) for one in (stored, memory)])
    assert np.array_equal(ZarrDataset(before)[[20, 21]].numpy(), (expected[[20, 21]] - 1) / 2)
    windows = ZarrDataset(zarrfeed.concat([stored, memory]).window((0, 1)))
    assert len(windows) == 20 + 12
    cast = zarrfeed.concat([stored, memory.astype("f8")], dtype="float32")
    assert np.array_equal(ZarrDataset(cast)[[0, 33]].numpy(), expected[[0, 33]])
    named = zarrfeed.concat([{"a": stored, "b": STORED}, {"a": memory, "b": memory}])
    batch = ZarrDataset(named)[[0, 33]]
    assert np.array_equal(batch["a"].numpy(), expected[[0, 33]])
    assert np.array_equal(batch["b"].numpy(), expected[[0, 33]])


def test_rows_of_any_size_are_read_where_they_lie() -> None:
    for shape in ((5,), (300_000, 2), (3, 400_000), (7, 2, 3)):
        for dtype in ("?", "u1", "i8", "f2", "c16"):
            rows = (np.arange(np.prod(shape)) % 100).reshape(shape).astype(dtype)
            field = as_stored(field_in_memory("x", rows, 0))
            assert field.spec.shape == shape
            dataset = ZarrIterableDataset(zarrfeed.concat([rows, zarr.array(rows, chunks=shape)]), batch_size=shape[0])
            for batch in dataset:
                assert np.array_equal(batch.numpy(), rows), (shape, dtype)


def test_what_cannot_be_stored_is_refused_with_the_reason() -> None:
    stored, memory = sources()
    with pytest.raises(ConfigError, match="is in memory, and has bfloat16; next to stored arrays"):
        zarrfeed.concat([zarrfeed.open(stored), torch.from_numpy(memory).bfloat16()])
    with pytest.raises(ConfigError, match=r"is float32 of shape \(2,\), in .* it is float32 of shape \(3,\)"):
        zarrfeed.concat([stored, memory[:, :2]])
    records = np.zeros(4, [("a", "i4")])
    with pytest.raises(ConfigError, match="is in memory, and has records"):
        zarrfeed.concat([stored, records])
