"""Decodes that are saved by keeping chunks, against a slow model, and against what the engine decodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

import zarrfeed
from zarrfeed import ZarrIterableDataset
from zarrfeed.plan.order.cached_decodes import Chains, SharingMemory, saved_decodes


def slowly(arrays: list[Chains], sizes: list[int], room: int) -> list[int]:
    """Return the same by a list of what has memory, which is searched each time."""
    chains = sorted(
        (int(first), number, int(cell), int(last))
        for number, one in enumerate(arrays)
        for cell, first, last in zip(one.cell, one.first, one.last, strict=True)
    )
    saved = [0] * len(arrays)
    owned: list[dict[str, Any]] = []  # chunks with memory: those that are cached, and those that chains hold
    for at, (first, number, cell, last) in enumerate(chains):
        for one in owned:
            one["held"] = [end for end in one["held"] if end >= first]
        owned = [one for one in owned if one["held"] or one["cached"]]
        later = [chain[0] for chain in chains[at + 1 :] if chain[1:3] == (number, cell)]
        mine = next((one for one in owned if one["cached"] and one["chunk"] == (number, cell)), None)
        saved[number] += mine is not None
        while mine is None and later:
            if sum(one["size"] for one in owned) + sizes[number] <= room:
                mine = {"chunk": (number, cell), "size": sizes[number], "held": [], "cached": True}
                owned.append(mine)
                break
            cached = [one for one in owned if one["cached"]]
            farthest = max(cached, key=lambda one: (one["next"], one["chunk"]), default=None)
            if farthest is None or (farthest["next"], farthest["chunk"]) <= (later[0], (number, cell)):
                break
            farthest["cached"] = False
            owned = [one for one in owned if one["held"] or one["cached"]]
        if mine is not None:
            mine["held"].append(last)
            mine["cached"] = bool(later)
            mine["next"] = later[0] if later else None
    return saved


@st.composite
def some_chains(draw: st.DrawFn) -> Chains:
    count = draw(st.integers(0, 25))
    numbers = st.lists(st.integers(0, 6), min_size=count, max_size=count)
    first = np.array(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)), dtype=np.int64)
    cell = np.array(draw(numbers), dtype=np.int64)
    # one chain of a chunk begins in a group
    _, once = np.unique(np.stack([cell, first]), axis=1, return_index=True)
    longer = np.array(draw(numbers), dtype=np.int64)
    return Chains(cell[once], first[once], (first + longer)[once])


@given(st.lists(some_chains(), min_size=1, max_size=2), st.integers(1, 4), st.integers(0, 20))
def test_chains_find_chunks_that_memory_keeps(arrays: list[Chains], size: int, room: int) -> None:
    sizes = [size, 3][: len(arrays)]
    assert saved_decodes(arrays, sizes, room) == slowly(arrays, sizes, room)
    assert saved_decodes(arrays, sizes, 0) == [0] * len(arrays)
    ample = [len(one) - len(np.unique(one.cell)) for one in arrays]
    assert saved_decodes(arrays, sizes, 10_000) == ample


@pytest.mark.parametrize(("budget", "lanes"), [("2 MiB", 2), ("3 MiB", 4), ("5 MiB", None), ("64 MiB", 3)])
def test_an_epoch_decodes_what_is_explained(budget: str, lanes: int | None, tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g")
    group.create_array("image", shape=(96, 96, 96), chunks=(24, 24, 24), dtype="u1", fill_value=1)
    group.create_array("label", shape=(96, 96, 96), chunks=(32, 48, 16), dtype="u2", fill_value=2)
    for array in group.arrays():
        array[1][:] = 3
    data = zarrfeed.open(str(tmp_path / "g")).patch({0: 12, 1: 12, 2: 12})
    mixing = {"lanes": lanes} if lanes else {}
    # With two threads, one may need a chunk again that the other has just let go: 1 to 9 % more, by their timing.
    dataset = ZarrIterableDataset(
        data, batch_size=4, shuffle=True, seed=2, memory_budget=budget, mixing=mixing, num_threads=1
    )
    total = 0
    for _ in range(3):
        explained = dataset.explain()
        total += sum(one.chunk_reads for one in explained.fields)
        for image, label in map(dict.values, dataset):
            assert (image == 3).all() | (image == 0).any()
            assert (label == 3).all() | (label == 0).any()
    assert dataset.stats().chunks_read == pytest.approx(total, rel=0.06)
    assert explained.patches is not None
    assert explained.patches.choice is not None
    if budget == "64 MiB":
        assert explained.patches.choice.amplification == 1
        assert dataset.stats().chunks_read == 3 * (4**3 + 3 * 2 * 6)
        assert explained.memory.keep_bytes
        assert "for chunks that columns share" in str(explained)


def memory(carry_bytes: int = 0, keep_bytes: int = 0, num_threads: int = 0, open_batches: int = 2) -> SharingMemory:
    return SharingMemory(carry_bytes, keep_bytes, num_threads, batch_size=4, max_open_batches=open_batches)


def test_a_group_has_ended_when_one_is_begun_whose_batches_wait_for_it() -> None:
    last_step = np.array([3, 5, 9, 7, 17])  # the batches 0, 1, 2, 1, 4
    assert memory().ends(last_step).tolist() == [2, 4, 4, 4, 5]
    assert memory(open_batches=3).ends(last_step).tolist() == [4, 4, 5, 4, 5]
    assert memory(open_batches=9).ends(last_step).tolist() == [5] * 5


def test_memory_suffices_where_all_that_may_be_held_at_once_fits() -> None:
    ends = np.array([1, 2, 4, 4])
    chains = [Chains(np.array([7, 8, 7]), np.array([0, 1, 2]), np.array([1, 2, 3]))]  # held in [0, 2), [1, 4), [2, 4)
    assert not memory(carry_bytes=19).carries_all(chains, ends, [10])
    assert memory(carry_bytes=20).carries_all(chains, ends, [10])
    assert not memory(carry_bytes=20, num_threads=1).carries_all(chains, ends, [10])
    # chunk 7 is kept from its first chain to the end of its last one; no other chain needs chunk 8
    assert not memory(keep_bytes=9).keeps_all(chains, ends, [10])
    assert memory(keep_bytes=10).keeps_all(chains, ends, [10])
    assert memory().keeps_all([], ends, [])
