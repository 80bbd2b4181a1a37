"""The blocks that are chosen for layouts, of which one chunk is stored: so much decides, beside metadata."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec, ZstdCodec

import zarrfeed
from zarrfeed import ConfigError, CorruptChunkError, Data, MemoryBudgetError, ZarrIterableDataset
from zarrfeed.plan.order import read_blocks

BLOSC = BloscCodec(cname="lz4", clevel=1)
ROW = 1 << 18  # items of 4 bytes: rows of 1 MiB; arrays have so few of them that nobody is warned of a poor shuffle


def create(
    path: Path, *, rows: int = 16, chunks: int = 250, width: int = ROW, codecs: Any = BLOSC, **options: Any
) -> Path:
    """Create an array of which the first chunk is stored."""
    array = zarr.create_array(
        path, shape=(rows * chunks, width), chunks=(rows, width), dtype="f4", compressors=codecs, **options
    )
    array[:rows] = np.random.default_rng(0).integers(0, 9, (rows, width))
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create(tmp_path_factory.mktemp("slabs") / "large")


def make(data: Path | Data, **options: Any) -> ZarrIterableDataset:
    options = {"shuffle": True, "memory_budget": "300MiB", **options}
    return ZarrIterableDataset(data, batch_size=8, **options)


def slab_rows(data: Path | Data, **options: Any) -> int:
    return make(data, **options).explain().slab_rows


def test_chunks_that_are_too_large_to_be_mixed_are_cut_and_mix_nearly_perfectly(large: Path) -> None:
    explained = make(large).explain()
    assert explained.slab_rows == 1
    assert explained.shuffling is not None
    assert explained.shuffling.is_good
    whole = make(large, mixing={"block": "chunk"}).explain()
    assert whole.slab_rows == 0
    assert whole.shuffling is not None
    assert whole.shuffling.is_poor
    assert make(large, mixing={"block": "auto"}).explain() == explained
    page = str(explained)
    for line in ("slabs of 1 row", "blocks are slabs of the chunks of samples", "amplification 1.00"):
        assert line in page


def test_an_order_that_is_good_today_stays(large: Path) -> None:
    ample = {"memory_budget": "12GiB"}
    dataset = make(large, **ample)
    assert dataset.explain().slab_rows == 0
    assert np.array_equal(dataset.sample_order(0), make(large, mixing={"block": "chunk"}, **ample).sample_order(0))


def test_named_lanes_keep_the_order_that_they_had_and_slabs_can_be_named_beside_them(large: Path) -> None:
    assert slab_rows(large, mixing={"lanes": 2}) == slab_rows(large, mixing={"mix": 1}) == 0
    named = make(large, mixing={"lanes": 12, "block": "slab"}).explain()
    assert (named.slab_rows, named.lanes) == (1, 12)
    assert slab_rows(large, mixing={"block": 4}) == 4
    assert slab_rows(large, mixing={"block": 16}) == slab_rows(large, mixing={"block": 99}) == 0
    assert slab_rows(large, mixing={"block": "slab"}, memory_budget="12GiB") == 1


def test_blocks_are_whole_where_rows_keep_their_order(large: Path) -> None:
    for block in ("auto", "slab", 2):
        dataset = make(large, shuffle=False, mixing={"block": block})
        assert dataset.explain().slab_rows == 0
        assert dataset.sample_order(0).tolist() == list(range(len(dataset.data)))


@pytest.mark.parametrize(
    ("codecs", "reason"),
    [
        (ZstdCodec(), "decoded as a whole"),
        ([BLOSC, Crc32cCodec()], "decoded as a whole"),
        ([BLOSC, ZstdCodec()], "decoded as a whole"),
    ],
)
def test_chunks_that_decode_as_a_whole_stay_whole(tmp_path: Path, codecs: Any, reason: str) -> None:
    path = create(tmp_path / "x", codecs=codecs)
    assert slab_rows(path) == 0
    with pytest.raises(ConfigError, match=f"block = 'slab', but .*{reason}; must be 'chunk'"):
        make(path, mixing={"block": "slab"})


def test_what_has_no_slabs_says_so(tmp_path: Path, large: Path) -> None:
    data, times = zarrfeed.open(large), np.arange(4000)
    joined = zarrfeed.join({"a": data, "b": data}, "time", coords={"a": times, "b": times + 1})
    in_memory = zarrfeed.open(np.zeros((100, 4), dtype="f4"))
    for other, reason in ((joined, "join"), (in_memory, "no chunks of rows")):
        for block in ("slab", 2):
            with pytest.raises(ConfigError, match=reason):
                make(other, mixing={"block": block})
    small = create(tmp_path / "small", width=64)
    with pytest.raises(ConfigError, match="shorter than 1 MiB"):
        make(small, mixing={"block": "slab"})
    scattered = zarr.create_array(
        tmp_path / "t", shape=(500, 4800), chunks=(500, 16), dtype="f4", compressors=BLOSC, dimension_names=("y", "t")
    )
    scattered[:, :2000] = 1
    assert slab_rows(zarrfeed.open(scattered, sample_dim="t")) == 0  # each row touches all Blosc blocks


@pytest.mark.parametrize("shards", [None, (48, ROW)])
def test_uncompressed_chunks_and_inner_chunks_of_shards_are_cut(tmp_path: Path, shards: Any) -> None:
    path = create(tmp_path / "x", codecs=None if shards is None else BLOSC, shards=shards)
    assert slab_rows(path) == 1
    data = zarrfeed.open(path)
    if shards is not None:
        assert slab_rows(path, mixing={"block": "shard"}, memory_budget="2GiB") == 0
        assert slab_rows(data.split([0.5, 0.5], by="shard", seed=1)[0], memory_budget="2GiB") == 0


def test_nothing_is_cut_where_no_chunk_says_how_large_its_blocks_are(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x", shape=(4000, ROW), chunks=(16, ROW), dtype="f4", compressors=BLOSC)
    assert slab_rows(tmp_path / "x") == 0


def test_an_array_beside_that_decodes_as_a_whole_bounds_the_slabs(tmp_path: Path) -> None:
    for name, rows, codecs in (("a", 16, BLOSC), ("b", 4, ZstdCodec())):
        create(tmp_path / name, rows=rows, chunks=4000 // rows, codecs=codecs)
    explained = make(zarrfeed.open({"a": tmp_path / "a", "b": tmp_path / "b"}), memory_budget="3GiB").explain()
    assert explained.slab_rows == 4
    assert [f.amplification for f in explained.fields] == pytest.approx([1, 1], abs=0.05)


def test_slabs_that_decode_again_are_taken_only_where_whole_chunks_mix_poorly(large: Path) -> None:
    pairs = zarrfeed.open(large).window((0, 1))
    poor = make(pairs, memory_budget="200MiB").explain()
    assert poor.slab_rows == 1
    assert poor.fields[0].amplification == pytest.approx(2, abs=0.05)
    better = make(pairs, memory_budget="2GiB").explain()
    assert better.fields[0].amplification < 1.13  # lanes hand rows on, for which 200 MiB have no room
    assert (poor.strip > 1, better.strip > 1) == (False, True)
    for explained in (poor, better):
        assert explained.shuffling is not None
        assert explained.shuffling.share > 0.85


def test_more_lanes_hand_rows_on_where_fewer_would_not_mix_well(tmp_path: Path) -> None:
    """Windows of six rows: lanes may be shorter than strips, and a batch is all that must be open."""
    windows = zarrfeed.open(create(tmp_path / "x", chunks=60)).window(tuple(range(6)))
    for budget, lanes in (("300MiB", 16), ("600MiB", 48), ("2GiB", 48)):
        explained = make(windows, memory_budget=budget).explain()
        assert (explained.slab_rows, explained.lanes, explained.memory.required_batches) == (1, lanes, 2)
        assert explained.shuffling is not None
        assert explained.fields[0].amplification < 1.4
        assert explained.memory_bytes <= explained.memory.budget
        assert explained.shuffling.share > (0.4 if lanes < 48 else 0.85)


def test_windows_of_short_rows_decode_chunks_whole_and_have_no_slabs(tmp_path: Path) -> None:
    path = create(tmp_path / "x", rows=20_000, chunks=40, width=1000)  # rows of 4000 bytes, chunks of 76 MiB
    pairs = zarrfeed.open(path).window((0, 1))
    for data, reason in ((pairs, "decoded as a whole"), (pairs.cast("float16"), "decoded as a whole")):
        with pytest.raises(ConfigError, match=reason):
            make(data, mixing={"block": "slab"})
    assert slab_rows(zarrfeed.open(path), mixing={"block": "slab"}, memory_budget="2GiB") > 0


def test_a_layout_that_was_refused_is_read_in_slabs(tmp_path: Path) -> None:
    path = create(tmp_path / "x", rows=64, chunks=60)
    with pytest.raises(MemoryBudgetError):
        make(path, mixing={"block": "chunk"}, memory_budget="150MiB")
    assert slab_rows(path, memory_budget="150MiB") == 1


def test_splits_and_nodes_get_what_they_got_whatever_the_blocks_of_the_order_are(large: Path) -> None:
    data = zarrfeed.open(large)
    for part, again in zip(
        data.split([0.7, 0.3], by="chunk", seed=2), data.split([0.7, 0.3], by="chunk", seed=2), strict=True
    ):
        auto, whole = make(part), make(again, mixing={"block": "chunk"})
        samples = np.sort(auto.sample_order(0))
        assert np.array_equal(samples, np.sort(whole.sample_order(0)))
        assert len(np.unique(samples // 16)) * 16 == len(samples)
        assert (auto.explain().slab_rows, whole.explain().slab_rows) == (1, 0)
    shares: dict[str, list[Any]] = {}
    for block in ("auto", "chunk"):
        schedule = make(large, mixing={"block": block}).session.schedule
        parts = [schedule.for_node(node, 3) for node in range(3)]
        shares[block] = [np.sort(one.order.listed_reads.listed()) for one in parts]
        assert [one.order.slabs is not None for one in parts] == [block == "auto"] * 3
        assert parts[0].part.whole.describe()["select"] is None
    for auto, whole in zip(shares["auto"], shares["chunk"], strict=True):
        assert np.array_equal(auto, whole)


def test_windows_of_more_slabs_than_a_plan_may_list_are_of_whole_chunks(
    large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = zarrfeed.open(large).window((0, 1))
    assert slab_rows(pairs) == 1
    monkeypatch.setattr(read_blocks, "MOST_BLOCKS", 300)
    assert slab_rows(pairs) == 0


def test_an_error_about_memory_names_the_rows_of_slabs(large: Path) -> None:
    with pytest.raises(MemoryBudgetError, match="blocks of 4 samples"):
        make(large, mixing={"block": 4, "lanes": 64}, memory_budget="100MiB")


def test_a_chunk_is_looked_at_only_where_whole_chunks_do_not_mix_well(tmp_path: Path) -> None:
    path = create(tmp_path / "x")
    (tmp_path / "x" / "c" / "0" / "0").write_bytes(b"damaged")
    assert slab_rows(path, memory_budget="12GiB") == 0
    assert slab_rows(path, mixing={"block": "chunk"}) == 0
    assert slab_rows(path, shuffle=False) == 0
    with pytest.raises(CorruptChunkError, match="chunk c/0/0: 7 bytes"):
        make(path)
