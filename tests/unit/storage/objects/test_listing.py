"""Which objects there are."""

from __future__ import annotations

import pickle
from typing import Any, SupportsIndex

import numpy as np
import pytest

import zarrfeed
from zarrfeed.storage.objects.listing import Listing, PackedKeys, StoredObject

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


def test_keys_that_the_user_names() -> None:
    objects: list[str | tuple[str, SupportsIndex]] = ["b", ("a", 3), ("c", np.int64(0)), "d/e"]
    listing = Listing.of_keys(iter(objects))
    assert [(one.key, one.size) for one in listing] == [("b", -1), ("a", 3), ("c", 0), ("d/e", -1)]


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        ("abc", "must be a list of keys"),
        ([3], r"keys\[0\] = 3, must be a key"),
        (["a", ("b", "c")], r"keys\[1\] = \('b', 'c'\), must be a key, or a key and its size"),
        ([("b", True)], "must be a key, or a key and its size"),
        ([("b", 1, 2)], "must be a key, or a key and its size"),
        ([""], "must not be empty"),
        (["/a"], "begin with a slash"),
        ([("a", -2)], "a size must be at least 0"),
        (["a", "b", ("a", 1)], "keys: got 'a' twice"),
    ],
)
def test_keys_that_cannot_be_read_are_refused(objects: Any, message: str) -> None:
    with pytest.raises(zarrfeed.ConfigError, match=message):
        Listing.of_keys(objects)


def test_parts_are_joined() -> None:
    parts = [PackedKeys.of(["b", "a\udcff"], [1, 2]), PackedKeys.of([], []), PackedKeys.of(["é"], [-1])]
    assert Listing.joined(parts) == Listing.of([("b", 1), ("a\udcff", 2), ("é", -1)])
    assert Listing.joined([]) == Listing.of([])


def test_the_order_is_that_of_bytes_and_the_last_of_equal_keys_stays() -> None:
    listing = Listing.of([("b", 1), ("a", 2), ("\udcff", 3), ("é", 4), ("a", 5), ("\U0001f600", 6)]).sorted()
    assert [(one.key, one.size) for one in listing] == [("a", 5), ("b", 1), ("é", 4), ("\U0001f600", 6), ("\udcff", 3)]
    assert Listing.of([]).sorted() == Listing.of([])


def test_some_objects_alone() -> None:
    listing = Listing.of(OBJECTS)
    assert listing.take(np.array([3, 1])) == Listing.of([OBJECTS[3], OBJECTS[1]])
    assert listing.where(lambda one: one.size > 0) == Listing.of([OBJECTS[0], OBJECTS[3]])


def test_keys_are_found_by_bisection() -> None:
    listing = Listing.of(OBJECTS).sorted()
    assert [listing.find(key) for key in ("", "a.npy", "a.npy\0", "b/", "c", "d")] == [0, 0, 1, 1, 3, 4]
