"""Layouts of packed stores: whole chunks, whole shards, and no thousands of tiny files."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zarrfeed import ConfigError
from zarrfeed.packing.sources.source import SourceField
from zarrfeed.packing.targets.pack_layout import RequestedLayout, plan_layout, unit_rows

X = SourceField("x", np.dtype("f4"), (64, 1024))  # 256 KiB a sample
LABEL = SourceField("label", np.dtype("i8"))
IMAGE = SourceField("image", np.dtype(object), kind="bytes", mean_bytes=100_000)
MILLION = 1_000_000


def test_chunks_have_about_a_mebibyte_and_shards_what_is_asked_for() -> None:
    (x,) = plan_layout([X], MILLION, RequestedLayout(), {})
    assert (x.chunk_rows, x.shard_rows, str(x.encoding)) == (4, 256, "lz4-5-shuffle")
    (x,) = plan_layout([X], MILLION, RequestedLayout(chunk_rows=3, shard_bytes=4 << 20), {})
    assert (x.chunk_rows, x.shard_rows) == (3, 15)
    (x,) = plan_layout([X], MILLION, RequestedLayout(shard_bytes=0), {})
    assert x.chunks_per_shard == 1


def test_few_samples_are_not_more_than_a_shard() -> None:
    (x,) = plan_layout([X], 5, RequestedLayout(), {})
    assert (x.chunk_rows, x.shard_rows) == (1, 5)


def test_small_samples_have_long_shards_of_their_own() -> None:
    _, label = plan_layout([X, LABEL], MILLION, RequestedLayout(), {})
    assert label.is_gathered
    assert label.chunk_rows * 8 == 1 << 20  # it is read into memory at once
    assert label.shard_rows >= MILLION


def test_small_samples_that_do_not_fit_in_memory_have_the_chunks_of_the_others() -> None:
    x, label = plan_layout([X, LABEL], 1000 * MILLION, RequestedLayout(), {})
    assert label.is_gathered
    assert label.chunk_rows == x.chunk_rows
    assert label.shard_rows * 8 >= 1 << 20


def test_encoded_bytes_are_not_compressed_again() -> None:
    (image,) = plan_layout([IMAGE], MILLION, RequestedLayout(), {})
    assert str(image.encoding) == "none"
    assert image.chunk_rows == 8
    (image,) = plan_layout([IMAGE], MILLION, RequestedLayout(codecs={"": "zstd-5"}), {})
    assert str(image.encoding) == "plain-zstd-5"  # Blosc has no items of any length to shuffle


def test_units_are_whole_shards_and_cover_what_the_source_reads_as_a_whole() -> None:
    layouts = plan_layout([X, LABEL], MILLION, RequestedLayout(), {})
    assert unit_rows(layouts, 1, MILLION, shuffled=False) == 256
    assert unit_rows(layouts, 1000, MILLION, shuffled=False) == 2048
    assert unit_rows(layouts, 1000, MILLION, shuffled=True) == 256
    assert unit_rows(layouts, 10 * MILLION, MILLION, shuffled=False) >= MILLION


@pytest.mark.parametrize(
    ("requested", "message"),
    [
        (RequestedLayout(chunk_rows=10_000, shard_bytes=0), "a chunk can have 2.0 GiB"),
        (RequestedLayout(dtypes={"x": "int32"}), "floats become floats"),
        (RequestedLayout(codecs={"z": "lz4"}), "names 'z', must name one"),
    ],
)
def test_what_cannot_be_is_refused(requested: RequestedLayout, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_layout([X, LABEL], MILLION, requested, {})


@pytest.mark.parametrize(
    ("stored", "attributes", "packed", "message"),
    [
        ("f4", {"_FillValue": -9999.0}, "f2", "x: the fill value -9999.0 has no place in float16; leave the dtype"),
        ("i2", {"missing_value": -32768}, "i1", "x: the fill value -32768 has no place in int8"),
        ("f8", {"_FillValue": 1e300}, "f4", r"x: the fill value 1e\+300 has no place in float32"),
        ("i1", {"_Unsigned": "true"}, "i4", "x: _Unsigned means something else in int32"),
        ("i1", {"dtype": "bool"}, "f4", "x: dtype means something else in float32"),
    ],
)
def test_another_dtype_keeps_what_the_attributes_mean(
    stored: str, attributes: dict[str, Any], packed: str, message: str
) -> None:
    """-9999 became -10000 in float16, which no longer was the fill value, and so a value."""
    field = SourceField("x", np.dtype(stored), attributes=attributes)
    with pytest.raises(ConfigError, match=message):
        plan_layout([field], 10, RequestedLayout(dtypes={"x": packed}), {})
    unheld = SourceField("x", np.dtype("u1"), attributes={"_FillValue": -9999})
    assert plan_layout([unheld], 10, RequestedLayout(dtypes={"x": "f4"}), {})[0].item == np.float32
    fine = SourceField("x", np.dtype("f8"), attributes={"_FillValue": -2048.0, "scale_factor": 2.0})
    assert plan_layout([fine], 10, RequestedLayout(dtypes={"x": "f2"}), {})[0].item == np.float16
