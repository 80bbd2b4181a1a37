"""metadata/description/normalize_by.py: one rule for which arrays are normalised; other statistics are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import xarray as xr

import zarrfeed
from zarrfeed import ConfigError, Data, Statistics, ZarrDataset

LEVELS = (1000.0, 850.0, 500.0)
N = 40

pytestmark = pytest.mark.filterwarnings("ignore:The data type:zarr.errors.UnstableSpecificationWarning")


def store(
    path: Path, *, levels: tuple[float, ...] = LEVELS, lat: tuple[float, ...] = (10.0, 20.0), names: str = "tz"
) -> Path:
    """Write fields whose mean differs from level to level, with the labels of each dimension."""
    rng = np.random.default_rng(2)
    shape = (N, len(levels), len(lat), 4)
    variables: dict[str, Any] = {
        name: (("time", "level", "lat", "lon"), rng.normal(250 + np.array(levels).reshape(1, -1, 1, 1) / 10, 9, shape))
        for name in names
    }
    coords = {"time": np.arange(N), "level": list(levels), "lat": list(lat), "lon": np.arange(4.0)}
    xr.Dataset(variables, coords).to_zarr(path, consolidated=False)
    return path


def opened(path: Path, *, with_targets: bool = False) -> Data:
    return zarrfeed.open(path, path if with_targets else None, sample_dim="time")


def means(data: Data, name: str = "t") -> list[float]:
    batch: Any = ZarrDataset(data)[list(range(len(data)))]
    sides = batch if isinstance(batch, tuple) else (batch,)
    return [float(side[name].to(dtype=side[name].dtype).mean()) for side in sides]


def is_normalised(mean: float) -> bool:
    return abs(mean) < 1


@pytest.mark.parametrize("sides", [None, "samples", "targets", ("samples", "targets")])
def test_auto_and_statistics_normalise_the_same_sides(tmp_path: Path, sides: Any) -> None:
    """Targets stayed in kelvin with "auto", and Statistics normalised them, in one training run."""
    data = opened(store(tmp_path / "a.zarr"), with_targets=True)
    train, validation = data.split((0.75, 0.25), by="contiguous")
    options = {} if sides is None else {"sides": sides}
    expected = [side in (sides or "samples") for side in ("samples", "targets")]
    file = tmp_path / "stats.json"
    zarrfeed.stats(train, output=file)
    assert [is_normalised(mean) for mean in means(train.normalize("auto", stats=file, **options))] == expected
    for statistics in (Statistics.load(file), zarrfeed.stats(train, **options)):
        normalised = validation.normalize(statistics, **options)
        assert [is_normalised(mean) for mean in means(normalised)] == expected
    pair = train.normalize((328.0, 10.0), **({"axis": None} | options))
    assert [abs(mean) < 5 for mean in means(pair)] == expected


def test_a_mapping_normalises_what_it_names_on_either_side(tmp_path: Path) -> None:
    data = opened(store(tmp_path / "a.zarr"), with_targets=True)
    assert all(map(is_normalised, means(data.normalize(zarrfeed.stats(data).mean_std()))))
    with pytest.raises(ConfigError, match=r"sides = .* is for pairs without names"):
        data.normalize({"targets": (0, 1)}, sides=["samples", "targets"])


@pytest.mark.parametrize("sides", ["target", [], ["samples", "samples"], None, 3])
def test_other_sides_are_refused(tmp_path: Path, sides: Any) -> None:
    data = opened(store(tmp_path / "a.zarr"))
    with pytest.raises(ConfigError, match=r"sides = .*must be 'samples', 'targets', or both"):
        data.normalize("auto", sides=sides)


def test_an_array_that_the_statistics_lack_is_named(tmp_path: Path) -> None:
    """It was left in its units, without a word."""
    few, many = opened(store(tmp_path / "few.zarr", names="t")), opened(store(tmp_path / "many.zarr"))
    with pytest.raises(
        ConfigError, match=r"normalize of samples\['z'\]: the statistics have no figures of it, only of t"
    ):
        many.normalize(zarrfeed.stats(few))
    assert is_normalised(means(few.normalize(zarrfeed.stats(many)))[0])


def test_figures_of_the_other_side_are_not_taken(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zarr", names="t")
    samples, both = opened(path), opened(path, with_targets=True)
    with pytest.raises(ConfigError, match=r"normalize of targets\['t'\]: .* no figures of it, only of t in samples;"):
        both.normalize(zarrfeed.stats(samples), sides=["samples", "targets"])
    assert is_normalised(means(samples.normalize(zarrfeed.stats(both)))[0])


@pytest.mark.parametrize("axis", ["level", None, ("lat", "lon")])
def test_other_labels_of_a_dimension_are_refused_by_name(tmp_path: Path, axis: Any) -> None:
    statistics = zarrfeed.stats(opened(store(tmp_path / "a.zarr")), axis=axis)
    others = {
        "turned": {"levels": LEVELS[::-1]},
        "others": {"levels": (1000.0, 850.0, 700.0)},
        "region": {"lat": (10.0, 30.0)},
    }
    for name, changed in others.items():
        data = opened(store(tmp_path / f"{name}.zarr", **changed))  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"normalize of samples\['t'\]: the statistics are of other labels: '"):
            data.normalize(statistics)
        data.normalize(statistics.mean_std())  # which is said to be the way
    same = opened(store(tmp_path / "same.zarr", levels=tuple(float(np.float32(n) + 1e-5) for n in LEVELS)))
    assert is_normalised(means(same.normalize(statistics))[0])


@pytest.mark.parametrize("axis", ["level", None])
def test_statistics_of_more_or_fewer_levels_are_refused_by_name(tmp_path: Path, axis: Any) -> None:
    whole, cut = opened(store(tmp_path / "a.zarr")), opened(store(tmp_path / "b.zarr", levels=LEVELS[:2]))
    for data, other in ((whole, cut), (cut, whole)):
        with pytest.raises(ConfigError, match=r"normalize of samples\['t'\]: the statistics .* 'level'"):
            data.normalize(zarrfeed.stats(other, axis=axis))


def test_arrays_without_labels_are_compared_by_their_axes() -> None:
    statistics = zarrfeed.stats({"x": np.arange(60.0).reshape(10, 3, 2)}, axis=1)
    zarrfeed.open({"x": np.ones((4, 3, 7))}).normalize(statistics)  # images of another size
    for shape, message in (
        ((4, 5, 2), "have 3 along 1, it has 5"),
        ((4, 3), "of samples with 2 axes"),
        ((4,), "along 1, which it lacks"),
    ):
        with pytest.raises(ConfigError, match=rf"normalize of samples\['x'\]: the statistics.*{message}"):
            zarrfeed.open({"x": np.ones(shape)}).normalize(statistics)


def test_patches_of_some_levels_have_the_figures_of_these(tmp_path: Path) -> None:
    data = opened(store(tmp_path / "a.zarr", names="t"))
    by_level = zarrfeed.stats(data, axis="level")
    options: dict[str, Any] = {"sampling": "grid"}
    for chosen in ([2, 0], [1], 1, slice(1, None)):
        patches = data.patch({"lat": 2, "lon": 4}, isel={"level": chosen}, **options)
        for normalised in (patches.normalize(by_level), patches.normalize("auto", axis="level")):
            got = ZarrDataset(normalised)[list(range(N))]["t"].double().numpy()
            np.testing.assert_allclose(got.mean((0, -2, -1)), 0, atol=1e-5)
        with pytest.raises(ConfigError, match=r"are of all 3 of 'level', patch\(isel=\) chooses .*axis='level'"):
            patches.normalize("auto")
        with pytest.raises(ConfigError, match=r"are of all 3 of 'level'"):
            patches.normalize(zarrfeed.stats(data))
    every = data.patch({"lat": 2, "lon": 4}, isel={"level": slice(None)}, **options)
    every.normalize("auto")


def test_labels_and_sides_are_kept_in_the_file_and_files_without_them_are_read(tmp_path: Path) -> None:
    file = tmp_path / "stats.json"
    data = opened(store(tmp_path / "a.zarr"), with_targets=True)
    statistics = zarrfeed.stats(data, axis="level", output=file)
    loaded = Statistics.load(file)
    assert loaded == statistics
    assert loaded.labels == statistics.labels == {"level": LEVELS, "lat": (10.0, 20.0), "lon": (0.0, 1.0, 2.0, 3.0)}
    assert [field.side for field in loaded.fields.values()] == ["samples", "samples", "targets", "targets"]
    content = json.loads(file.read_text())
    del content["labels"]
    for field in content["fields"].values():
        del field["side"]
    file.write_text(json.dumps(content))
    older = Statistics.load(file)
    assert older.labels == {}
    assert data.normalize(older, sides=("samples", "targets")) == data.normalize(
        statistics, sides=("samples", "targets")
    )


def test_text_and_dates_may_be_labels(tmp_path: Path) -> None:
    def fields(channels: list[str], day: str) -> Data:
        coords = {"c": channels, "day": np.array([day, "2020-01-02"], "M8[ns]")}
        values: npt.NDArray[Any] = np.arange(24.0).reshape(6, 2, 2)
        path = tmp_path / f"{''.join(channels)}{day}.zarr"
        xr.Dataset({"x": (("time", "c", "day"), values)}, coords).to_zarr(path, consolidated=False, mode="w")
        return zarrfeed.open(path, sample_dim="time")

    statistics = zarrfeed.stats(fields(["red", "blue"], "2020-01-01"), axis="c")
    fields(["red", "blue"], "2020-01-01").normalize(statistics)
    with pytest.raises(ConfigError, match="'c' 0 is 'blue', in the statistics 'red'"):
        fields(["blue", "red"], "2020-01-01").normalize(statistics)
    with pytest.raises(ConfigError, match=r"'day' 0 is '2019-12-31.*in the statistics '2020-01-01"):
        fields(["red", "blue"], "2019-12-31").normalize(statistics)
