"""Which objects a dataset reads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore

from tests.support.objects import key_of, write_objects
from zarrfeed import ConfigError, StoreReadError
from zarrfeed.metadata.group.objects import Objects
from zarrfeed.metadata.group.objects import open as open_objects

N = 20


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return open_objects(write_objects(tmp_path_factory.mktemp("objects"), N))


def keys_of(objects: Objects) -> list[str]:
    return [one.key for one in objects.listing]


def test_all_objects_of_a_folder(objects: Objects) -> None:
    assert keys_of(objects) == [key_of(i) for i in range(N)]
    assert objects.mean_bytes == int(objects.listing.sizes.mean())
    assert repr(objects) == f"<{N} objects of {objects.source.name}, {objects.listing.total_bytes} bytes>"
    assert keys_of(pickle.loads(pickle.dumps(objects))) == keys_of(objects)


@pytest.mark.parametrize(
    "choice", [slice(3, None, 2), [4, 1, -1], np.arange(N) % 3 == 0, np.array([7]), slice(None, None, -1)]
)
def test_chosen_objects_stay_in_the_order_of_the_listing(objects: Objects, choice: Any) -> None:
    expected = np.array(keys_of(objects))[choice].tolist()
    assert keys_of(objects.select(choice)) == sorted(expected)


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        ([N], f"index {N}, must be in"),
        ([1, 1], "more than once"),
        ([1, 1 - N], "more than once"),
        ([], "selects nothing"),
        (slice(5, 5), "selects nothing"),
        (np.zeros(N, bool), "selects nothing"),
        (np.ones(N + 1, bool), f"mask of {N + 1} flags, must have one a sample, {N}"),
        ([0.5], "must be a slice"),
        ([[1]], "must be a slice"),
    ],
)
def test_what_cannot_be_chosen(objects: Objects, choice: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        objects.select(choice)


def test_given_keys_are_not_listed() -> None:
    found = open_objects("https://127.0.0.1:1/data", keys=["b", ("a/ü", 3)])
    assert [(one.key, one.size) for one in found.listing] == [("b", -1), ("a/ü", 3)]
    assert found.mean_bytes == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keys": ["/a"]}, r"keys\[0\] = '/a': a key must not be empty or begin with a slash"),
        ({"keys": [""]}, "a key must not be empty"),
        ({"keys": [("a", -2)]}, "a size must be at least 0"),
        ({"keys": [("a", True)]}, "must be a key, or a key and its size"),
        ({"keys": [7]}, "= 7, must be a key"),
        ({"keys": "abc"}, "keys = .abc., must be a list of keys"),
        ({"keys": ["a", "b", "a"]}, "keys: got 'a' twice"),
        ({"keys": ["a"], "glob": "*.npy"}, "glob = .* keys are given"),
        ({"keys": []}, "no object is there"),
        ({"refresh": 1}, "refresh = 1, must be True or False"),
        ({"cache_limit": "1GiB"}, "cache_limit = '1GiB' without cache"),
    ],
)
def test_bad_options(tmp_path: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        open_objects(tmp_path, **options)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no object is there"):
        open_objects(tmp_path)
    with pytest.raises(StoreReadError, match="does not exist"):
        open_objects(tmp_path / "nowhere")


def test_a_store_of_obstore() -> None:
    import obstore

    store = MemoryStore()
    for i in range(3):
        obstore.put(store, f"x/{i}", bytes(i))
    assert [(one.key, one.size) for one in open_objects(store).listing] == [("x/0", 0), ("x/1", 1), ("x/2", 2)]
