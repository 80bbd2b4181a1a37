"""A file is one sample or a run of samples: nobody guesses which, and runs keep their names and their ends."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
import zarr

import zarrfeed
from zarrfeed import ConfigError, ZarrDataset
from zarrfeed.packing.pack import pack
from zarrfeed.packing.sources.file_reading import segments_by
from zarrfeed.tools import cli

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]

SUFFIXES = ("npy", "npz", "h5")


def save(path: Path, **arrays: Any) -> None:
    """Write arrays as a file of NumPy or HDF5; an .npy has the first of them."""
    if path.suffix == ".npy":
        np.save(path, next(iter(arrays.values())))
    elif path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values


def values_of(data: zarrfeed.Data) -> Any:
    batch = ZarrDataset(data)[np.arange(len(data))]
    return (batch["data"] if "data" in batch else batch["x"]).numpy()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_of_one_shape_are_refused_until_somebody_says_what_they_are(suffix: str, tmp_path: Path) -> None:
    """20 files of (3, 8, 8) became 60 samples of (8, 8), and nobody said so."""
    images = np.arange(20 * 3 * 8 * 8, dtype="f4").reshape(20, 3, 8, 8)
    for number, image in enumerate(images):
        save(tmp_path / f"a{number:02}.{suffix}", x=image)
    source = f"{tmp_path}/*.{suffix}"
    both = r"20 samples with \w+ of \(3, 8, 8\) \(files_are='samples'\).* axis 0, 60 samples with \w+ of \(8, 8\)"
    with pytest.raises(ConfigError, match=f"a00.{suffix} and 19 more files have arrays of the same shapes.*{both}"):
        pack(source, tmp_path / "no.zarr")
    report = pack(source, tmp_path / "samples.zarr", files_are="samples", verify=True, shuffle=3)
    assert report.ok
    assert "each of the 20 files is one sample" in report.notes
    packed = values_of(zarrfeed.open(tmp_path / "samples.zarr"))
    order = np.argsort(packed[:, 0, 0, 0])
    assert np.array_equal(packed[order], images)
    group: Any = zarr.open_group(tmp_path / "samples.zarr")
    names = group["meta/file_names"][:][group["meta/file_numbers"][:]]
    assert names[order].tolist() == [f"a{number:02}.{suffix}" for number in range(20)]

    for name, options in {
        "named": {"sample_axis": 0},
        "said": {"files_are": "runs"},
        "last": {"sample_axis": -1},
    }.items():
        assert pack(source, tmp_path / f"{name}.zarr", verify=True, **options).ok  # type: ignore[arg-type]
    assert np.array_equal(values_of(zarrfeed.open(tmp_path / "named.zarr")), images.reshape(60, 8, 8))
    assert np.array_equal(values_of(zarrfeed.open(tmp_path / "said.zarr")), images.reshape(60, 8, 8))
    last = np.moveaxis(images, 3, 1).reshape(160, 3, 8)
    assert np.array_equal(values_of(zarrfeed.open(tmp_path / "last.zarr")), last)
    with pytest.raises(ConfigError, match="files_are = 'samples' and sample_axis = 0: give one of them"):
        pack(source, tmp_path / "no.zarr", files_are="samples", sample_axis=0)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0, 3)])
def test_whole_files_of_any_shape_and_order(shape: tuple[int, ...], order: Any, tmp_path: Path) -> None:
    arrays = [np.asarray(np.arange(np.prod(shape)).reshape(shape) + 100 * n, order=order) for n in range(3)]
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
    if not np.prod(shape):
        return
    options: dict[str, Any] = (
        {} if not shape else {"files_are": "samples"}
    )  # single items are samples, and nothing else
    pack(tmp_path, tmp_path / "out.zarr", verify=True, **options)
    assert np.array_equal(values_of(zarrfeed.open(tmp_path / "out.zarr")), np.stack(arrays))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_files_of_several_lengths_are_runs_whose_ends_are_kept(suffix: str, tmp_path: Path) -> None:
    """Windows had rows of two recordings, and nothing in the store said where a recording ended."""
    lengths = [30 + number for number in range(6)]
    for number, length in enumerate(lengths):
        save(tmp_path / f"r{number}.{suffix}", x=np.full((length, 4), number, "f4"))
    report = pack(f"{tmp_path}/r*.{suffix}", tmp_path / "runs.zarr", verify=True)
    assert "each of the 6 files is a run of samples along axis 0" in report.notes
    assert (
        "the store has their ends in meta/file_ends, and names in meta/file_names; windows do not leave one"
        in report.notes
    )
    group: Any = zarr.open_group(tmp_path / "runs.zarr")
    assert group["meta/file_ends"][:].tolist() == np.cumsum(lengths).tolist()
    assert group["meta/file_names"][:].tolist() == [f"r{number}.{suffix}" for number in range(6)]
    for source in (tmp_path / "runs.zarr", zarr.open_group(tmp_path / "runs.zarr"), [tmp_path / "runs.zarr"] * 2):
        windows = ZarrDataset(zarrfeed.open(source).window(range(8)))
        times = 2 if isinstance(source, list) else 1
        assert len(windows) == times * sum(length - 7 for length in lengths), source
        rows = next(iter(windows[np.arange(len(windows))].values())).numpy()
        assert (rows == rows[:, :1, :1]).all(), source
    named = zarrfeed.open(tmp_path / "runs.zarr").window(range(8), segment_ends="meta/file_ends")
    assert len(named) == sum(length - 7 for length in lengths)

    again = pack(tmp_path / "runs.zarr", tmp_path / "again.zarr", verify=True)
    assert again.ok
    assert len(zarrfeed.open(tmp_path / "again.zarr").window(range(8))) == len(named)


def test_runs_of_parts_and_of_shuffled_stores(tmp_path: Path) -> None:
    lengths, values = [5, 0, 3, 8, 4], np.arange(20)
    for number, (begin, end) in enumerate(itertools.pairwise(np.cumsum([0, *lengths]))):
        np.save(tmp_path / f"{number}.npy", values[begin:end])
    source = f"{tmp_path}/*.npy"
    pack(source, tmp_path / "split.zarr", split={"a": 0.5, "b": 0.5}, verify=True)
    for part, names, ends in (("a", "0123", [5, 5, 8, 10]), ("b", "34", [6, 10])):
        group: Any = zarr.open_group(tmp_path / "split.zarr" / part)
        assert "".join(name[0] for name in group["meta/file_names"][:]) == names, part
        assert group["meta/file_ends"][:].tolist() == ends, part
        assert len(zarrfeed.open(tmp_path / "split.zarr" / part).window((0, 1))) == 10 - len(set(ends)), part
    pack(source, tmp_path / "shuffled.zarr", shuffle=1, split={"a": 0.5, "b": 0.5}, verify=True)
    for part in "ab":
        group = zarr.open_group(tmp_path / "shuffled.zarr" / part)
        expected = np.searchsorted(np.cumsum(lengths), group["data"][:], side="right")
        assert group["meta/file_numbers"][:].tolist() == expected.tolist(), part
        assert "segment_ends" not in group.attrs["zarrfeed_pack"], part


def test_stores_are_runs_and_a_coordinate_says_where_they_go_on(tmp_path: Path) -> None:
    def store(name: str, days: Any, *, has_time: bool = True) -> None:
        made = xarray.Dataset({"x": (("time", "y"), np.zeros((len(days), 2)))}, {"time": days} if has_time else {})
        made.to_zarr(tmp_path / name, consolidated=False)

    day = np.arange("2018-01-01", "2018-01-31", dtype="M8[D]").astype("M8[ns]")
    for number, days in enumerate((day[:10], day[10:20], day[24:])):
        store(f"{number}.zarr", days)
    cases = {"goes on": ("01", 20 - 3, [10, 20]), "has a gap": ("012", 20 - 3 + 6 - 3, [10, 20, 26])}
    for name, (numbers, windows, ends) in cases.items():
        paths = [str(tmp_path / f"{number}.zarr") for number in numbers]
        report = pack(paths, tmp_path / f"{name}.zarr", verify=True)
        assert f"each of the {len(numbers)} stores is a run of samples along 'time'" in report.notes
        assert len(zarrfeed.open(tmp_path / f"{name}.zarr", sample_dim="time").window(range(4))) == windows, name
        group: Any = zarr.open_group(tmp_path / f"{name}.zarr")
        assert group["meta/file_ends"][:].tolist() == ends, name
    nested = pack([tmp_path / "goes on.zarr", tmp_path / "2.zarr"], tmp_path / "nested.zarr", verify=True)
    assert nested.ok
    names: Any = zarr.open_group(tmp_path / "nested.zarr")["meta/file_names"]
    assert names[:].tolist() == ["goes on.zarr/0.zarr", "goes on.zarr/1.zarr", "2.zarr"]
    for number in (0, 1):
        store(f"no time {number}.zarr", day[:10], has_time=False)
    pack(str(tmp_path / "no time*.zarr"), tmp_path / "no.zarr", sample_dim="time")
    assert len(zarrfeed.open(tmp_path / "no.zarr", sample_dim="time").window(range(4))) == 2 * 7
    for number in (0, 1):
        zarr.create_array(tmp_path / f"bare {number}.zarr", data=np.arange(10 + number))
    assert pack(str(tmp_path / "bare*.zarr"), tmp_path / "bare.zarr", verify=True).ok
    assert len(zarrfeed.open(tmp_path / "bare.zarr").window(range(4))) == 7 + 8


@pytest.mark.parametrize("suffix", ["nc", "zarr"])
@pytest.mark.parametrize("has_coordinates", [True, False])
def test_files_with_the_same_grid_are_not_joined_along_it(suffix: str, has_coordinates: bool, tmp_path: Path) -> None:
    """Files of one field each were joined along latitudes, which nobody had named."""
    for number in range(3):
        coords = {"lat": [10.0, 20.0 + 1e-14 * number], "lon": [0.0, 1.0, 2.0]} if has_coordinates else {}
        made = xarray.Dataset({"x": (("lat", "lon"), np.full((2, 3), number))}, coords)
        if suffix == "nc":
            made.to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
        else:
            made.to_zarr(tmp_path / f"{number}.zarr", consolidated=False)
    paths = [str(tmp_path / f"{number}.{suffix}") for number in range(3)]
    with pytest.raises(
        ConfigError, match=r"0\.\w+ and 2 more have the same 2 coordinates along 'lat'.*files_are='samples'"
    ):
        pack(paths, tmp_path / "no.zarr")
    assert pack(paths, tmp_path / "runs.zarr", sample_dim="lat").num_samples == 6
    if suffix == "zarr":
        with pytest.raises(
            ConfigError, match="files_are = 'samples' is for files of npy, hdf5, xarray, and the source is"
        ):
            pack(paths, tmp_path / "no.zarr", files_are="samples")
        return
    assert pack(paths, tmp_path / "samples.zarr", files_are="samples", verify=True).ok
    packed = zarrfeed.open(tmp_path / "samples.zarr", variables=["x"])
    assert np.array_equal(values_of(packed), np.repeat(np.arange(3), 6).reshape(3, 2, 3))


def test_files_with_a_scalar_of_their_own_are_samples_only_if_somebody_says_so(tmp_path: Path) -> None:
    for suffix, number in itertools.product(("npz", "h5"), range(3)):
        save(tmp_path / f"{number}.{suffix}", x=np.full((2, 3), number), label=np.int64(number))
    for suffix in ("npz", "h5"):
        source = f"{tmp_path}/*.{suffix}"
        with pytest.raises(ConfigError, match=r"'label'.*or say files_are='samples'"):
            pack(source, tmp_path / "no.zarr")
        pack(source, tmp_path / f"{suffix}.zarr", files_are="samples", verify=True)
        group: Any = zarr.open_group(tmp_path / f"{suffix}.zarr")
        assert group["label"][:].tolist() == [0, 1, 2]
        assert group["x"].shape == (3, 2, 3)


def test_the_command_line_says_what_files_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        np.save(tmp_path / f"{number}.npy", np.zeros((4, 3)))
    out = ["--out", str(tmp_path / "o.zarr")]
    assert cli.main(["pack", str(tmp_path), *out]) == 2
    assert "--files-are samples, or --files-are runs" in capsys.readouterr().err
    assert cli.main(["pack", str(tmp_path), *out, "--files-are", "samples"]) == 0
    assert "each of the 2 files is one sample" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("coordinates", "expected"),
    [
        ([[0, 1, 2], [3, 4]], None),
        ([[0, 1, 2], [4, 5]], [0, 1]),
        ([[0, 1, 2], [2, 3]], [0, 1]),
        ([[5, 4], [3, 2], [9, 8]], [1, 2]),
        ([[0.0, 0.1], [0.2, 0.30001]], None),
        ([[0], [7], [9]], None),
        ([[0], [0]], [0, 1]),
        ([[0, 1], [], [2, 3]], None),
        ([[0, 2, 1], [3, 4]], [0, 1]),
        ([["a"], ["b"]], [0, 1]),
        ([np.array(["2020-01-01", "2020-01-02"], "M8[s]"), np.array(["2020-01-03"], "M8[ns]")], None),
        ([np.array(["2020-01-01", "2020-01-02"], "M8[D]"), np.array(["2020-01-03"], "M8[h]")], None),
        ([np.array([0, 1], "M8[25s]"), np.array([2, 3], "M8[25s]")], None),
        ([np.array(["2020-01-01", "NaT"], "M8[s]"), np.array(["2020-01-03", "2020-01-04"], "M8[s]")], [0, 1]),
        (None, [0, 1]),
    ],
    ids=str,
)
def test_a_file_goes_on_where_its_first_value_is_the_next_one(coordinates: Any, expected: Any) -> None:
    given = None if coordinates is None else [np.asarray(one) for one in coordinates]
    found = segments_by(given, 2 if given is None else len(given))
    assert (None if found is None else found.tolist()) == expected
