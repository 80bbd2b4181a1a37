"""Kinds of files: by their names, and by their first bytes where a name tells nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from zarrfeed.storage.access.file_kinds import is_zip, kind_of_content, kind_of_name, not_zarr_url, refused_by_name


def test_names_tell_a_kind_whatever_their_case() -> None:
    for name, kind in {
        "a.NC": "xarray",
        "b/c.Npz": "npy",
        "x.tar": "webdataset",
        "x.tar.gz": None,
        "noname": None,
    }.items():
        assert kind_of_name(name) == kind, name
    assert "decompress" in str(refused_by_name("x.TAR.GZ"))
    assert refused_by_name("x.zarr") is None


def test_first_bytes_tell_a_kind(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3))
    assert kind_of_content(tmp_path / "a.npy") == "npy"
    for begin, kind in {
        b"": None,
        b"PK\x05\x06": "zarr",
        b"PK\x03\x04": "zarr",
        b"PAR1x": "arrow",
        b"PA": None,
    }.items():
        (tmp_path / "file").write_bytes(begin)
        assert kind_of_content(tmp_path / "file") == kind, begin
        assert is_zip(tmp_path / "file") == (kind == "zarr"), begin


def test_a_url_says_what_its_name_tells() -> None:
    assert "an AnnData file in HDF5: copy it" in not_zarr_url("a/b.h5ad")
    assert "zip files are read from local paths only" in not_zarr_url("a/b.ZIP")
    assert not_zarr_url("a/b.zarr") == not_zarr_url("a/b") == ""
