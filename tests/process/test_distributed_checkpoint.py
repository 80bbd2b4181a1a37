"""Distributed checkpoints over real ranks: other world sizes, ranks that fail or are killed, loads during saves."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import zarr

from tests.support import shard_ranks
from tests.support.ranks import RankError, Ranks
from zarrfeed.storage.checkpoint.checkpoint_manifest import METADATA_NAME

pytestmark = pytest.mark.timeout(300)


def objects_of(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir() if one.name != METADATA_NAME)


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, (1, 3)), (3, (2,)), (1, (2,))])
def test_it_loads_on_another_world_size(
    ranks: Ranks, tmp_path: Path, saved_on: int, loaded_on: tuple[int, ...]
) -> None:
    ranks.run(shard_ranks.save, str(tmp_path), 7, world_size=saved_on)
    assert len(objects_of(tmp_path)) == saved_on, "each rank writes its shards"
    for world_size in loaded_on:
        assert ranks.run(shard_ranks.load, str(tmp_path), world_size=world_size) == [7] * world_size
    assert shard_ranks.load_alone(str(tmp_path)) == 7


def test_an_asynchronous_save_is_of_the_moment_when_it_began(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(shard_ranks.save, str(tmp_path), 7, is_async=True, world_size=2)
    assert shard_ranks.load_alone(str(tmp_path)) == 7


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_leaves_the_previous_checkpoint(ranks: Ranks, tmp_path: Path, rank: int) -> None:
    ranks.run(shard_ranks.save, str(tmp_path), 1, world_size=2)
    before = objects_of(tmp_path)
    errors = ranks.run(shard_ranks.save_and_fail, str(tmp_path), 2, rank, "raise", world_size=2)
    assert all("this rank's disk is broken" in error for error in errors), "every rank learns of it"
    assert shard_ranks.load_alone(str(tmp_path)) == 1
    assert set(before) <= set(objects_of(tmp_path))
    ranks.run(shard_ranks.save, str(tmp_path), 3, world_size=2)
    assert ranks.run(shard_ranks.load, str(tmp_path), world_size=2) == [3, 3]
    assert not set(before) & set(objects_of(tmp_path))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_leaves_the_previous_checkpoint(ranks: Ranks, tmp_path: Path, rank: int) -> None:
    ranks.run(shard_ranks.save, str(tmp_path), 1, world_size=2)
    with pytest.raises(RankError):
        ranks.run(shard_ranks.save_and_fail, str(tmp_path), 2, rank, "kill", world_size=2)
    assert shard_ranks.load_alone(str(tmp_path)) == 1


def test_ranks_do_not_load_parts_of_two_saves(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(shard_ranks.save, str(tmp_path), 1, world_size=1)
    told = ranks.run(shard_ranks.load_while_it_is_replaced, str(tmp_path), world_size=2)
    assert all("a save replaced the checkpoint while ranks opened it" in text for text in told), told


@pytest.mark.parametrize("loaded_on", [1, 3])
def test_the_position_in_the_data_goes_along(ranks: Ranks, tmp_path: Path, loaded_on: int) -> None:
    """On another world size, the global batches that follow are those of a run that was not stopped."""
    store, steps = str(tmp_path / "samples.zarr"), 5
    zarr.create_array(store, data=np.arange(132), chunks=(4,))
    whole = ranks.run(shard_ranks.read_and_save, store, str(tmp_path / "end"), 11, world_size=1)[0]
    before = ranks.run(shard_ranks.read_and_save, store, str(tmp_path / "run"), steps, world_size=2)
    after = ranks.run(shard_ranks.load_and_read, store, str(tmp_path / "run"), world_size=loaded_on)
    assert [value for value, _ in after] == [steps] * loaded_on
    batches = [sorted(chain(*parts)) for parts in zip(*before, strict=True)]
    batches += [sorted(chain(*parts)) for parts in zip(*(rest for _, rest in after), strict=True)]
    assert batches == [sorted(batch) for batch in whole]
