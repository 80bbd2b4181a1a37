"""An epoch without a batch is an error that says why; a rank or a worker without one is none if others have some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset
from zarrfeed.objects import ObjectIterableDataset

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def of(samples: int, **options: Any) -> ZarrIterableDataset:
    return ZarrIterableDataset(np.arange(samples), num_threads=1, **options)


def lengths(feed: Any) -> list[int]:
    return [len(batch) for batch in feed]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    ("samples", "options", "says"),
    [
        (3, {"batch_size": 2, "world_size": 8}, "3 samples on 8 ranks.*use at most 3 ranks, or even='repeat'"),
        (1, {"batch_size": 2, "world_size": 2}, "1 sample on 2 ranks.*use at most 1 rank,"),
        (3, {"world_size": 8}, "world_size = 8.*3 samples on 8 ranks"),
        (
            3,
            {"batch_size": 8, "drop_last": True},
            "batch_size = 8, drop_last = True.*batch_size=3 or less, or drop_last",
        ),
        (30, {"batch_size": 8, "world_size": 4, "drop_last": True}, "30 samples on 4 ranks, a rank has 7.*=7 or less"),
        (3, {"batch_size": 2, "world_size": 8, "drop_last": True, "even": "repeat"}, "a rank has 1.*=1 or less"),
        (3, {"batch_size": 2, "world_size": 8, "drop_last": True, "even": "off"}, "a rank has 1.*=1 or less"),
    ],
)
def test_an_epoch_without_a_batch_is_refused_on_every_rank(
    samples: int, options: dict[str, Any], says: str, shuffle: bool
) -> None:
    for rank in {0, options.get("world_size", 1) - 1}:
        rank_options = {"rank": rank} if "world_size" in options else {}
        with pytest.raises(ConfigError, match=says):
            of(samples, shuffle=shuffle, **options, **rank_options)


@pytest.mark.parametrize("helps", [{"world_size": 3}, {"even": "repeat"}, {"even": "off"}])
def test_each_remedy_of_the_message_helps(helps: dict[str, Any]) -> None:
    options = {"batch_size": 2, "world_size": 8, **helps}
    counts = [sum(lengths(of(3, rank=rank, **options))) for rank in range(options["world_size"])]
    assert counts == {"off": [1, 1, 1, 0, 0, 0, 0, 0], "repeat": [1] * 8, None: [1] * 3}[helps.get("even")]
    assert lengths(of(3, batch_size=3, drop_last=True)) == [3]


def test_what_becomes_known_after_construction_is_refused_by_the_first_batch() -> None:
    rank_and_size = [0, 1]
    dataset = of(3, batch_size=2, rank=lambda: tuple(rank_and_size))
    assert lengths(dataset) == [2, 1]
    rank_and_size[:] = [0, 8]  # as where torch.distributed is initialised after the dataset was made
    assert len(dataset) == 0
    feed = iter(dataset)
    with pytest.raises(ConfigError, match="3 samples on 8 ranks"):
        next(feed)
    with pytest.raises(ConfigError, match="3 samples on 8 ranks"):
        next(iter(ZarrDataLoader(dataset, num_workers=1, multiprocessing_context="fork", timeout=240)))
    rank_and_size[:] = [0, 1]
    assert sum(lengths(dataset)) == 3, "the dataset goes on where it can"


def test_a_worker_without_a_batch_and_a_rest_without_one_are_no_errors() -> None:
    loader = ZarrDataLoader(of(3, batch_size=4), num_workers=2, multiprocessing_context="fork", timeout=240)
    assert lengths(loader) == [3]
    before = of(9, batch_size=2)
    feed = iter(before)
    assert [len(next(feed)) for _ in range(4)] == [2, 2, 2, 2]
    after = [of(9, batch_size=2, rank=rank, world_size=4) for rank in range(4)]
    for dataset in after:
        dataset.load_state_dict(before.state_dict())
        assert lengths(dataset) == [], "one sample is left, for four ranks"
        assert lengths(dataset) == [2], "and the next epoch is a whole one"


def _volume(folder: Path) -> Any:
    zarr.create_array(folder / "volume.zarr", data=np.arange(64.0).reshape(8, 8), chunks=(4, 4), overwrite=True)
    return zarrfeed.open(folder / "volume.zarr").patch({0: 4, 1: 4})


def _objects(folder: Path, **options: Any) -> ObjectIterableDataset:
    for i in range(4):
        (folder / f"{i}.bin").write_bytes(bytes([i]))
    return ObjectIterableDataset(zarrfeed.objects.open(folder), decode=len, **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder, **options: ZarrIterableDataset(_volume(folder), **options),
        lambda folder, **options: _objects(folder, **options),
        lambda _, **options: ZarrIterableDataset(zarrfeed.mix([np.arange(2), np.arange(2)], [1, 1]), **options),
        lambda _, **options: ZarrIterableDataset(zarrfeed.open(np.arange(9)).window(range(6)), **options),
        lambda _, **options: ZarrIterableDataset(zarrfeed.open(np.arange(9)).select([1, 3, 5, 7]), **options),
        lambda _, **options: ZarrIterableDataset([np.arange(2), np.arange(2)], **options),
    ],
    ids=["patches", "objects", "mixture", "windows", "selection", "concat"],
)
def test_all_kinds_of_samples_refuse_an_epoch_of_nothing(make: Callable[..., Any], tmp_path: Path) -> None:
    for options in ({"batch_size": 5, "drop_last": True}, {"batch_size": 2, "rank": 7, "world_size": 8}):
        with pytest.raises(ConfigError, match="an epoch has no batch"):
            make(tmp_path, **options)


def test_nodes_whose_parts_are_less_than_a_batch_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a rank has 2.*batch_size=2 or less"):
        of(16, batch_size=3, drop_last=True, rank=0, world_size=8, affinity="node")
