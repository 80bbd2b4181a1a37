"""Windows over the borders of chunks: a chunk is decoded about once, as the counters of the engine say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import HealthCheck, assume, given
from hypothesis import strategies as st
from numcodecs import AsType
from zarr.storage import MemoryStore

from tests.support.examples import examples
from tests.support.flat import iterable_dataset
from zarrfeed import ConfigError, CorruptChunkError, ZarrDataLoader, ZarrIterableDataset, _core
from zarrfeed.metadata.array.array import read_layout
from zarrfeed.plan.blocks import blocks
from zarrfeed.plan.order.cached_decodes import SharingMemory
from zarrfeed.plan.order.carry import Overlap, next_groups, source_reads
from zarrfeed.plan.order.order import Order
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.samples.window import Window

ROWS = 24
CHUNKS = 91
N = ROWS * CHUNKS - 5
OFFSETS = (-1, 0, 1)


def write(store: Any, n: int = N, rows: int = ROWS, **options: Any) -> zarr.Array[Any]:
    """Write an array whose items are the index of their row; three columns, in two cells."""
    array = zarr.create_array(store, shape=(n, 3), chunks=(rows, 2), dtype="i4", overwrite=True, **options)
    array[:] = np.arange(n, dtype="i4")[:, None] + np.array([0, 10_000, 20_000], dtype="i4")
    return array


@pytest.fixture(autouse=True)
def long_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a block be one chunk, as it is where samples are large: the limit of a block's bytes is that of few rows."""
    monkeypatch.setattr(blocks, "_BLOCK_BYTES", ROWS * 3 * 4 * len(OFFSETS))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("carry") / "x"
    write(path)
    return path


def make(source: Any, **options: Any) -> ZarrIterableDataset:
    named: dict[str, Any] = {"offsets": OFFSETS, "batch_size": 16, "shuffle": True, "return_index": True, **options}
    return iterable_dataset(source, **named)


def check(x: Any, index: Any, offsets: tuple[int, ...] = OFFSETS) -> list[int]:
    """Compare windows with the rows that they consist of; return their samples."""
    rows: npt.NDArray[Any] = index.numpy()[:, None] + np.array(offsets)
    assert np.array_equal(x.numpy(), rows[:, :, None] + np.array([0, 10_000, 20_000]))
    return [int(i) for i in index]


def read(dataset: ZarrIterableDataset, offsets: tuple[int, ...] = OFFSETS) -> list[int]:
    return [i for x, index in dataset for i in check(x, index, offsets)]


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kind", ["local", "memory", "sharded", "slow"])
def test_shuffled_windows_decode_a_chunk_at_most_1_3_times(kind: str, threads: int, store: Path) -> None:
    """It was 3.23 times: once for its own block, and once for each neighbour."""
    source: Any = store
    if kind == "memory":
        source = write(MemoryStore())
    elif kind == "sharded":
        source = write(store.parent / "sharded", shards=(ROWS * 4, 4))
    elif kind == "slow":  # decoded by zarr-python
        source = write(store.parent / "slow", zarr_format=2, filters=[AsType("<i4", "<i4")])
    with make(source, num_threads=threads) as dataset:
        explained = dataset.explain()
        assert explained.block_rows == ROWS
        for _ in range(2):
            before = dataset.stats().chunks_read
            assert sorted(read(dataset)) == list(range(1, N - 1))
            decoded = (dataset.stats().chunks_read - before) / (2 * CHUNKS)  # of two cells
            assert decoded <= 1.3
            assert decoded <= explained.fields[0].amplification <= 1.3
            assert explained.fields[0].amplification - decoded < 0.1
        page = str(explained)
        assert "chunks that neighbouring blocks share are decoded once" in page
        assert f"strips of {explained.strip} neighbouring blocks stay together" in page


