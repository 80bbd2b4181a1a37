"""Files of NumPy arrays in place: what NumPy reads of them, bit for bit; what is refused, and why."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.hdf5_files import bytes_of
from tests.support.oracle import DTYPES, numbered
from zarrfeed import ConfigError, StoreReadError, UnsupportedError, ZarrIterableDataset
from zarrfeed.storage.files.open_file import open_file

ROWS = np.arange(60, dtype="i4").reshape(20, 3)


def rows_of(data: Any, **options: Any) -> list[bytes]:
    """Return the bytes of all samples, by their index, which each is delivered with once."""
    rows = {}
    for values, index in ZarrIterableDataset(data, batch_size=7, return_index=True, **options):
        for row, number in zip(values, index.tolist(), strict=True):
            assert number not in rows
            rows[number] = row.numpy().tobytes()
    return [rows[number] for number in range(len(rows))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("shape", [(20,), (33, 5), (300, 80, 33)])
def test_samples_of_an_npy_are_those_of_numpy(dtype: str, order: Any, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = numbered(shape, dtype).astype(np.dtype(dtype).newbyteorder(order), copy=False)
    np.save(tmp_path / "x.npy", values)
    data = zarrfeed.open(tmp_path / "x.npy")
    assert data == pickle.loads(pickle.dumps(data))
    for shuffle in (False, True):
        assert rows_of(data, shuffle=shuffle, seed=3) == [bytes_of(row) for row in values]


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_members_of_an_npz_are_a_group(method: str, tmp_path: Path) -> None:
    members: dict[str, Any] = {"x": ROWS, "y": ROWS[:, 0] * 2.5, "deep/z": ROWS * 2}
    np.savez(tmp_path / "x.npz", **members)
    data = zarrfeed.open(tmp_path / "x.npz", variables=["x", "y", "deep/z"])
    loader = DataLoader(
        ZarrIterableDataset(data, batch_size=3, shuffle=True), None, num_workers=2, multiprocessing_context=method
    )
    seen = []
    for batch in loader:
        numbers = batch["x"][:, 0].tolist()
        assert batch["y"].tolist() == [2.5 * one for one in numbers]
        assert batch["deep/z"][:, 1].tolist() == [2 * one + 2 for one in numbers]
        seen += numbers
    assert sorted(seen) == ROWS[:, 0].tolist()


def test_files_of_a_pattern_are_one_array(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", ROWS + 100 * number)
    everything = np.concatenate([ROWS, ROWS + 100, ROWS + 200])
    assert rows_of(zarrfeed.open(str(tmp_path / "*.npy")), shuffle=True) == [bytes_of(row) for row in everything]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("fortran.npy", np.asfortranarray(ROWS), "fortran.npy: lies in Fortran order"),
        ("text.npy", np.array(["a", "bc"]), "text.npy: its items are <U2; `zarrfeed pack`"),
        ("gaps.npy", np.zeros(3, np.dtype("i1,f4", align=True)), "gaps.npy: its items have gaps between their members"),
        ("empty.npy", np.zeros((0, 3)), "has the shape (0, 3)"),
        ("objects.npy", np.array([{}, []], object), "holds Python objects"),
    ],
)
def test_arrays_that_are_refused(name: str, values: Any, message: str, tmp_path: Path) -> None:
    np.save(tmp_path / name, values)
    with pytest.raises((ConfigError, UnsupportedError), match=re.escape(message)):
        zarrfeed.open(tmp_path / name)


def test_compressed_members_are_refused_by_name_and_others_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=ROWS)
    with pytest.raises(UnsupportedError, match=r"x\.npz/x: is compressed; numpy\.savez writes"):
        zarrfeed.open(tmp_path / "x.npz")


def test_errors_of_numpy_and_zipfile_name_the_file(tmp_path: Path) -> None:
    """NumPy reads a header as Python's source, and zipfile the list of members: their errors are of any class."""
    np.save(tmp_path / "x.npy", np.arange(6))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"}", b"("))
    np.savez(tmp_path / "x.npz", x=np.arange(6))
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(content.replace(b"PK\1\2", b"PK\1\3"))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(ConfigError, match=f"{name}: is no file of NumPy's, or a damaged one: "):
            open_file(tmp_path / name)


def test_a_file_that_is_cut_or_written_anew_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    data = zarrfeed.open(path)
    np.save(path, ROWS + 1000)
    with pytest.raises(StoreReadError, match="has changed since it was opened"):
        rows_of(data)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConfigError, match="ends before its 240 bytes of items do"):
        zarrfeed.open(path)
