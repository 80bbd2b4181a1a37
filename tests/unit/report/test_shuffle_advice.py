"""A shuffle that hardly shuffles says so, with the options that would mix it; others say nothing."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.codecs import BloscCodec

import zarrfeed
from zarrfeed.plan.blocks.slab_cost import SlabCost
from zarrfeed.report import shuffle_advice

N = 6000
LZ4 = BloscCodec(cname="lz4", clevel=1, blocksize=4096)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    zarr.create_array(tmp_path / "x", shape=(N, 4000), chunks=(375, 4000), dtype="f4")
    return tmp_path / "x"


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store whose chunks can be cut; one of them is stored."""
    path = tmp_path_factory.mktemp("cut") / "x"
    array = zarr.create_array(path, shape=(N, 2000), chunks=(300, 2000), dtype="f4", compressors=LZ4)
    array[:300] = np.random.default_rng(0).integers(0, 9, (300, 2000))
    return path


def made(data: Any, **options: Any) -> tuple[zarrfeed.ZarrIterableDataset, list[str]]:
    """Make a dataset, and return the warnings of its construction."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        dataset = zarrfeed.ZarrIterableDataset(data, batch_size=16, **{"shuffle": True, **options})
    return dataset, [str(one.message) for one in seen]


def options_in(text: str) -> dict[str, Any]:
    """Return the options that a warning names, as a user would copy them."""
    (found,) = re.findall(r"((?:memory_budget|mixing)=.*?) would do", text)
    return dict(eval(f"dict({found.replace(' with ', ', ')})"))


def test_a_poor_shuffle_warns_and_what_it_names_mixes(path: Path) -> None:
    data = zarrfeed.open(path).window((-1, 0, 4))
    dataset, (text,) = made(data)
    explained = dataset.explain()
    assert explained.shuffling is not None
    assert explained.shuffling.is_poor
    assert "hardly shuffles" in text
    assert f"{explained.shuffling.share:.0%}" in text
    assert f"{explained.shuffling.correlation:.2f}" in text
    page = str(explained)
    assert "limited by its shuffle" in page.splitlines()[0]
    assert f"remedy: {explained.remedy}" in page
    better, seen = made(data, **options_in(text))
    assert not seen
    measured = better.explain().shuffling
    assert measured is not None
    assert not measured.is_poor
    assert not better.explain().remedy


def test_memory_that_mixes_is_named(path: Path) -> None:
    """Blocks of 6 MB: 20 MB have room for two of them."""
    _, (text,) = made(path, memory_budget="30MiB", num_threads=1)
    options = options_in(text)
    assert set(options) == {"memory_budget"}
    dataset, seen = made(path, **options, num_threads=1)
    assert not seen
    measured = dataset.explain().shuffling
    assert measured is not None
    assert not measured.is_poor


def test_shorter_chunks_that_are_named_mix_no_better(path: Path, tmp_path: Path) -> None:
    dataset, (text,) = made(path, memory_budget="30MiB", num_threads=1)
    (rows,) = re.findall(r"so would chunks of `zarrfeed pack --sample-chunk (\d+)`", text)
    assert f"--sample-chunk {rows}" in dataset.explain().remedy
    zarrfeed.pack(path, tmp_path / "packed", sample_chunk=int(rows))
    packed, seen = made(tmp_path / "packed", memory_budget="30MiB", num_threads=1)
    assert not seen
    measured = packed.explain().shuffling
    assert measured is not None
    assert not measured.is_poor


def test_blocks_that_are_too_many_to_list_are_not_tried(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of blocks of one row each were listed, 16 GB for mixed crops of 10^9 rows."""
    options: dict[str, Any] = {"memory_budget": "30MiB", "num_threads": 1}
    (rows,) = re.findall(r"--sample-chunk (\d+)", made(path, **options)[1][0])
    monkeypatch.setattr(shuffle_advice, "_MOST_TRIED", N // (2 * int(rows)))
    assert "--sample-chunk" not in made(path, **options)[1][0]


@pytest.mark.parametrize(
    ("offsets", "options", "kinds"),
    [
        ((), {"memory_budget": "48MiB", "mixing": {"block": "chunk"}}, ["memory", "lanes", "auto", "pack"]),
        ((0, 1), {"memory_budget": "24MiB"}, ["memory", "rows", "pack"]),
        ((0, 1), {"memory_budget": "24MiB", "mixing": {"block": 60}}, ["memory", "lanes", "pack"]),
        ((0, 1), {"memory_budget": "48MiB", "mixing": {"block": "chunk"}}, ["memory and lanes", "pack"]),
    ],
)
def test_each_option_that_is_told_has_the_figures_beside_it(
    cut: Path, tmp_path: Path, offsets: tuple[int, ...], options: dict[str, Any], kinds: list[str]
) -> None:
    def read(path: Path) -> Any:
        return zarrfeed.open(path).window(offsets) if offsets else path

    options = {**options, "num_threads": 1}
    dataset, (text,) = made(read(cut), **options)
    remedy = dataset.explain().remedy
    assert f". {remedy}; docs" in text
    found = []
    for told in remedy.replace(" would do", "").replace(", and so would", ", so would").split(", so would "):
        option, share, correlation, decodes = re.fullmatch(
            r"(.*) \((\d+)%, ([\d.]+)(?:; each chunk decoded ([\d.]+) times)?\)", told
        ).groups()  # type: ignore[union-attr]
        if "pack" in option:
            found.append("pack")
            (rows,) = re.findall(r"--sample-chunk (\d+)", option)
            path = tmp_path / "packed"
            zarr.create_array(path, shape=(N, 2000), chunks=(int(rows), 2000), dtype="f4", compressors=LZ4)
            better, _ = made(read(path), **{**options, "mixing": {"block": "chunk"}})
        else:
            named: dict[str, Any] = eval(f"dict({option.replace(' with ', ', ')})")
            block = named.get("mixing", {}).get("block")
            kind = "auto" if block == "auto" else "lanes" if "lanes" in option else "rows" if block else "memory"
            found.append("memory and lanes" if len(named) == 2 else kind)
            better, _ = made(read(cut), **{**options, **named})
        explained = better.explain()
        measured = explained.shuffling
        assert measured is not None
        assert not measured.is_poor
        assert (f"{measured.share:.0%}", f"{measured.correlation:.2f}") == (f"{share}%", correlation), option
        counted = max(field.amplification for field in explained.fields)
        assert counted == pytest.approx(float(decodes or 1), abs=0.06 if decodes else 0.2)
    assert found == kinds


@pytest.mark.parametrize("offsets", [(), (0, 1, 2)])
def test_options_that_share_what_slabs_cost_have_the_orders_of_others_that_count_anew(
    cut: Path, monkeypatch: pytest.MonkeyPatch, offsets: tuple[int, ...]
) -> None:
    data = zarrfeed.open(cut).window(offsets) if offsets else zarrfeed.open(cut)
    dataset = zarrfeed.ZarrIterableDataset(data, batch_size=16, shuffle=True, return_index=True, seed=1)
    counted: list[int] = []
    count = SlabCost._count

    def noted(cost: SlabCost, rows: int) -> float:
        counted.append(rows)
        return count(cost, rows)

    monkeypatch.setattr(SlabCost, "_count", noted)
    find = dataset._session.editions.alternatives
    shared = find()
    assert shared is not None
    anew: list[int] = []
    for budget in (30 << 20, 90 << 20, 60 << 20):
        del counted[:]
        of_shared = shared.with_options(budget=budget)
        anew.append(len(counted))
        alone = find()
        assert alone is not None
        other = alone.with_options(budget=budget)
        assert of_shared.order == other.order
        assert of_shared.options == other.options
    assert anew[0] > 0
    assert anew[1:] == [0, 0]


def test_what_cannot_be_mixed_better_or_was_asked_for_does_not_warn(path: Path, tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "one", shape=(N, 10), chunks=(N, 10), dtype="f4")
    few = zarrfeed.open(path).select(slice(0, 4000)).window((-1, 0, 4))
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "one block": (tmp_path / "one", {}),
        "few samples": (few, {}),
        "in order": (zarrfeed.open(path).window((-1, 0, 4)), {"shuffle": False}),
        "lanes that were named": (zarrfeed.open(path).window((-1, 0, 4)), {"mixing": {"lanes": 1}}),
        "another rank": (zarrfeed.open(path).window((-1, 0, 4)), {"rank": 1, "world_size": 2}),
        "in memory": (np.zeros((N, 3), "f4"), {}),
        "well mixed": (path, {}),
    }
    for name, (data, options) in cases.items():
        _, seen = made(data, **options)
        assert not seen, name


def test_memory_that_would_mix_well_is_told_where_nobody_named_any(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "middle", shape=(8000, 128, 128), chunks=(16, 128, 128), dtype="f4")
    data = zarrfeed.open(array).window((0, 1))
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True}
    unnamed = zarrfeed.ZarrIterableDataset(data, **options).explain()
    assert unnamed.shuffling is not None
    assert not unnamed.shuffling.is_poor
    assert unnamed.shuffling.share < 0.9
    (named,) = re.findall(r'^memory_budget="(\w+)" would do', unnamed.remedy)
    better = zarrfeed.ZarrIterableDataset(data, memory_budget=named, **options).explain()
    assert better.shuffling is not None
    assert better.shuffling.share >= 0.9
    least = zarrfeed.ZarrIterableDataset(data, memory_budget="1GiB", **options).explain()
    assert (least.lanes, least.remedy) == (unnamed.lanes, "")
