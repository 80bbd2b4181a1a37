"""FITS files in place: the values of their images and tables; what is refused, and why."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

import zarrfeed
from tests.support.fits_files import header, image, no_image, table
from tests.support.oracle import numbered
from zarrfeed import StoreReadError, UnsupportedError, ZarrDataset, ZarrIterableDataset
from zarrfeed.storage.files.fits import is_fits

ROWS = np.zeros(40, [("n", "i4"), ("vec", "f4", (3,)), ("name", "S5"), ("m", "f8", (2, 3)), ("big", "i8"), ("z", "c8")])
ROWS["n"], ROWS["big"], ROWS["z"] = np.arange(40), np.arange(40) << 40, np.arange(40) * 1j
ROWS["vec"], ROWS["m"] = np.arange(120).reshape(40, 3), np.arange(240).reshape(40, 2, 3)
ROWS["name"] = [f"n{number}".encode() for number in range(40)]


def write(path: Path, *units: bytes) -> Path:
    path.write_bytes(b"".join(units))
    return path


def all_of(source: Any, **options: Any) -> Any:
    data = zarrfeed.open(source, **options)
    return ZarrDataset(data)[list(range(len(data)))]


@pytest.mark.parametrize("dtype", ["u1", "i2", "i4", "i8", "f4", "f8"])
@pytest.mark.parametrize("shape", [(40,), (33, 5, 4), (300, 80, 33)])
def test_samples_of_an_image_are_its_slices(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    values = numbered(shape, dtype)
    path = write(tmp_path / "x.fits", image(values, primary=True))
    data = zarrfeed.open(path)
    assert data == pickle.loads(pickle.dumps(data))
    found, seen = all_of(path).numpy(), []
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()
    for batch, index in ZarrIterableDataset(data, batch_size=7, shuffle=True, return_index=True):
        assert batch.numpy().tobytes() == values[index].tobytes()
        seen += index.tolist()
    assert sorted(seen) == list(range(shape[0]))


@pytest.mark.parametrize(("stored", "made"), [("u1", "i1"), ("i2", "u2"), ("i4", "u4")])
def test_integers_of_the_other_sign_are_stored_with_an_offset(stored: str, made: str, tmp_path: Path) -> None:
    least, most = np.iinfo(made).min, np.iinfo(made).max
    values = np.resize(np.array([least, most, 0, 1, 100], made), (30, 4, 3))
    values[:, 0, 0] = np.arange(30)
    zero = -128 if made == "i1" else -int(np.iinfo(stored).min)
    shifted = (values.astype("i8") - zero).astype(stored)
    found = all_of(write(tmp_path / "x.fits", image(shifted, primary=True, BSCALE=1, BZERO=zero))).numpy()
    assert found.dtype == np.dtype(made)
    assert found.tobytes() == values.tobytes()


def test_scaled_numbers_are_unpacked_and_blank_ones_are_nan(tmp_path: Path) -> None:
    values = np.arange(60, dtype="i2").reshape(5, 4, 3)
    path = write(tmp_path / "x.fits", image(values, primary=True, BSCALE=0.5, BZERO=3.0, BLANK=7, BUNIT="Jy"))
    expected = np.where(values == 7, np.nan, values * 0.5 + 3).astype("f4")
    np.testing.assert_array_equal(all_of(path).numpy(), expected)
    np.testing.assert_array_equal(all_of(path, decode_cf=False).numpy(), values)
    plain = write(tmp_path / "plain.fits", image(values, primary=True, BLANK=7))  # astropy leaves integers as they are
    np.testing.assert_array_equal(all_of(plain).numpy(), values)


def test_a_plane_is_a_sample_and_extensions_are_a_group(tmp_path: Path) -> None:
    planes = np.arange(3 * 42, dtype="f4").reshape(3, 6, 7)
    units = [image(planes[0], EXTNAME="SCI"), image(planes[1], EXTNAME="ERR"), image(planes[2])]
    path = write(tmp_path / "x.fits", no_image(), *units)
    found = all_of(path)
    assert {name: one.shape for name, one in found.items()} == dict.fromkeys(("3", "ERR", "SCI"), (1, 6, 7))
    for name, plane in zip(("SCI", "ERR", "3"), planes, strict=True):
        assert found[name][0].numpy().tobytes() == plane.tobytes()
        assert all_of(f"{path}/{name}")[0].numpy().tobytes() == plane.tobytes()
    patches = zarrfeed.open(path, variables=["SCI", "ERR"]).patch({"y": 3, "x": 7})
    assert [field.shape for field in patches.fields] == [(3, 7), (3, 7)]


def test_extensions_of_one_name_are_told_apart_by_their_versions(tmp_path: Path) -> None:
    units = [image(np.full((2, 3), number, "i2"), EXTNAME="SCI", EXTVER=number) for number in (1, 2)]
    alike = [image(np.full((2, 3), number, "i2"), EXTNAME="DQ") for number in (3, 4)]
    found = all_of(write(tmp_path / "x.fits", no_image(), *units, *alike))
    assert {name: one.flatten()[0].item() for name, one in found.items()} == {"3": 3, "4": 4, "SCI,1": 1, "SCI,2": 2}


def test_many_files_are_many_samples(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.fits", image(np.full((5, 6), number, "f4"), primary=True))
    data = zarrfeed.open(str(tmp_path / "*.fits"))
    assert [one.item() for one in ZarrDataset(data)[[3, 0, 2]][:, 0, 0]] == [3, 0, 2]


@pytest.mark.usefixtures("warm_spawn")
def test_rows_of_a_table_are_records(tmp_path: Path) -> None:
    data = zarrfeed.open(write(tmp_path / "x.fits", no_image(), table(ROWS, EXTNAME="EVENTS")))
    seen = []
    dataset = ZarrIterableDataset(data, batch_size=7, shuffle=True)
    for batch in DataLoader(dataset, None, num_workers=2, multiprocessing_context="spawn"):
        numbers = batch["n"].tolist()
        for name in ("vec", "m", "big", "z"):
            assert batch[name].numpy().tobytes() == ROWS[name][numbers].tobytes()
        assert [bytes(row).rstrip(b"\0") for row in batch["name"].numpy()] == ROWS["name"][numbers].tolist()
        seen += numbers
    assert sorted(seen) == list(range(40))


PLANE = image(np.zeros((2, 3), "i2"))


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (table(ROWS, ZIMAGE=True, ZCMPTYPE="RICE_1"), r"compressed in tiles \(RICE_1\): `funpack FILE`"),
        (table(ROWS[["n"]], TFORM1="1PJ(3)"), "its column 'n' has arrays of any length"),
        (table(ROWS[["n"]], TFORM1="4L"), "its column 'n' has logical values"),
        (table(ROWS[["n"]], TZERO1=1 << 31), "its column 'n' is stored as scaled numbers"),
        (table(ROWS[["n"]], TFORM1="1D"), "its columns have 8 bytes, its rows 4"),
        (PLANE.replace(b"'IMAGE   '", b"'TABLE   '"), "is a table of text"),
        (image(np.zeros((2, 3), "i8"), BZERO=1 << 63), "has items of uint64"),
    ],
)
def test_units_that_are_not_read_are_refused_by_name(unit: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=rf"x\.fits: .*{message}"):
        zarrfeed.open(write(tmp_path / "x.fits", no_image(), unit))
    path = write(tmp_path / "y.fits", no_image(), PLANE, unit)
    assert all_of(f"{path}/1").shape == (1, 2, 3)
    with pytest.raises(UnsupportedError, match=rf"y\.fits/2: .*{message}"):
        zarrfeed.open(f"{path}/2")


def test_files_without_data_and_other_files_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.fits", no_image())
    assert is_fits(path)
    with pytest.raises(StoreReadError, match="it has no image and no table"):
        zarrfeed.open(path)
    assert not is_fits(write(tmp_path / "y.fits", header({"XTENSION": "IMAGE"})))
