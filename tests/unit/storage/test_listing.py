"""Which objects there are."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from zarrfeed.storage.listing import Listing, StoredObject

OBJECTS = [("a.npy", 100), ("b/ü.npy", 0), ("b/\udcff", -1), ("c", 2**40)]


def test_an_object_has_its_key_and_its_size() -> None:
    listing = Listing.of(OBJECTS)
    assert [(one.key, one.size) for one in listing] == OBJECTS
    assert len(listing) == 4
    assert listing[-1] == StoredObject("c", 2**40)
    assert listing[1:3] == [StoredObject("b/ü.npy", 0), StoredObject("b/\udcff", -1)]
    with pytest.raises(IndexError):
        listing[4]


def test_unknown_sizes_do_not_count() -> None:
    assert Listing.of(OBJECTS).total_bytes == 100 + 2**40


def test_no_objects() -> None:
    listing = Listing.of([])
    assert len(listing) == 0
    assert list(listing) == []
    assert listing.total_bytes == 0


def test_it_pickles_and_compares() -> None:
    listing = Listing.of(OBJECTS)
    assert pickle.loads(pickle.dumps(listing)) == listing
    assert listing != Listing.of(OBJECTS[:3])
    assert listing != Listing.of([(key, size + 1) for key, size in OBJECTS])
    assert listing != Listing.of([("a.npyb", 100), ("/ü.npy", 0), *OBJECTS[2:]])  # the same bytes, cut elsewhere
    assert listing != "a.npy"


def test_the_digest_is_that_of_the_keys_and_their_order() -> None:
    digest = Listing.of(OBJECTS).digest
    assert Listing.of([(key, 1) for key, _ in OBJECTS]).digest == digest
    assert Listing.of(OBJECTS[::-1]).digest != digest
    assert Listing.of([("a.npyb", 100), ("/ü.npy", 0), *OBJECTS[2:]]).digest != digest


def test_a_million_objects_take_less_than_a_hundred_megabytes() -> None:
    number = 100_000
    listing = Listing.of((f"train/shard-0017/image-{i:08d}.jpeg", i) for i in range(number))
    assert len(pickle.dumps(listing)) < 60 * number
    assert listing.key(number - 1) == f"train/shard-0017/image-{number - 1:08d}.jpeg"
    assert np.array_equal(listing.sizes, np.arange(number))
