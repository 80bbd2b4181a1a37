"""Buckets that many requests list at once: what is listed, and what comes of errors."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import zarrfeed
from benchmarks.harness.listing_server import ListingServer
from zarrfeed.objects import Listing, list_objects
from zarrfeed.storage.objects import parallel_listing
from zarrfeed.storage.objects.parallel_listing import UnorderedError, without_markers

PAGE = 50
KEYS = [(f"train/{i % 3}/image-{i:05d}", i % 7 + 1) for i in range(1200)]


@pytest.fixture(autouse=True)
def short_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let client and servers take few keys for a page, so that few keys are many pages."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(parallel_listing, "PAGE", PAGE)


@contextmanager
def serving(objects: Iterable[tuple[str, int]], **options: Any) -> Iterator[ListingServer]:
    with ListingServer(objects, page=PAGE, **options) as server:
        yield server


def listed(server: ListingServer, url: str = "s3://bucket", **options: Any) -> list[tuple[str, int]]:
    found = list_objects(url, storage_options=server.options, progress=False, **options)
    return [(one.key, one.size) for one in found]


@pytest.mark.parametrize("requests", [1, 2, 16])
def test_all_keys_are_listed_once_in_order(requests: int) -> None:
    with serving(KEYS) as server:
        assert listed(server, requests=requests) == sorted(KEYS)
        assert server.most_at_once <= requests
        assert len(set(server.requests) - {""}) > 0 or requests == 1


def test_requests_are_made_at_the_same_time() -> None:
    with serving(KEYS, delay_s=0.01) as server:
        assert listed(server) == sorted(KEYS)
        assert 2 < server.most_at_once <= 16


def test_keys_are_below_the_url() -> None:
    with serving([*KEYS, ("trainer", 1), ("train.txt", 2)]) as server:
        expected = sorted((key.removeprefix("train/"), size) for key, size in KEYS)
        assert listed(server, "s3://bucket/train") == expected
        assert listed(server, "s3://bucket/train/") == expected
        assert listed(server, "s3://bucket/nothing") == []


def test_google_is_listed_in_the_same_way() -> None:
    with serving(KEYS) as server:
        options = {"base_url": server.endpoint, "skip_signature": True, "allow_http": True}
        found = list_objects("gs://bucket", storage_options=options)
        assert [(one.key, one.size) for one in found] == sorted(KEYS)
        assert len(set(server.requests)) > 1


def test_keys_with_any_characters() -> None:
    rng = random.Random(3)
    parts = ["a b", "a+b", "a%20b", "a~", "ü", "日本", "x#y", "q?", "[1]", "{2}", "<&>", "é", "\U0001f600", "-", "="]
    keys = {f"{rng.choice(parts)}/{rng.choice(parts)}{rng.randrange(10**6)}" for _ in range(1000)}
    with serving((key, 1) for key in keys) as server:
        assert listed(server) == [(key, 1) for key in sorted(keys)]


def test_folders_before_a_wildcard_are_listed_alone() -> None:
    with serving([*KEYS, *((f"other/{i}", 1) for i in range(500))]) as server:
        found = listed(server, glob="train/1/*-0000?")
        assert found == [("train/1/image-00001", 2), ("train/1/image-00004", 5), ("train/1/image-00007", 1)]
        assert server.prefixes == {"train/1/"}


@pytest.mark.parametrize(
    ("prefix", "heeds_offsets"),
    [
        *((one, True) for one in ("train/1/image-0", "train/1/", "train/1/image-01", "tr", "", "zebra", "train/10")),
        *((one, False) for one in ("train/1/image-01", "tr")),
    ],
)
def test_keys_that_begin_so_are_listed_alone(prefix: str, heeds_offsets: bool) -> None:
    objects = [*KEYS, *((f"other/{i}", 1) for i in range(100)), ("trail", 1), ("train", 1), ("train/1", 1)]
    with serving(objects) as server:
        server.heeds_offsets = heeds_offsets
        expected = [one for one in sorted(objects) if one[0].startswith(prefix)]
        assert listed(server, prefix=prefix) == expected
        if heeds_offsets and prefix:
            assert len(server.requests) <= 2 * len(expected) / PAGE + 4 * 16 + 1
            assert "" not in server.requests or prefix.endswith("/")
        assert listed(server, prefix=prefix, glob="**/*-0000?") == [one for one in expected if "-0000" in one[0]]


def test_a_filter_is_called_once_for_each_object_and_by_one_thread_at_a_time() -> None:
    active, seen = 0, []

    def is_wanted(one: zarrfeed.objects.StoredObject) -> bool:
        nonlocal active
        assert active == 0
        active += 1
        seen.append(one.key)
        active -= 1
        return one.size == 3

    with serving(KEYS) as server:
        assert listed(server, filter=is_wanted) == [one for one in sorted(KEYS) if one[1] == 3]
    assert sorted(seen) == sorted(key for key, _ in KEYS)


def test_an_error_of_the_filter_ends_the_listing() -> None:
    def fails(one: zarrfeed.objects.StoredObject) -> bool:
        if one.key == max(KEYS)[0]:
            raise RuntimeError("no")
        return True

    with serving(KEYS) as server, pytest.raises(RuntimeError, match=r"^no$"):
        listed(server, filter=fails)


# --- markers of folders, and objects without content --------------------------------------------------------------


def test_markers_of_folders_are_left_out_and_other_empty_objects_are_listed() -> None:
    objects = [("a/", 0), ("a/1", 1), ("a-b", 1), ("b/", 0), ("b/c/", 0), ("b/c/2", 1), ("empty/", 0), ("zero", 0),
               ("zero.txt", 0), ("y", 0), ("y/1", 1)]  # fmt: skip
    with serving(objects) as server:
        assert listed(server) == [("a-b", 1), ("a/1", 1), ("b/c/2", 1), ("y/1", 1), ("zero", 0), ("zero.txt", 0)]
        assert listed(server, "s3://bucket/b") == [("c/2", 1)]


@pytest.mark.parametrize("size", [0, 1])
def test_the_marker_of_the_listed_folder_itself(size: int) -> None:
    with serving([("b/", size), ("b/1", 1), ("b/2", 1)]) as server:
        assert listed(server, "s3://bucket/b") == [("1", 1), ("2", 1)]


def test_markers_among_many_pages() -> None:
    objects = {f"d{i:03d}{end}": size for i in range(300) for end, size in (("/", 0), ("-x", 1), ("/1", 2), (".e", 0))}
    with serving(objects.items()) as server:
        assert listed(server) == sorted(one for one in objects.items() if not one[0].endswith("/"))


def test_only_an_empty_object_may_be_out_of_order() -> None:
    assert without_markers(["a", "a-b", "a", "a/1"], [1, 1, 0, 1]) == (["a", "a-b", "a/1"], [1, 1, 1])
    assert without_markers(["b", "c"], [0, 1], "b") == (["c"], [1])
    with pytest.raises(UnorderedError):
        without_markers(["a", "c", "b"], [1, 1, 1])
    with pytest.raises(UnorderedError):
        without_markers(["a", "b"], [1, 1], "c")


# --- servers with ways of their own -------------------------------------------------------------------------------


def test_a_server_that_does_not_heed_where_to_begin() -> None:
    with serving(KEYS) as server:
        server.heeds_offsets = False
        assert listed(server) == sorted(KEYS)


def test_a_server_without_an_order() -> None:
    objects = KEYS[:500]
    with serving(objects) as server:
        shuffled = list(range(len(objects)))
        random.Random(1).shuffle(shuffled)
        server.keep_order([objects[i] for i in shuffled])
        assert listed(server) == sorted(objects)


@pytest.mark.parametrize("size", [0, 1])
def test_a_server_that_lists_the_same_page_again_and_again_is_an_error(size: int) -> None:
    with serving([(key, size) for key, _ in KEYS]) as server:
        server.heeds_tokens = False
        with pytest.raises(
            zarrfeed.StoreReadError, match="s3://bucket: the server lists the same keys again and again"
        ):
            listed(server)
        assert len(server.requests) < 60, "16 requests at a time"


def test_pages_that_come_again_in_turn_are_found_by_one_page_in_memory() -> None:
    for length in (1, 2, 3, 7, 20):
        cycle = [[f"{number}-{key}" for key in range(5)] for number in range(length)]
        found = parallel_listing._Repetition()
        assert not any(found.has_any(page) for page in cycle), "each page once"
        assert any(found.has_any(page) for _ in range(4) for page in cycle)


def test_a_web_server_has_no_listing() -> None:
    with pytest.raises(zarrfeed.UnsupportedError, match=r"http://127.0.0.1:1: a web server does not tell"):
        list_objects("http://127.0.0.1:1")


# --- errors -------------------------------------------------------------------------------------------------------


def test_requests_that_fail_are_made_again() -> None:
    with serving(KEYS) as server:
        server.fault = lambda number: 503 if number % 9 == 3 else None
        assert listed(server, retries=3) == sorted(KEYS)


@pytest.mark.parametrize(("first", "requests"), [(0, 16), (3, 1), (25, 16)])
def test_a_request_that_fails_for_good_ends_the_listing(first: int, requests: int) -> None:
    with serving(KEYS) as server:
        server.fault = lambda number: 503 if number >= first else None
        with pytest.raises(zarrfeed.StoreReadError, match=r"^\[Errno 5\] s3://bucket: .*1 retry in .*503") as caught:
            listed(server, retries=1, requests=requests)
        assert "Debug source" not in str(caught.value)


def test_a_listing_that_is_not_allowed_is_an_error_at_once() -> None:
    with serving(KEYS) as server:
        server.fault = lambda _: 403
        with pytest.raises(zarrfeed.StoreReadError, match=r"^\[Errno 13\] s3://bucket: permission denied"):
            listed(server)
        assert len(server.requests) == 1


def test_a_bucket_that_does_not_exist() -> None:
    with serving(KEYS) as server:
        server.fault = lambda _: 404
        with pytest.raises(zarrfeed.StoreReadError, match=r"^\[Errno 2\] s3://bucket: "):
            listed(server)


def test_a_server_that_does_not_answer() -> None:
    with (
        serving(KEYS, delay_s=5) as server,
        pytest.raises(zarrfeed.StoreReadError, match=r"did not answer within 0\.2 s"),
    ):
        listed(server, timeout=0.2, retries=0)


def test_a_key_that_the_client_cannot_read_is_an_error() -> None:
    with (
        serving([*KEYS[:10], ("train//a", 1)]) as server,
        pytest.raises(zarrfeed.StoreReadError, match=r"s3://bucket: .*train//a.*empty path segment"),
    ):
        listed(server)


# --- files that keep listings -------------------------------------------------------------------------------------


def test_a_listing_file_is_used_again_for_two_requests(tmp_path: Any) -> None:
    path = tmp_path / "listing.npz"
    with serving(KEYS) as server:
        assert listed(server, listing_file=path) == sorted(KEYS)
        server.requests.clear()
        assert listed(server, listing_file=path) == sorted(KEYS)
        assert (
            server.requests == ["", "train/2/image-01999"] or len(server.requests) <= 11
        )  # pages of obstore are longer
        assert listed(server, listing_file=path, filter=lambda one: one.size > 6) == [
            one for one in sorted(KEYS) if one[1] > 6
        ]


@pytest.mark.parametrize(
    "change",
    [
        lambda objects: objects | {"aaa": 1},
        lambda objects: objects | {"zzz": 1},
        lambda objects: objects | {"train/0/image-00003": 99},
        lambda objects: {key: size for key, size in objects.items() if key != "train/0/image-00000"},
        lambda _: {},
    ],
)
def test_a_bucket_that_changed_at_its_ends_is_listed_again(tmp_path: Any, change: Any) -> None:
    path = tmp_path / "listing.npz"
    with serving(KEYS) as server:
        listed(server, listing_file=path)
        changed = change(dict(KEYS))
        server.put(changed.items())
        assert listed(server, listing_file=path) == sorted(changed.items())


def test_a_change_in_the_middle_is_seen_by_refresh_alone(tmp_path: Any) -> None:
    path = tmp_path / "listing.npz"
    with serving(KEYS) as server:
        before = listed(server, listing_file=path)
        server.put([*KEYS, ("train/1/new", 5)])
        assert listed(server, listing_file=path) == before
        assert ("train/1/new", 5) in listed(server, listing_file=path, refresh=True)
        assert ("train/1/new", 5) in listed(server, listing_file=path)


@pytest.mark.slow
def test_a_million_keys_take_less_than_150_megabytes() -> None:
    import resource

    with ListingServer((f"train/shard-0017/image-{i:08d}.jpeg", i) for i in range(1_000_000)) as server:
        listed(server, "s3://bucket/none")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found: Listing = list_objects("s3://bucket", storage_options=server.options)
        assert len(found) == 1_000_000
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000