def test_windows_in_order_decode_every_chunk_once(store: Path) -> None:
    with make(store, shuffle=False) as dataset:
        assert read(dataset) == list(range(1, N - 1))
        assert dataset.stats().chunks_read == 2 * CHUNKS
        assert dataset.explain().fields[0].amplification == 1.0


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_more_is_decoded_than_explain_says(data: st.DataObject, tmp_path: Path) -> None:
    """For windows of any reach, lanes, mix, threads, ranks and selections, where the memory has room."""
    n, rows = data.draw(st.integers(20, 200)), data.draw(st.integers(1, 12))
    source = write(tmp_path / "x", n, rows)
    offsets = tuple(data.draw(st.lists(st.integers(-9, 9), min_size=1, max_size=4)))
    world_size = data.draw(st.integers(1, 3))
    lanes = data.draw(st.none() | st.integers(1, 4))
    options: dict[str, Any] = {
        "offsets": offsets,
        "batch_size": data.draw(st.integers(1, 20)),
        "shuffle": data.draw(st.booleans()),
        "lanes": lanes,
        "mix": data.draw(st.none() | st.integers(1, 5)),
        "num_threads": data.draw(st.integers(1, 4)),
        "select": data.draw(st.none() | st.just(slice(1, None, 2)) | st.just(range(9, n - 9))),
        "even": "off",
        "world_size": world_size,
    }
    try:
        expected = make(source, **options | {"world_size": 1, "rank": 0}).sample_order(0)
    except ConfigError:  # no sample has all of its rows
        assume(False)
    seen: list[int] = []
    for rank in range(world_size):
        with make(source, rank=rank, **options) as dataset:
            explained = dataset.explain().fields[0]
            seen += read(dataset, offsets)
            assert dataset.stats().chunks_read <= explained.chunk_reads
    assert sorted(seen) == sorted(expected.tolist())


def test_ranks_and_workers_share_one_line_and_resume(store: Path) -> None:
    epoch_order = make(store).sample_order(0).tolist()
    taken = dict.fromkeys(range(len(epoch_order)), -1)
    for rank in range(2):
        dataset = make(store, rank=rank, world_size=2, even="off")
        for position, sample in zip(range(rank, len(epoch_order), 2), read(dataset), strict=True):
            taken[position] = sample
        dataset.close()
    assert list(taken.values()) == epoch_order
    loader = ZarrDataLoader(make(store), num_workers=2)
    assert sorted(i for x, index in loader for i in check(x, index)) == sorted(epoch_order)
    stopped = make(store)
    passed = iter(stopped)
    used = [i for _ in range(20) for i in check(*next(passed))]
    state = passed.state_dict()
    with make(store) as again:
        again.load_state_dict(state)
        assert used + read(again) == epoch_order
        assert read(again) == again.sample_order(1).tolist()


def test_a_state_without_strips_goes_on_in_its_own_order(store: Path) -> None:
    """States of earlier versions permute every block by itself."""
    assert make(store).explain().strip > 1
    complete = make(store).session.schedule.order.selection
    epoch_order = Order(N, ROWS, shuffle=True, seed=0, lanes=8, selection=complete).plan(0)
    old = make(store, lanes=8, mix=1)
    passed = iter(old)
    next(passed)
    state = passed.state_dict()
    old.close()
    assert state.pop("strip") > 1
    with make(store) as dataset:
        dataset.load_state_dict(state)
        assert read(dataset) == _core.sample_order(epoch_order.to_core()).tolist()[16:]
    for damaged in (0, 10**6):
        with make(store) as dataset, pytest.raises(ConfigError, match=r"the state is damaged: .*strip"):
            dataset.load_state_dict(state | {"strip": damaged})


def test_without_room_nothing_is_carried(store: Path) -> None:
    """The budget comes first: chunks are decoded for each strip of blocks."""
    named: dict[str, Any] = {"num_threads": 1, "lanes": 2}
    budget = make(store, memory_budget="64KiB", **named).explain().memory.least_budget + 500
    with make(store, memory_budget=budget, **named) as dataset:
        explained = dataset.explain()
        assert explained.memory.carry_bytes == 0
        assert explained.memory_bytes <= budget
        assert explained.fields[0].amplification > 1.2
        assert sorted(read(dataset)) == list(range(1, N - 1))


