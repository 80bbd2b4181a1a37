"""The memory of a plan counts against the budget, and changes no order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
import zarrfeed.objects
from tests.support.examples import tries
from zarrfeed.base.units import parse_bytes
from zarrfeed.plan.schedule import resources

N = 400_000


def test_what_a_plan_keeps_is_counted_and_shown(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", shape=(N,), chunks=(1000,), dtype="f8")
    data = zarrfeed.open(tmp_path / "x")
    mask = np.random.default_rng(0).random(N) < 0.5
    random = np.sort(np.random.default_rng(0).choice(N, 4000, replace=False))
    ends = np.arange(10, N + 1, 10)
    cases: dict[str, tuple[Any, float, float]] = {
        "all": (data, 0, 0),
        "slice": (data.select(slice(5, N - 5)), 0, 0),
        "step": (data.select(slice(None, None, 3)), 0, 0),
        "mask": (data.select(mask), N / 8, N / 8 + 48 * 401),
        "list": (data.select(random), 2 * len(random), 2 * len(random) + 48 * 401 + 999),
        "windows": (data.window((0, 1)), 460 * 10, 460 * 401),
        "borders": (data.window((0, 1), pad=0, segment_ends=ends), 2 * ends.nbytes, 2 * ends.nbytes + 460 * 401),
    }
    for name, (of, least, most) in cases.items():
        dataset = zarrfeed.ZarrIterableDataset(of, batch_size=64, shuffle=True, memory_budget="64MiB")
        explained = dataset.explain()
        assert least <= explained.memory.plan_bytes <= most, (name, explained.memory.plan_bytes)
        assert ("for the plan of an epoch" in str(explained)) == (explained.memory.plan_bytes > 0), name
        assert explained.memory_bytes <= explained.memory.budget, name


def test_what_joins_mixtures_and_patches_list_is_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    keys = [np.sort(random.choice(4000, 2000, replace=False)) for _ in range(2)]
    for number, key in enumerate(keys):
        group = zarr.create_group(tmp_path / f"{number}")
        group.create_array("x", data=np.zeros(2000, "f4"), chunks=(100,), dimension_names=["t"])
        group.create_array("t", data=key, chunks=(2000,), dimension_names=["t"])
    both = {"a": tmp_path / "0", "b": tmp_path / "1"}
    joined = len(np.intersect1d(keys[0], keys[1]))
    zarr.create_array(tmp_path / "x", shape=(1000,), chunks=(10,), dtype="f4")
    zarr.create_array(tmp_path / "v", shape=(400, 8, 8), chunks=(2, 8, 8), dtype="f4")
    visits = 2 * 100 * 3 // 2  # one source once, the other one twice
    cases: dict[str, tuple[Any, int, int]] = {
        "join": (zarrfeed.join(both, on="t"), 2 * 8 * joined, 2 * 8 * joined + 8000),
        "join of even rows": (zarrfeed.join({"a": both["a"], "b": both["a"]}, on="t"), 0, 8000),
        "mixture": (
            zarrfeed.mix([tmp_path / "x", tmp_path / "x"], weights=[1, 2], stop="all"),
            visits * 230,
            visits * 240 + 200 * 48,
        ),
        "patches": (zarrfeed.open(tmp_path / "v").patch({0: 2, 1: 8, 2: 8}), 200 * 230, 200 * 300),
    }
    for name, (of, least, most) in cases.items():
        explained = zarrfeed.ZarrIterableDataset(of, batch_size=4, shuffle=True, memory_budget="64MiB").explain()
        assert least <= explained.memory.plan_bytes <= most, (name, explained.memory.plan_bytes)
        assert explained.memory_bytes <= explained.memory.budget, name


def test_a_plan_that_has_no_room_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", shape=(1 << 24,), chunks=(1 << 12,), dtype="u1")
    mask = np.random.default_rng(0).random(1 << 24) < 0.5
    data = zarrfeed.open(tmp_path / "x").select(mask)
    with pytest.raises(zarrfeed.MemoryBudgetError, match=r"2\.\d MiB for the plan"):
        zarrfeed.ZarrIterableDataset(data, batch_size=64, memory_budget="1MiB", num_threads=1)


@pytest.mark.filterwarnings("ignore:this order hardly shuffles")
def test_lanes_do_not_depend_on_what_the_plan_keeps_while_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is a contract: samples that are listed are read as they were before they were counted."""
    zarr.create_array(tmp_path / "x", shape=(N,), chunks=(1000,), dtype="f8")
    data = zarrfeed.open(tmp_path / "x").select(np.random.default_rng(0).random(N) < 0.5)

    def explained() -> zarrfeed.Explanation:
        dataset = zarrfeed.ZarrIterableDataset(data, batch_size=64, shuffle=True, memory_budget="2MiB", num_threads=1)
        return dataset.explain()

    counted = explained()
    monkeypatch.setattr(resources, "plan_bytes", lambda *_: 0)
    free = explained()
    assert counted.memory.plan_bytes > 0 == free.memory.plan_bytes
    assert (counted.lanes, counted.mix) == (free.lanes, free.mix)
    assert counted.memory.batch_room < free.memory.batch_room


