"""The demo, small: it must learn, measure, keep its promises or say which one it broke."""

from __future__ import annotations

import errno
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

pytest.importorskip("h5py")
pytest.importorskip("iris_sample_data")
pytest.importorskip("matplotlib")
pytest.importorskip("rich")

from tests.support.examples import tries
from zarrfeed.base.errors import ConfigError
from zarrfeed.tools import cli
from zarrfeed.tools.demo import generated, rates, training
from zarrfeed.tools.demo.climate import STATION_SPACING, ClimateStore, write_climate_stores
from zarrfeed.tools.demo.stores import build_store

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def climate(tmp_path_factory: pytest.TempPathFactory) -> tuple[ClimateStore, ClimateStore]:
    return write_climate_stores(tmp_path_factory.mktemp("climate"))


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> generated.GeneratedStore:
    return generated.generate_store(tmp_path_factory.mktemp("stream"), 8, ignore)


def ignore(*_: object) -> None:
    """Take the place of a callback."""


def read(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.asarray(zarr.open_array(store=path, mode="r")[...])


def test_the_whole_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random_state = torch.random.get_rng_state()
    argv = ["demo", "--dir", str(tmp_path / "kept"), "--epochs", "12", "--seed", "3", "--stream-mb", "16"]
    assert cli.main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for part in ("baseline", "held out", "limit", "times plain zarr", "explain", "kept in"):
        assert part in out
    assert (tmp_path / "kept" / "zarrfeed-demo.png").read_bytes().startswith(PNG_SIGNATURE)
    for name, shape in (("train", (240, 37, 49)), ("held_out", (100, 37, 49))):
        assert zarr.open_array(store=tmp_path / "kept" / f"{name}.zarr" / "field", mode="r").shape == shape
    assert zarr.open_array(store=tmp_path / "kept" / "stream.zarr" / "samples", mode="r").shape == (256, 4, 64, 64)
    assert not list((tmp_path / "kept").glob("*.partial"))
    assert torch.equal(torch.random.get_rng_state(), random_state)

    # a second run reuses all three stores
    assert cli.main([*argv, "--plot", str(tmp_path / "other.png")]) == 0
    assert capsys.readouterr().out.count("reused") == 3
    assert (tmp_path / "other.png").exists()

    # another size is another store: refused, not overwritten
    assert cli.main([*argv[:-1], "17"]) == cli.EXIT_ERROR
    assert "stream.zarr: is not the store that this run would write" in capsys.readouterr().err


def test_without_a_directory_only_the_plot_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert cli.main(["demo", "--epochs", "2", "--stream-mb", "1"]) == 0
    assert [p.name for p in (tmp_path / "here").iterdir()] == ["zarrfeed-demo.png"]
    assert list((tmp_path / "temporary").glob("zarrfeed*")) == []  # torch keeps a directory of its own there
    assert "kept in" not in capsys.readouterr().out


def test_without_matplotlib_the_demo_runs_and_says_what_a_plot_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what an import of a missing module finds
    monkeypatch.setitem(sys.modules, "zarrfeed.tools.demo.plot", None)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["demo", "--epochs", "2", "--stream-mb", "1"]) == 0
    assert 'none: it needs matplotlib: pip install "zarrfeed[plot]"' in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert cli.main(["demo", "--plot", "a.png"]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err == 'zarrfeed: --plot a.png: a plot needs matplotlib: pip install "zarrfeed[plot]"\n'


def test_a_model_that_learns_nothing_fails_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["demo", "--dir", str(tmp_path), "--epochs", "1", "--stream-mb", "1"]
    monkeypatch.setattr(training.Reconstruction, "forward", lambda self, x: self.baseline(x) + 0 * self.amounts.bias[0])
    assert cli.main(argv) == cli.EXIT_FAILED
    assert "does not beat the baseline on held-out fields: 0.32" in capsys.readouterr().err


def test_a_plot_that_cannot_be_written_is_told_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", "--plot", str(tmp_path / "nowhere" / "plot.png")]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert "--plot" in err


def test_no_held_out_field_is_in_training(climate: tuple[ClimateStore, ClimateStore]) -> None:
    train, held_out = (read(store.field) for store in climate)
    assert (train.shape, held_out.shape) == ((240, 37, 49), (100, 37, 49))
    differences = np.abs(held_out[:, None] - train[None]).max(axis=(2, 3))
    assert differences.min() > 0.5


def test_samples_are_the_stations_of_their_targets(climate: tuple[ClimateStore, ClimateStore]) -> None:
    for store in climate:
        field, stations = read(store.field), read(store.stations)
        np.testing.assert_array_equal(stations, field[:, ::STATION_SPACING, ::STATION_SPACING])
        assert 250 < field.min() < field.max() < 310
        years = read(store.path / "year")
        assert (years[0], years[-1]) == (store.first_year, store.last_year)


def test_the_baseline_keeps_the_stations_and_the_untrained_model_is_the_baseline(
    climate: tuple[ClimateStore, ClimateStore],
) -> None:
    train, held_out = (torch.from_numpy(read(store.field)) for store in climate)
    model = training.Reconstruction(train.mean(0), 1.0)
    stations = held_out[:, ::STATION_SPACING, ::STATION_SPACING]
    rebuilt = model.baseline(stations)
    torch.testing.assert_close(rebuilt[:, ::STATION_SPACING, ::STATION_SPACING], stations)
    torch.testing.assert_close(model(stations), rebuilt)


@pytest.mark.parametrize("seed", range(tries(1, 2)))
def test_training_beats_the_baseline_the_same_way_each_time(
    climate: tuple[ClimateStore, ClimateStore], seed: int
) -> None:
    threads = torch.get_num_threads()
    runs = [training.train(*climate, epochs=8, seed=seed, on_epoch=ignore) for _ in range(2)]
    assert runs[0].epochs == runs[1].epochs
    assert runs[0].beats_baseline
    assert runs[0].rmse_k < 0.95 * runs[0].baseline_rmse_k
    assert runs[0].stats.samples == 8 * 240
    assert torch.get_num_threads() == threads


def test_the_generated_store_compresses_as_said(stream: generated.GeneratedStore) -> None:
    assert stream.decoded_bytes == 8 << 20
    assert 2.1 < stream.decoded_bytes / stream.stored_bytes < 2.5
    samples = read(stream.samples)
    assert not (samples.view(np.uint32) & np.uint32(0x7FF)).any()
    np.testing.assert_array_equal(generated.checksums(samples), stream.checksums())


def test_plain_zarr_delivers_every_sample_once(stream: generated.GeneratedStore) -> None:
    batches = list(rates.plain_zarr(stream, seed=1, num_threads=2))
    index = torch.cat([index for _, index in batches])
    assert sorted(index.tolist()) == list(range(stream.num_samples))
    assert index.tolist() != list(range(stream.num_samples))
    np.testing.assert_array_equal(torch.cat([samples for samples, _ in batches]).numpy(), read(stream.samples)[index])


def test_the_check_finds_wrong_and_repeated_samples(stream: generated.GeneratedStore) -> None:
    def spoiled() -> Iterator[rates.IndexedBatch]:
        for number, (samples, index) in enumerate(rates.plain_zarr(stream, seed=1, num_threads=1)):
            if number == 0:
                samples[5, 0, 0, 0] += 1
                first = samples[:2], index[:2]
            yield samples, index
        yield first

    found = rates.check(spoiled(), stream)
    assert (found.num_samples, found.num_wrong, found.num_repeated) == (stream.num_samples + 2, 1, 2)


def test_both_loaders_deliver_the_store(stream: generated.GeneratedStore) -> None:
    comparison = rates.compare(stream, seed=0)
    assert comparison.zarrfeed_check == comparison.plain_check
    assert comparison.zarrfeed_check == rates.Check(
        stream.num_samples, 0, 0, int(stream.checksums().sum(dtype=np.int64))
    )
    assert comparison.zarrfeed.num_bytes == comparison.plain.num_bytes == stream.decoded_bytes
    assert comparison.stats.samples == rates.NUM_PASSES * stream.num_samples
    assert sum(comparison.stats.thread_shares.values()) == pytest.approx(1)


def test_a_limit_stops_a_loader_and_its_check(stream: generated.GeneratedStore) -> None:
    delivery = rates.measure(rates.plain_zarr(stream, seed=0, num_threads=1), limit_s=0)
    assert not delivery.complete
    assert delivery.num_bytes == stream.decoded_bytes // 2  # one batch of 64 in a store of 128 samples
    assert rates.check(rates.plain_zarr(stream, seed=0, num_threads=1), stream, limit_s=0).num_samples == 64


def test_a_store_larger_than_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"are free, the store of --stream-mb 1000000000000 takes"):
        generated.generate_store(tmp_path, 10**12, ignore)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def write(group: zarr.Group) -> None:
        group.create_array("half", data=np.zeros(3))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(tmp_path / "a.zarr", {"n": 1}, write)
    assert list(tmp_path.iterdir()) == []


def test_something_else_in_the_place_of_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zarr").mkdir()
    (tmp_path / "a.zarr" / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="remove it or name another --dir"):
        build_store(tmp_path / "a.zarr", {"n": 1}, ignore)
    assert (tmp_path / "a.zarr" / "mine.txt").read_text() == "keep"


def test_nothing_is_left_by_threads_that_still_write_after_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of zarr-python do: a chunk may come right after the others were removed."""
    removed: list[Path] = []
    remove = shutil.rmtree

    def remove_before_a_chunk_comes(path: Path, **options: Any) -> None:
        remove(path, **options)
        removed.append(path)
        if 1 < len(removed) < 4:  # the first call is before the store is written
            (path / "c").mkdir(parents=True)

    def write(_: zarr.Group) -> None:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(shutil, "rmtree", remove_before_a_chunk_comes)
    with pytest.raises(OSError, match="no room"):
        build_store(tmp_path / "a.zarr", {"n": 1}, write)
    assert len(removed) == 4
    assert list(tmp_path.iterdir()) == []
