"""Objects on servers that others wrote: each is delivered once, whole, under its own key.

All servers are on 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import zarrfeed
import zarrfeed.objects
from tests.support.objects import content, number_of
from tests.support.real_servers import SERVERS, Endpoint, isolate, serving_or_skip
from zarrfeed.engine import object_fetcher
from zarrfeed.objects import ObjectDataset, ObjectIterableDataset, Objects

pytest.importorskip("obstore")

N = 120
#: Objects of one folder have names that have to be quoted in URLs.
KEYS = [f"part {i % 3}+ü/{i:04d} a%41.bin" for i in range(N)]
RANGES, RANGE_BYTES = 9, 1000


@dataclass(frozen=True)
class Served:
    """A server, and which objects it has: by name, and a large one."""

    endpoint: Endpoint
    large: bytes

    def open(self, *, keys: list[str] | None = None) -> Objects:
        """Open the objects by a listing where the server has one, else by their keys."""
        if keys is None and not self.endpoint.lists:
            keys = sorted(KEYS)
        return zarrfeed.objects.open(
            f"{self.endpoint.url}/small", keys=keys, storage_options=self.endpoint.options or None
        )


@pytest.fixture(autouse=True)
def _only_here(monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(monkeypatch)


@pytest.fixture(scope="module", params=SERVERS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("objects")
    for number, key in enumerate(KEYS):
        path = directory / "small" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(number))
    large = np.random.default_rng(1).bytes(RANGES * RANGE_BYTES - 1)
    (directory / "large").mkdir()
    (directory / "large" / "one").write_bytes(large)
    with serving_or_skip(request.param, directory) as endpoint:
        yield Served(endpoint, large)


def test_listed_or_named_each_object_comes_once(served: Served) -> None:
    objects = served.open()
    assert [one.key for one in objects.listing] == sorted(KEYS)
    dataset = ObjectIterableDataset(objects, batch_size=7, shuffle=True, seed=2, return_index=True)
    for _ in range(2):
        seen = []
        for batch, index in dataset:
            assert [KEYS[number_of(one)] for one in batch] == [objects.listing.key(i) for i in index]
            seen += index.tolist()
        assert sorted(seen) == list(range(N))


def test_sizes_are_those_of_the_objects(served: Served) -> None:
    objects = served.open()
    if not served.endpoint.lists:
        assert set(objects.listing.sizes) == {-1}
    else:
        assert [one.size for one in objects.listing] == [len(content(KEYS.index(one.key))) for one in objects.listing]


def test_workers_and_requests_by_index(served: Served) -> None:
    objects = served.open()
    dataset = ObjectIterableDataset(objects, batch_size=16, shuffle=True, return_index=True)
    loader = zarrfeed.ZarrDataLoader(dataset, num_workers=2, multiprocessing_context="forkserver")
    assert zarrfeed.audit(index for _, index in loader) == zarrfeed.Digest.of_range(N)
    by_index = ObjectDataset(objects, decode=lambda data, key: (key, bytes(data)))
    for i, (key, data) in zip([5, 0, 77], by_index[[5, 0, 77]], strict=True):
        assert (key, data) == (objects.listing.key(i), content(KEYS.index(key)))


def test_a_large_object_is_read_in_ranges(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    if not served.endpoint.reads_ranges:
        pytest.skip("the server has no ranges")
    monkeypatch.setattr(object_fetcher, "_RANGE_BYTES", RANGE_BYTES)
    objects = zarrfeed.objects.open(
        f"{served.endpoint.url}/large",
        keys=[("one", len(served.large))],
        storage_options=served.endpoint.options or None,
    )
    dataset = ObjectIterableDataset(objects, decode="bytes", batch_size=1)
    assert list(dataset) == [[served.large]]
    stats = dataset.stats()
    assert stats.requests - stats.hedges == RANGES  # on a busy machine, requests are late
    missing = zarrfeed.objects.open(
        f"{served.endpoint.url}/large",
        keys=[("nowhere", len(served.large))],
        storage_options=served.endpoint.options or None,
    )
    with pytest.raises(zarrfeed.StoreReadError, match="large/nowhere: "):
        list(ObjectIterableDataset(missing, batch_size=1))


def test_what_is_not_there_is_named(served: Served) -> None:
    objects = served.open(keys=["nowhere/at all"])
    with pytest.raises(zarrfeed.StoreReadError, match="small/nowhere/at all: is gone"):
        ObjectDataset(objects)[0]


def test_objects_of_a_folder_are_those_of_the_server(served: Served, tmp_path: Path) -> None:
    for number, key in enumerate(KEYS):
        (tmp_path / key).parent.mkdir(exist_ok=True)
        (tmp_path / key).write_bytes(content(number))
    here, there = zarrfeed.objects.open(tmp_path), served.open()
    assert here.listing.digest == there.listing.digest
    orders = [ObjectIterableDataset(one, shuffle=True, seed=1).sample_order(3).tolist() for one in (here, there)]
    assert orders[0] == orders[1]
