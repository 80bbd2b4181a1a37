"""Real climate-model output -> two Zarr stores that have no field in common.

The package iris-sample-data brings annual means of the air temperature over North America, 1860 to 2099, from a run
of the Met Office Unified Model under two emission scenarios: A1B (medium) and E1 (strong mitigation). The scenarios
part in 2000; up to then the two files hold the same fields. Hence the years that are equal must not be held out.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import iris_sample_data
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec

from zarrfeed.tools.demo.stores import build_store

Fields: TypeAlias = npt.NDArray[np.float32]

#: Every sixth grid point, in latitude and in longitude, is a station. The corners of the grid are stations.
STATION_SPACING = 6

#: Years of a chunk: the blocks that are shuffled.
_CHUNK_YEARS = 12
_HOURS_PER_YEAR = 360 * 24


@dataclass(frozen=True)
class ClimateStore:
    """A Zarr group with the arrays `stations` (years, 7, 9) and `field` (years, 37, 49), in kelvin.

    Attributes
    ----------
    path
        Path of the group.
    scenario
        Name of the emission scenario.
    first_year, last_year
        The years of the first and of the last field.
    num_years
        Number of samples.
    reused
        True if the group was there already.
    """

    path: Path
    scenario: str
    first_year: int
    last_year: int
    num_years: int
    reused: bool

    @property
    def stations(self) -> Path:
        """The samples."""
        return self.path / "stations"

    @property
    def field(self) -> Path:
        """The targets."""
        return self.path / "field"


def write_climate_stores(directory: Path) -> tuple[ClimateStore, ClimateStore]:
    """Write the stores `train.zarr` and `held_out.zarr`.

    Training takes all years of scenario A1B; held out are the years of scenario E1 that differ from A1B.
    """
    source = Path(iris_sample_data.path)
    a1b, years, grid = _read_netcdf(source / "A1B_north_america.nc")
    e1, _, _ = _read_netcdf(source / "E1_north_america.nc")
    differs = (a1b != e1).any(axis=(1, 2))
    return (
        _write(directory / "train.zarr", "A1B", a1b, years, grid),
        _write(directory / "held_out.zarr", "E1", e1[differs], years[differs], grid),
    )


def _read_netcdf(path: Path) -> tuple[Fields, npt.NDArray[np.int64], dict[str, Fields]]:
    """Return air temperature (years, latitude, longitude) in kelvin, the years, and the coordinates of the grid."""
    with h5py.File(path, "r") as file:
        fields = np.asarray(file["air_temperature"], dtype=np.float32)
        hours = np.asarray(file["time"])  # since 1970, in years of 360 days
        grid = {name: np.asarray(file[name], dtype=np.float32) for name in ("latitude", "longitude")}
    return fields, 1970 + np.floor(hours / _HOURS_PER_YEAR).astype(np.int64), grid


def _write(
    path: Path, scenario: str, fields: Fields, years: npt.NDArray[np.int64], grid: dict[str, Fields]
) -> ClimateStore:
    first_year, last_year = int(years[0]), int(years[-1])
    description: dict[str, Any] = {
        "quantity": "annual mean air temperature over North America",
        "units": "K",
        "scenario": scenario,
        "years": [first_year, last_year],
        "station_spacing": STATION_SPACING,
        "crc32": zlib.crc32(fields.tobytes()),
    }

    def write(group: zarr.Group) -> None:
        stations = np.ascontiguousarray(fields[:, ::STATION_SPACING, ::STATION_SPACING])
        _add(group, "field", fields, ("year", "latitude", "longitude"))
        _add(group, "stations", stations, ("year", "station_latitude", "station_longitude"))
        _add(group, "year", years, ("year",))
        for name, values in grid.items():
            _add(group, name, values, (name,))
            _add(group, f"station_{name}", values[::STATION_SPACING], (f"station_{name}",))

    reused = build_store(path, description, write)
    return ClimateStore(path, scenario, first_year, last_year, len(years), reused)


def _add(group: zarr.Group, name: str, values: npt.NDArray[Any], dimensions: tuple[str, ...]) -> None:
    chunks = (_CHUNK_YEARS, *values.shape[1:]) if dimensions[0] == "year" else values.shape
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=chunks,
        compressors=BloscCodec(cname="lz4", clevel=5, shuffle="shuffle"),
        dimension_names=dimensions,
    )
    # A chunk at a time: of several, zarr-python goes on to write the others after one has failed, as on a full disk.
    for begin in range(0, len(values), chunks[0]):
        array[begin : begin + chunks[0]] = values[begin : begin + chunks[0]]
