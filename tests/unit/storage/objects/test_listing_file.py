"""Listings in files: what is read again, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import zarrfeed
from zarrfeed.objects import Listing, list_objects
from zarrfeed.storage.objects.listing_file import ListingFile

LISTING = Listing.of([("a.npy", 100), ("b/ü.npy", 0), ("b/\udcff", -1), ("c" * 300, 2**40)])


def saved(path: Path) -> Path:
    ListingFile(path, "s3://bucket", "b", "**/*.npy").save(LISTING)
    return path


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = saved(tmp_path / "listing.npz")
    assert ListingFile(path, "s3://bucket", "b", "**/*.npy").load() == LISTING
    assert [one.name for one in tmp_path.iterdir()] == ["listing.npz"]
    ListingFile(path, "s3://bucket", "b", "**/*.npy").save(Listing.of([]))
    assert ListingFile(path, "s3://bucket", "b", "**/*.npy").load() == Listing.of([])


def test_no_file_is_no_listing(tmp_path: Path) -> None:
    assert ListingFile(tmp_path / "none", "s3://bucket", "", None).load() is None


@pytest.mark.parametrize(
    ("source", "prefix", "glob"),
    [
        ("s3://other", "b", "**/*.npy"),
        ("s3://bucket", "b", None),
        ("s3://bucket", "b", "*"),
        ("s3://bucket", "", "**/*.npy"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, source: str, prefix: str, glob: str | None) -> None:
    path = saved(tmp_path / "listing.npz")
    with pytest.raises(zarrfeed.ConfigError, match=r"listing_file .*: has the listing of (source|prefix|glob) = "):
        ListingFile(path, source, prefix, glob).load()


@pytest.mark.parametrize("content", [b"", b"precious", b"\x93NUMPY", b"PK\x05\x06" + bytes(18), b"\x80\x04N."])
def test_what_is_no_listing_is_refused_and_stays(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes"
    path.write_bytes(content)
    (tmp_path / "data").mkdir()
    for refresh in (False, True):
        with pytest.raises(zarrfeed.ConfigError, match=r"listing_file .*/notes: .*name another file, or remove it"):
            list_objects(tmp_path / "data", listing_file=path, refresh=refresh)
    assert path.read_bytes() == content


def test_a_file_with_pickles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "listing.npz"
    np.savez(path, about=np.array([{"what": 1}], object), blob=np.array([1]))
    with pytest.raises(zarrfeed.ConfigError, match="is no listing, or is damaged"):
        ListingFile(path, "s3://bucket", "", None).load()


def test_a_flipped_byte_is_never_another_listing(tmp_path: Path) -> None:
    path = saved(tmp_path / "listing.npz")
    content = path.read_bytes()
    refused = 0
    for offset in range(len(content)):
        path.write_bytes(content[:offset] + bytes([content[offset] ^ 0x10]) + content[offset + 1 :])
        try:
            assert ListingFile(path, "s3://bucket", "b", "**/*.npy").load() == LISTING  # such as the time in a header
        except zarrfeed.ConfigError:
            refused += 1
    assert refused > len(content) // 2


@pytest.mark.parametrize(
    "listing",
    [
        Listing(b"abc", np.array([3, 2]), np.array([1, 1])),
        Listing(b"abc", np.array([1, 1, 3]), np.array([1, 1, 1])),
        Listing(b"abc", np.array([1, 2]), np.array([1, 1])),
        Listing(b"abc", np.array([1, 4]), np.array([1, 1])),
        Listing(b"abc", np.array([1, 3]), np.array([1, -2])),
        Listing(b"abc", np.array([1, 3]), np.array([1])),
        Listing(b"abc", np.array([1.0, 3.0]), np.array([1, 1])),
        Listing(b"a", np.array([], np.int64), np.array([], np.int64)),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path: Path, listing: Listing) -> None:
    file = ListingFile(tmp_path / "listing.npz", "s3://bucket", "", None)
    file.save(listing)
    with pytest.raises(zarrfeed.ConfigError, match="is damaged"):
        file.load()


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"listing\.npz: cannot be written"):
        saved(tmp_path / "nowhere" / "listing.npz")


def test_the_listing_of_a_folder_is_kept_until_it_is_refreshed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "1").write_bytes(b"1")
    path = tmp_path / "listing.npz"
    before = list_objects(tmp_path / "data", listing_file=path)
    (tmp_path / "data" / "2").write_bytes(b"22")
    assert list_objects(tmp_path / "data", listing_file=str(path)) == before
    after = list_objects(tmp_path / "data", listing_file=path, refresh=True)
    assert [one.key for one in after] == ["1", "2"]
    assert list_objects(tmp_path / "data", listing_file=path, filter=lambda one: one.size == 2)[0].key == "2"
