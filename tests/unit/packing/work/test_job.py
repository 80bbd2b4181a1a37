"""`PackJob`: what processes send each other of it."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from zarrfeed.packing.sources.source import SourceCall
from zarrfeed.packing.targets.pack_layout import FieldLayout
from zarrfeed.packing.work.job import PackJob, cut_parts
from zarrfeed.storage.chunks.chunk_encoder import Encoding


def job_of(num_samples: int, shares: dict[str, float] | None = None) -> PackJob:
    return PackJob(
        source=SourceCall("npy", ("/x.npy",)),
        fingerprint="f",
        out="/out.zarr",
        identity="i",
        num_samples=num_samples,
        layouts=(FieldLayout("", "number", (2,), "<f4", 4, 4, Encoding("lz4")),),
        parts=cut_parts(num_samples, shares),
        step_rows=4,
        unit_rows=8,
    )


def test_a_job_that_was_used_is_sent_as_small_as_a_new_one() -> None:
    job = job_of(100_000)
    before = pickle.dumps(job)
    assert len(job.units) == 12_500
    assert job.units_of(np.array([7, 8])).tolist() == [0, 1]
    assert pickle.dumps(job) == before
    sent = pickle.loads(before)
    assert sent == job
    assert sent.units == job.units


@pytest.mark.parametrize("shares", [None, {"train": 0.9, "val": 0.1}])
def test_each_position_is_in_the_unit_that_says_so(shares: dict[str, float] | None) -> None:
    job = job_of(101, shares)
    units = job.units_of(np.arange(101)).tolist()
    assert [(unit.begin, unit.end) for unit in job.units] == [
        (units.index(number), 101 - units[::-1].index(number)) for number in range(len(job.units))
    ]
    assert all(unit.part.begin <= unit.begin < unit.end <= unit.part.end for unit in job.units)
