"""A store that grows, read by real ranks and their workers: one version an epoch, on all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import growing
from tests.support.ranks import Ranks

pytestmark = pytest.mark.timeout(300)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_all_ranks_and_workers_read_the_version_that_rank_0_found(
    tmp_path: Path, ranks: Ranks, num_workers: int
) -> None:
    path = growing.create(tmp_path / "a", 64)
    of_ranks = ranks.run(growing.read_growing, path, num_workers=num_workers, epochs=3, world_size=2)
    # An epoch adds 16 samples when rank 0 looked, and 8 while it is read; the next one sees both.
    for end, *parts in zip((64, 88, 112), *of_ranks, strict=True):
        assert sorted(parts[0] + parts[1]) == list(range(end))
        assert len(parts[0]) == len(parts[1])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_resume_an_epoch_at_its_version(tmp_path: Path, ranks: Ranks, num_workers: int) -> None:
    path = growing.create(tmp_path / "a", 64)
    done = ranks.run(growing.stop_and_resume, path, num_workers=num_workers, batches=3, world_size=2)
    before, rest, following = ([one for part in parts for one in part] for parts in zip(*done, strict=True))
    assert sorted(before + rest) == list(range(64))
    assert sorted(following) == list(range(88))


def test_an_error_of_rank_0_reaches_every_rank(tmp_path: Path, ranks: Ranks) -> None:
    path = growing.create(tmp_path / "a", 64)
    errors = ranks.run(growing.look_at_what_is_gone, path, world_size=2)
    assert all("no longer exists" in error for error in errors), errors
    assert "on rank 0" in errors[1]


def test_a_process_group_of_another_size_is_refused(tmp_path: Path, ranks: Ranks) -> None:
    path = growing.create(tmp_path / "a", 64)
    errors = ranks.run(growing.other_number_of_ranks, path, world_size=2)
    assert all("on 3 ranks: the process group has 2 ranks" in error for error in errors), errors


def test_rank_0_evicts_nothing_that_another_rank_still_reads(tmp_path: Path, ranks: Ranks) -> None:
    path = growing.make_disposable(tmp_path / "a")
    done = ranks.run(growing.read_while_rank_0_evicts, path, world_size=2)
    epochs = [sorted(one for part in parts for one in part) for parts in zip(*done, strict=True)]
    assert epochs == [list(range(32, 64)), list(range(64, 96))]