@pytest.mark.filterwarnings("ignore::zarrfeed.base.errors.ChunkSkippedWarning")
def test_bad_and_missing_chunks_are_met_by_all_who_share_them(tmp_path: Path) -> None:
    array = write(tmp_path / "x", fill_value=-1)
    (tmp_path / "x" / "c" / "5" / "0").write_bytes(b"damaged")
    (tmp_path / "x" / "c" / "9" / "0").unlink()
    missing = set(range(9 * ROWS - 1, 10 * ROWS + 1))
    with make(array, on_error="skip", max_errors=4, num_threads=4) as dataset:
        bad = set(range(5 * ROWS - 1, 6 * ROWS + 1))
        delivered = []
        for x, index in dataset:
            for window, i in zip(x.numpy(), index.numpy(), strict=True):
                delivered.append(int(i))
                assert int(i) not in bad
                expected = np.add.outer(i + np.array(OFFSETS), [0, 10_000, 20_000])
                holes = np.isin(i + np.array(OFFSETS), range(9 * ROWS, 10 * ROWS))
                expected[holes, :2] = -1
                assert np.array_equal(window, expected)
        assert len(delivered) == N - 2
        assert set(delivered) == set(range(1, N - 1)) - bad
        assert missing <= set(delivered)
        assert dataset.stats().chunks_skipped == 1
    with make(array) as dataset, pytest.raises(CorruptChunkError, match="c/5/0"):
        read(dataset)


@pytest.mark.parametrize("strip", [1, 2, 7, 100])
def test_an_order_of_strips_permutes_strips_and_keeps_their_blocks_in_order(strip: int) -> None:
    order = Order(23 * 4 - 1, 4, shuffle=True, seed=3, lanes=1, strip=strip)
    held_indices = order.held_indices(0)
    assert sorted(held_indices.tolist()) == list(range(23))
    inside = held_indices[:-1] % strip < strip - 1
    assert (np.diff(held_indices)[inside & (held_indices[:-1] < 22)] == 1).all()
    if strip == 1:
        assert np.array_equal(held_indices, Order(23 * 4 - 1, 4, shuffle=True, seed=3, lanes=1).held_indices(0))
    if 1 < strip < 23:
        assert not np.array_equal(held_indices, order.held_indices(1))


def test_the_next_group_is_the_next_of_the_lane() -> None:
    plan = Order(400, 8, shuffle=True, seed=1, lanes=3, mix=2, strip=5).plan(0)
    following = next_groups(plan)
    for group, behind in enumerate(following):
        later = [g for g in range(group + 1, len(plan.groups.lane)) if plan.groups.lane[g] == plan.groups.lane[group]]
        assert behind == (later[0] if later else -1)


def test_without_windows_nothing_is_shared(store: Path) -> None:
    dataset = make(store, offsets=None)
    fields = dataset.session.schedule.fields
    assert Overlap.of(fields.fields, fields.block_rows) is None
    assert (dataset.explain().strip, dataset.explain().memory.carry_bytes) == (1, 0)


def test_without_memory_every_piece_of_a_group_decodes_the_chunks_that_it_needs() -> None:
    field = StoredField("x", read_layout(write(MemoryStore(), 64, 4)), window=Window((2,)))
    plan = Order(62, 4, shuffle=True, seed=3, lanes=1, mix=3).plan(0)
    ample, scarce = (
        source_reads(plan, [field], SharingMemory(room, room, num_threads=1, batch_size=8, max_open_batches=20))[0]
        for room in (1 << 30, 1)
    )
    assert (ample.decoded, ample.most) == (2 * 16, 2 * 16)  # in two cells each
    # each block but the last one needs its chunk and the next one
    assert scarce.most == 2 * (2 * 16 - 1)
    assert scarce.decoded < scarce.most  # pieces of one group share chunks