def test_a_lane_that_ends_in_a_block_costs_the_chunks_of_its_windows_too(tmp_path: Path) -> None:
    """A tenth of the blocks may be read once more, and with windows over two chunks each of these is two reads."""
    zarr.create_array(tmp_path / "x", shape=(960, 4096), chunks=(8, 4096), dtype="f4")
    rows = zarrfeed.open(tmp_path / "x")
    lanes = {}
    for data in (rows, rows.window((0, 1))):
        dataset = zarrfeed.ZarrIterableDataset(
            data, batch_size=4, shuffle=True, memory_budget="32MiB", num_threads=2, mixing={"block": "chunk"}
        )
        lanes[data.fields[0].shape] = dataset.explain().lanes
    of_rows, of_windows = lanes.values()
    assert 2 * (of_windows - 1) <= 960 // 8 // 10 < 2 * (of_rows - 1)


def test_the_order_of_objects_is_counted(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("x")
    dataset = zarrfeed.objects.ObjectIterableDataset(tmp_path, batch_size=3)
    schedule = dataset._session.schedule
    rank_info = dataset._session.rank_info()
    state = schedule.settle(dataset._session.upcoming(), rank_info.consumer())
    found = schedule.resources(schedule.order_of(state), rank_info, rank_info.consumer())
    assert found.memory.plan_bytes == 8 * 9


def test_the_least_budget_that_is_named_suffices_and_so_does_more(tmp_path: Path) -> None:
    """More lanes were chosen for a larger budget than it had room for, where the plan takes most of the memory."""
    random = np.random.default_rng(3)
    for case in range(tries(6, 20)):
        rows, width, chunk = (int(random.integers(*bounds)) for bounds in ((200, 3000), (1, 60), (1, 20)))
        zarr.create_array(tmp_path / f"{case}", shape=(rows, width), chunks=(chunk, width), dtype="f4")
        listed = np.sort(random.choice(rows, rows // 2, replace=False))
        data = zarrfeed.open(tmp_path / f"{case}").select(listed)
        options: dict[str, Any] = {"batch_size": int(random.integers(1, 65)), "shuffle": True, "seed": 0}
        options["num_threads"] = int(random.integers(1, 5))
        with pytest.raises(zarrfeed.MemoryBudgetError) as refused:
            zarrfeed.ZarrIterableDataset(data, memory_budget=1000, **options)
        named = re.search(r"at least ([\d.]+ \w+)", str(refused.value))
        assert named is not None
        least = parse_bytes(named[1])
        for budget in (least, least + 1, int(1.1 * least), int(1.5 * least), 2 * least, 4 * least):
            dataset = zarrfeed.ZarrIterableDataset(data, memory_budget=budget, **options)
            assert dataset.explain().memory_bytes <= budget, (case, budget)
