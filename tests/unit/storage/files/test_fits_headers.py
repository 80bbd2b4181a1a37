"""Headers of FITS files: keywords and their values, where data lie, and headers that lie."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import zarrfeed
from tests.support.examples import tries
from tests.support.fits_files import header, image, no_image, table
from zarrfeed import StoreReadError, ZarrDataset, ZarrfeedError
from zarrfeed.storage.files.data_file import DataFile
from zarrfeed.storage.files.fits_headers import read_units

VALUES = np.arange(42, dtype="i2").reshape(6, 7)
ROWS = np.zeros(5, [("n", "i4"), ("m", "f4", (2, 3))])


def file_of(path: Path, *units: bytes) -> DataFile:
    path.write_bytes(b"".join(units))
    return DataFile.of(path)


def test_units_have_keywords_and_places(tmp_path: Path) -> None:
    first, second = image(VALUES, EXTNAME="SCI", EXPTIME=12.5, OBSERVER="O'Neil / Ra"), table(ROWS, b"heap", EXTVER=3)
    units = read_units(file_of(tmp_path / "x.fits", no_image(), first, second, b"special records"))
    assert [(one.kind, one.sizes, one.num_bytes) for one in units] == [
        ("IMAGE", (), 0),
        ("IMAGE", (7, 6), 84),
        ("BINTABLE", (28, 5), 140),
    ]
    assert [(one.name, one.version) for one in units] == [("PRIMARY", 1), ("SCI", 1), ("", 3)]
    assert units[1].cards["EXPTIME"] == 12.5
    assert units[1].cards["OBSERVER"] == "O'Neil / Ra"
    content = (tmp_path / "x.fits").read_bytes()
    assert content[units[1].begin :].startswith(VALUES.astype(">i2").tobytes())
    assert content[units[2].begin + 140 :].startswith(b"heap")


@pytest.mark.parametrize(
    ("cards", "message"),
    [
        ({"NAXIS": 1, "NAXIS1": 1 << 60}, "unit 0 is said to have .* bytes of data, the file has"),
        ({"NAXIS": 1, "NAXIS1": -4}, r"unit 0 has axes \(-4,\)"),
        ({"NAXIS": 2, "NAXIS1": 4}, r"unit 0 has axes \(4, None\)"),
        ({"NAXIS": 10**9}, "unit 0 has NAXIS = 1000000000"),
        ({"NAXIS": "two"}, "unit 0 has NAXIS = two"),
    ],
)
def test_headers_that_lie_name_the_file(cards: dict[str, object], message: str, tmp_path: Path) -> None:
    file = file_of(tmp_path / "x.fits", header({"SIMPLE": True, "BITPIX": 16, **cards}), bytes(2880))
    with pytest.raises(StoreReadError, match=rf"x\.fits: is no FITS file, or a damaged .*: {message}"):
        read_units(file)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    whole = no_image() + image(VALUES, EXTNAME="SCI") + table(ROWS)
    rng = np.random.default_rng(5)
    for _ in range(tries(60, 2000)):
        content = bytearray(whole)
        for at in rng.integers(0, len(whole), 4):
            content[at] = rng.integers(32, 127)
        cut = bytes(content[: int(rng.integers(1, len(whole) + 1))])
        file = file_of(tmp_path / "x.fits", cut)
        with suppress(StoreReadError):
            assert all(one.begin + one.num_bytes <= len(cut) for one in read_units(file))
        with suppress(ZarrfeedError):
            data = zarrfeed.open(tmp_path / "x.fits")
            ZarrDataset(data)[list(range(min(len(data), 20)))]
