"""`explain()` and a warning say how many ranks decode each chunk because of the lanes, and what ends it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from zarrfeed import ZarrIterableDataset, mix
from zarrfeed.report.rank_sharing import RankSharing

N = 4800


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "samples.zarr")
    zarr.create_array(path, data=np.zeros((N, 3), dtype=np.float32), chunks=(48, 3))
    return path


def dataset(store: str, rank: int, ranks: int, **options: Any) -> ZarrIterableDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ZarrIterableDataset(store, batch_size=4, shuffle=True, rank=rank, world_size=ranks, **options)


@pytest.mark.parametrize(
    ("lanes", "ranks", "readers", "better"),
    [(10, 4, 2, 12), (10, 5, 1, 10), (12, 8, 2, 16), (9, 4, 4, 8), (10, 16, 1, 16), (None, 16, 1, 16), (48, 36, 3, 36)],
)
def test_amplification_is_that_of_all_ranks(
    store: str, lanes: int | None, ranks: int, readers: int, better: int
) -> None:
    explained = [dataset(store, rank, ranks, mixing={"lanes": lanes}).explain() for rank in range(ranks)]
    reads = sum(one.fields[0].chunk_reads for one in explained)
    sharing = explained[0].sharing
    assert sharing is not None
    assert (sharing.readers, sharing.better) == (readers, better)
    for one in explained:
        assert one.fields[0].amplification == pytest.approx(reads / 100, rel=0.2)
        assert (f"decoded by {readers} ranks" in str(one)) == (readers > 1)
        assert (f'mixing={{"lanes": {better}}}' in str(one)) == (readers > 1)
    assert readers <= reads / 100 <= readers * (1 + (sharing.lanes - 1) / 100)


def test_rank_0_warns_if_several_ranks_decode_each_chunk(store: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "mixing": {"lanes": 10}}
    with pytest.warns(UserWarning, match=r"each chunk is decoded by 2 ranks, .* 4 ranks .* 10 lanes: .* 12"):
        ZarrIterableDataset(store, rank=0, world_size=4, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ZarrIterableDataset(store, rank=1, world_size=4, **options)
        ZarrIterableDataset(store, rank=0, world_size=5, **options)
        ZarrIterableDataset(store, rank=0, world_size=4, batch_size=4)  # in order, a consumer has a lane
        ZarrIterableDataset(np.zeros(N), rank=0, world_size=4, **options)  # in memory


def test_the_lanes_of_a_state_are_told_while_its_epoch_goes_on(store: str) -> None:
    saved = dataset(store, 0, 1, mixing={"lanes": 10})
    next(iter(saved))
    resumed = dataset(store, 0, 4, mixing={"lanes": 8})
    resumed.load_state_dict(saved.state_dict())
    assert "in the epoch that goes on each chunk is decoded by 2 ranks" in str(resumed.explain())
    assert "in the epoch that goes on" not in str(dataset(store, 0, 4, mixing={"lanes": 8}).explain())


def test_ranks_that_read_a_mixture_in_order_share_its_chunks(store: str) -> None:
    """Warned of on rank 0; lanes that are named end it."""
    data = mix([store, store], weights=[1, 1])
    options: dict[str, Any] = {"batch_size": 4, "rank": 0}
    said = r'decoded by 4 ranks, since each source of the mixture is read in order: mixing={"lanes": 24} reads 24 parts'
    with pytest.warns(UserWarning, match=said):
        ZarrIterableDataset(data, world_size=4, **options)
    with pytest.warns(UserWarning, match="decoded by 5 ranks, since 5 ranks do not divide the columns of a mixture"):
        ZarrIterableDataset(data, world_size=5, **options)
    one_source = mix([store, store], weights=[1, 1], batching="per_batch")
    with pytest.warns(UserWarning, match=r'decoded by 5 ranks, .* in order: mixing={"lanes": 5}'):
        ZarrIterableDataset(one_source, world_size=5, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ZarrIterableDataset(data, world_size=1, **options)
        ZarrIterableDataset(data, world_size=4, mixing={"lanes": 24}, **options)
        ZarrIterableDataset(one_source, world_size=5, mixing={"lanes": 5}, **options)


def test_ranks_that_do_not_divide_the_columns_of_a_mixture_share_its_chunks(store: str) -> None:
    data = mix([store, store], weights=[1, 1])
    orders = {
        ranks: ZarrIterableDataset(data, batch_size=4, shuffle=True, mixing={"lanes": 24}).session.schedule.order
        for ranks in (12, 16)
    }
    assert RankSharing.of(orders[12], 12).readers == 1
    shared = RankSharing.of(orders[16], 16)
    assert (shared.readers, shared.better) == (2, None)
    assert "worlds of" in str(shared)
