"""Names that arrays of a group can have."""

from __future__ import annotations

import pytest

from zarrfeed.base.array_names import why_no_name


@pytest.mark.parametrize("name", ["x", "c", "0", "a b", "a\nb", "...a", "zarr", "n" * 255, "é" * 127, "_x"])
def test_a_name_that_a_file_system_and_zarr_take_is_taken(name: str) -> None:
    assert why_no_name(name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        (".", "a path to another folder"),
        ("..", "a path to another folder"),
        ("a/b", "a slash"),
        ("../x", "a slash"),
        ("a\\b", "a backslash"),
        ("a\0b", "a NUL"),
        ("__x", "Zarr reserves"),
        ("zarr.json", "a document of Zarr"),
        ("ZARR.JSON", "a document of Zarr"),
        (".zattrs", "a document of Zarr"),
        ("n" * 256, "has 256 bytes"),
        ("é" * 128, "has 256 bytes"),
        ("a\udcff", "is not UTF-8"),
    ],
)
def test_a_name_that_cannot_be_is_refused_with_its_reason(name: str, why: str) -> None:
    assert why in (why_no_name(name) or "")
