"""Stores that have documents of both formats: `zarr_format` says which ones are read, whoever opens the store."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.counting_server import CountingServer
from zarrfeed.storage.access.access import ZarrFormat
from zarrfeed.tools import cli

FORMATS: tuple[ZarrFormat, ZarrFormat] = (2, 3)
DOCUMENTS = {2: {".zarray", ".zattrs", ".zgroup"}, 3: {"zarr.json"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an array `a` and a group `g`; the values of each format are its number."""
    made: Path = tmp_path_factory.mktemp("both")
    for number in FORMATS:
        one = made / f"{number}"
        values = np.full((6, 2), number, "i4")
        zarr.create_array(one / "a", data=values, chunks=(2, 2), zarr_format=number)
        zarr.create_group(one / "g", zarr_format=number).create_array("x", data=values, chunks=(2, 2))
        shutil.copytree(one, made, dirs_exist_ok=True)
        shutil.rmtree(one)
    assert {".zarray", "zarr.json"} <= {one.name for one in (made / "a").iterdir()}
    return made


def values_in(batch: Any) -> set[int]:
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple) else [batch]
    return {int(value) for part in parts for value in np.unique(part)}


def test_every_way_to_name_a_store_reads_the_format_that_is_named(folder: Path) -> None:
    array, group = str(folder / "a"), str(folder / "g")
    sources: dict[str, tuple[Any, ...]] = {
        "a path": (array,),
        "a group": (group,),
        "a mapping of paths": ({"one": array, "two": folder / "a"},),
        "a mapping to an array of a group": ({"one": f"{group}/x"},),
        "a list": ([array, array],),
        "a pattern": (str(folder / "[a]"),),
        "targets": (array, array),
        "a store": (zarr.storage.LocalStore(array),),
    }
    for name, source in sources.items():
        for number in FORMATS:
            data = zarrfeed.open(*source, zarr_format=number)
            dataset = zarrfeed.ZarrIterableDataset(data, batch_size=6)
            assert [values_in(batch) for batch in dataset][:1] == [{number}], (name, number)


def test_another_number_is_refused_by_each_function(folder: Path, tmp_path: Path) -> None:
    wrong: Any = 4
    for call in (
        lambda: zarrfeed.open(folder / "a", zarr_format=wrong),
        lambda: zarrfeed.verify(folder / "a", zarr_format=wrong),
        lambda: zarrfeed.pack(folder / "a", tmp_path / "out.zarr", kind="zarr", zarr_format=wrong),
    ):
        with pytest.raises(zarrfeed.ConfigError, match=r"^zarr_format = 4, must be 2, 3 or None$"):
            call()


def test_verify_checks_the_chunks_of_the_format(folder: Path) -> None:
    (folder / "a" / "0.0").rename(folder / "a" / "kept")
    try:
        for executor in (None, ThreadPoolExecutor(1)):
            missing = {
                number: zarrfeed.verify(folder / "a", zarr_format=number, executor=executor).arrays[0].missing
                for number in FORMATS
            }
            assert missing == {2: 1, 3: 0}, executor
        for number in FORMATS:
            options = ["--missing", "error", "--progress-file", "none", "--zarr-format", str(number)]
            assert cli.main(["verify", str(folder / "a"), *options]) == (number == 2)
    finally:
        (folder / "a" / "kept").rename(folder / "a" / "0.0")


@pytest.mark.parametrize("number", FORMATS)
def test_commands_take_the_format(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: ZarrFormat
) -> None:
    array, option = str(folder / "a"), ["--zarr-format", str(number)]

    def shown(*arguments: str) -> str:
        assert cli.main([*arguments, *option]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    assert f"Zarr v{number}" in shown("info", array)
    assert f"min {number}, max {number}" in shown("stats", array)
    shown("pack", array, "--kind", "zarr", "-o", str(tmp_path / "out.zarr"), "--verify")
    assert values_in(next(iter(zarrfeed.ZarrIterableDataset(tmp_path / "out.zarr", batch_size=6)))) == {number}
    if number == 2:  # it starts a process
        shown("bench", array, "--seconds", "0.05", "--batch-size", "2")


@pytest.mark.parametrize("number", FORMATS)
def test_a_cache_is_warmed_with_the_objects_of_the_format(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], number: ZarrFormat
) -> None:
    with CountingServer(folder) as server:
        arguments = ["cache", "warm", f"{server.url}/a", "--cache", str(tmp_path / "cache"), "--cache-version", "1"]
        assert cli.main([*arguments, "--zarr-format", str(number)]) == 0, capsys.readouterr().err
        asked = {path.rpartition("/")[2] for path in server.gets}
    assert asked & DOCUMENTS[number]
    assert not asked & DOCUMENTS[5 - number]
    assert ("0.0" in asked) == (number == 2)


def test_a_format_that_no_store_has_is_told_in_a_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["info", str(folder / "a"), "--zarr-format", "4"])
    assert "--zarr-format: invalid choice: 4" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["cache", "clear", str(folder), "--zarr-format", "2"])  # which opens no store
