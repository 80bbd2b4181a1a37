"""`zarrfeed index`: where indexes go, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.storage import ZipStore

from zarrfeed.storage.files.file_index import is_index
from zarrfeed.tools import cli


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / f"{name}.npy" for name in "ab"]
    for path in paths:
        np.save(path, np.arange(5))
    return list(map(str, paths))


def test_an_index_lies_beside_its_file_or_where_it_is_said(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    pattern = [str(tmp_path / "*.npy")]
    for named, output, written in ((files, None, tmp_path), (files, folder, folder), (pattern, folder, folder)):
        for index in written.glob("*.index"):
            index.unlink()
        assert cli.main(["index", *named] + (["-o", str(output)] if output else [])) == 0
        assert all(is_index(written / f"{name}.npy.index") for name in "ab")
        assert capsys.readouterr().out.startswith(f"{written}/a.npy.index: 1 chunks of 1 arrays, ")
    assert cli.main(["index", files[0], "-o", str(folder / "b.npy.index")]) == 0  # an index is written over
    assert cli.main(["info", str(folder / "b.npy.index")]) == 0
    assert f"{files[0]}\n" in capsys.readouterr().out


def test_what_is_no_file_or_would_be_lost_is_refused(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("no index")
    np.savez(tmp_path / "both.npz", x=np.arange(4), y=np.arange(4))
    with ZipStore(tmp_path / "x.zip", mode="w") as store:
        zarr.create_array(store, data=np.arange(4))
    for arguments, message in (
        ([str(tmp_path / "nothing.h5")], "nothing.h5: does not exist"),
        ([str(tmp_path)], "is a folder, must be a file"),
        (
            [str(tmp_path / "both.npz/x")],
            f"an index is of all of it: zarrfeed index {tmp_path}/both.npz",
        ),
        ([str(tmp_path / "*.h5")], "*.h5: no store matches this pattern"),
        ([str(tmp_path / "text")], "no file of a format that is read in place"),
        ([str(tmp_path / "x.zip")], "is a zip archive, which needs no index"),
        ([files[0], "-o", files[1]], "b.npy: is no index, and is not written over"),
        ([*files, "-o", str(tmp_path / "both")], "both: would be the index of several files, must be a folder"),
    ):
        assert cli.main(["index", *arguments]) == cli.EXIT_ERROR
        assert message in capsys.readouterr().err
