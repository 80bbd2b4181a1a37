"""`zarrfeed info --plot`: what is drawn is what is read, and each wrong argument is told in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr

pytest.importorskip("matplotlib")

import zarrfeed
from zarrfeed.base.errors import UnsupportedError
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.tools import cli
from zarrfeed.tools.plot.lane_rows import MOST_LANES, LaneRows
from zarrfeed.tools.plot.patch_figure import MOST_TILES, SEVERAL, PatchFigure, Section
from zarrfeed.tools.plot.row_figure import MOST_CELLS, NUM_FIRST, RowFigure

ROWS = 5  # of a chunk


def array(num_samples: int, rows: int = ROWS) -> zarr.Array[Any]:
    return zarr.create_array({}, shape=(num_samples, 2), chunks=(rows, 2), dtype="i4")


def orders(data: Any, epoch: int, ranks: int, **options: Any) -> list[Int64]:
    """Return what each rank says that it delivers."""
    return [
        zarrfeed.ZarrIterableDataset(data, rank=rank, world_size=ranks, **options).sample_order(epoch)
        for rank in range(ranks)
    ]


def check_lanes(lanes: LaneRows, order: list[Int64], num_lanes: int, labels: npt.NDArray[Any]) -> None:
    """Compare lanes with the samples that are delivered in their time; `labels` has a label for each sample."""
    assert len(lanes.row) > 0
    for row, label, first, until in zip(lanes.row, lanes.label, lanes.first_step, lanes.until, strict=True):
        rank = lanes.rank[row]
        steps = np.arange(first, min(until, len(order[rank])))
        of_lane = steps[(rank + len(order) * steps) % num_lanes == lanes.lane[row]]
        assert len(of_lane)
        assert {labels[sample] for sample in order[rank][of_lane]} == {label}


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [8, None])
def test_rows_are_drawn_as_they_are_read(ranks: int, shuffle: bool, batch_size: int | None) -> None:
    options: dict[str, Any] = {
        "shuffle": shuffle,
        "seed": 3,
        "batch_size": batch_size,
        "mixing": {"lanes": 6, "mix": 1},
    }
    data, size = array(203), batch_size or 1
    schedule = zarrfeed.ZarrIterableDataset(data, rank=0, world_size=ranks, **options).session.schedule
    drawn = RowFigure.of(schedule, 2, ranks)
    order = orders(data, 2, ranks, **options)
    assert drawn.edges.tolist() == [*range(0, 203, ROWS), 203]
    assert drawn.steps.tolist() == [len(one) for one in order]
    for rank, samples in enumerate(order):
        first_step: dict[int, int] = {}
        for step, sample in enumerate(samples):
            first_step.setdefault(sample // ROWS, step)
        expected = [first_step.get(block, np.nan) for block in range(41)]
        np.testing.assert_array_equal(drawn.when[rank], expected)
        first = drawn.first_batches[rank]
        assert first.shape == (NUM_FIRST, size)
        assert first.ravel().tolist() == samples[: NUM_FIRST * size].tolist()
    check_lanes(drawn.lanes, order, 6 if shuffle else ranks, np.arange(203) // ROWS)


def test_blocks_that_are_permuted_together_are_decoded_together() -> None:
    options: dict[str, Any] = {"shuffle": True, "batch_size": 4, "mixing": {"lanes": 3, "mix": 4}}
    data = array(300)
    drawn = RowFigure.of(zarrfeed.ZarrIterableDataset(data, **options).session.schedule)
    (order,) = orders(data, 0, 1, **options)
    delivered = np.array([np.flatnonzero(order // ROWS == block)[0] for block in range(60)])
    assert (drawn.when[0] <= delivered).all()
    assert set(drawn.when[0]) < set(delivered.astype(float)), "a group is decoded when the first of its rows is due"
    assert drawn.lanes.group_size.max() >= 4
    for first in np.unique(drawn.lanes.first_step):
        in_group = drawn.lanes.in_group[drawn.lanes.first_step == first]
        assert sorted(in_group) == list(range(len(in_group)))


def test_samples_that_are_not_read_are_not_coloured() -> None:
    data = zarrfeed.open(array(100)).select(range(20, 60))
    drawn = RowFigure.of(zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True).session.schedule)
    assert np.flatnonzero(~np.isnan(drawn.when[0])).tolist() == list(range(4, 12))


def test_several_stores_are_one_sample_axis() -> None:
    data = zarrfeed.concat([zarrfeed.open(array(12)), zarrfeed.open(array(33, rows=11))])
    drawn = RowFigure.of(zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True).session.schedule)
    assert drawn.edges.tolist() == [0, 5, 10, 12, 23, 34, 45]
    assert not np.isnan(drawn.when).any()


def test_slabs_are_drawn_where_chunks_are_cut() -> None:
    options: dict[str, Any] = {"shuffle": True, "batch_size": 4, "mixing": {"block": 2, "lanes": 6}}
    data = array(53)
    drawn = RowFigure.of(zarrfeed.ZarrIterableDataset(data, **options).session.schedule)
    (order,) = orders(data, 0, 1, **options)
    assert drawn.unit == "slab"
    assert drawn.edges.tolist() == [*(i for i in range(53) if i % ROWS in (0, 2, 4)), 53]
    slab = np.searchsorted(drawn.edges, order, side="right") - 1
    delivered = [np.flatnonzero(slab == one)[0] for one in range(len(drawn.edges) - 1)]
    np.testing.assert_array_equal(drawn.when[0], delivered)


def test_of_many_chunks_some_are_drawn() -> None:
    options: dict[str, Any] = {"shuffle": True, "batch_size": 4, "mixing": {"lanes": 90, "mix": 1}}
    data = array(2 * 4567, rows=2)
    drawn = RowFigure.of(zarrfeed.ZarrIterableDataset(data, **options).session.schedule)
    (order,) = orders(data, 0, 1, **options)
    assert drawn.every == 5
    assert len(drawn.block) == len(drawn.edges) - 1 <= MOST_CELLS
    assert ((drawn.edges[:-1] <= 2 * drawn.block) & (2 * drawn.block < drawn.edges[1:])).all()
    delivered = [np.flatnonzero(order // 2 == block)[0] for block in drawn.block]
    np.testing.assert_array_equal(drawn.when[0], delivered)
    assert (len(drawn.lanes.lane), drawn.lanes.num_rows) == (MOST_LANES, 90)


#: Memory for which columns are narrower than the volume.
LITTLE: dict[str, Any] = {"memory_budget": "100KiB", "num_threads": 1}


def tiles(size: dict[str | int, int], shape: tuple[int, ...], chunk: int = 8, **options: Any) -> zarrfeed.Data:
    volume = zarr.create_array({}, shape=shape, chunks=(chunk,) * len(shape), dtype="u1")
    return zarrfeed.open(volume).patch(size, **options)


def located(data: zarrfeed.Data, order: list[Int64]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Return the rank and the step of each patch, by its first voxel."""
    found: dict[tuple[int, ...], tuple[int, int]] = {}
    for rank, numbers in enumerate(order):
        _, start = data.locate(numbers)
        for step, one in enumerate(start.tolist()):
            assert found.setdefault(tuple(one), (rank, step)) == (rank, step)
    return found


def layers(section: Section) -> list[tuple[int, slice]]:
    """Return the layers of columns in a section: a row of tiles, and which of them."""
    walls = np.searchsorted(section.edges[1], section.walls)
    pairs = list(zip(walls[:-1].tolist(), walls[1:].tolist(), strict=True))
    return [(row, slice(*pair)) for row in range(len(section.edges[0]) - 1) for pair in pairs]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("patch", "shuffle"),
    [({}, True), ({"border": "drop"}, True), ({"border": "wrap"}, True), ({"sampling": "grid"}, False)],
)
def test_tiles_of_two_epochs_are_drawn_as_they_are_read(patch: dict[str, Any], shuffle: bool, ranks: int) -> None:
    data = tiles({0: 20, 1: 28}, (400, 600), chunk=64, **patch)
    options: dict[str, Any] = {"shuffle": shuffle, "batch_size": 6, "mixing": {"lanes": 2}, "even": "off", **LITTLE}
    schedule = zarrfeed.ZarrIterableDataset(data, rank=0, world_size=ranks, **options).session.schedule
    drawn = PatchFigure.of(schedule, 4, ranks)
    assert [one.epoch for one in drawn.sections] == ([4, 5] if shuffle else [4])
    assert (drawn.extent, drawn.size, drawn.chunk) == (
        ((400, 600), (20, 28), (64, 64)) if drawn.plane.along == 0 else ((600, 400), (28, 20), (64, 64))
    )
    for section in drawn.sections:
        order = orders(data, section.epoch, ranks, **options)
        found = located(data, order)
        extent = np.array(drawn.extent)
        period = extent if patch.get("border") == "wrap" else extent + 1000
        in_data = slice(None) if drawn.plane.along == 0 else slice(None, None, -1)

        def read(row: int, column: int) -> tuple[int, int]:
            start = np.array([section.edges[0][row], section.edges[1][column]])  # noqa: B023 - called in this turn
            start = np.where(period > 1000, start, start % period)  # noqa: B023
            return found[tuple(start[in_data].tolist())]  # noqa: B023

        assert len(section.walls) > 2
        assert section.when.size == len(found) == section.num_patches
        for row, columns in layers(section):
            of_layer = [read(row, column) for column in range(columns.start, columns.stop)]
            assert of_layer
            assert set(section.when[row, columns]) == {min(step for _, step in of_layer)}
            of_ranks = {rank for rank, _ in of_layer}
            assert set(section.rank[row, columns]) == ({SEVERAL} if len(of_ranks) > 1 else of_ranks)
        _, first = data.locate(order[0][:6])
        np.testing.assert_array_equal(section.boxes % period, first[:, in_data] % period)
        assert section.inside.all()
    if shuffle and not patch:
        assert drawn.sections[0].edges[0][0] != drawn.sections[1].edges[0][0], "epochs lay their tiles anew"


def test_a_section_goes_through_the_middle_of_a_volume() -> None:
    data = tiles({0: 4, 1: 4, 2: 4}, (20, 33, 26))
    options: dict[str, Any] = {"shuffle": True, "batch_size": 16, **LITTLE}
    drawn = PatchFigure.of(zarrfeed.ZarrIterableDataset(data, **options).session.schedule)
    (through,) = np.flatnonzero(drawn.plane.at >= 0)
    assert drawn.plane.at[through] == (10, 16, 13)[through]
    section = drawn.sections[0]
    (order,) = orders(data, 0, 1, **options)
    found = located(data, [order])
    here = {start: step for start, (_, step) in found.items() if 0 <= drawn.plane.at[through] - start[through] < 4}
    assert section.when.size == len(here)
    steps_of_layer: dict[int, set[int]] = {}
    for start, (_, step) in found.items():
        steps_of_layer.setdefault(start[drawn.plane.along], set()).add(step)
    for start, step in here.items():
        row = np.searchsorted(section.edges[0], start[drawn.plane.along])
        assert drawn.plane.across is not None
        column = np.searchsorted(section.edges[1], start[drawn.plane.across])
        assert section.when[row, column] <= step
        assert section.when[row, column] in steps_of_layer[start[drawn.plane.along]]
    _, first = data.locate(order[:16])
    assert section.inside.tolist() == [0 <= drawn.plane.at[through] - one[through] < 4 for one in first]
    assert 0 < section.inside.sum() < 16


def test_lanes_of_patches_show_the_columns_that_are_drawn() -> None:
    data = tiles({0: 20, 1: 28}, (400, 600), chunk=64)
    options: dict[str, Any] = {"shuffle": True, "batch_size": 6, "mixing": {"lanes": 4}, **LITTLE}
    dataset = zarrfeed.ZarrIterableDataset(data, **options)
    drawn = PatchFigure.of(dataset.session.schedule)
    section, (order,) = drawn.sections[0], orders(data, 0, 1, **options)
    assert len(section.column) == len(section.walls) - 1 > 1
    _, start = data.locate(order)
    across = drawn.plane.across
    assert across is not None
    column = section.column[np.searchsorted(section.walls, start[:, across], side="right") - 1]
    check_lanes(drawn.lanes, [np.arange(len(order))], 4, column)
    for lane, (along, middle) in zip(section.lane, section.lane_at, strict=True):
        step = lane  # the first sample of a lane
        first = start[step]
        assert first[drawn.plane.along] <= along <= first[drawn.plane.along] + drawn.size[0]
        wall = np.searchsorted(section.walls, first[across], side="right") - 1
        assert section.walls[wall] < middle < section.walls[wall + 1]


def test_of_many_tiles_some_are_drawn() -> None:
    data = tiles({0: 2, 1: 2}, (1500, 40), chunk=20, sampling="grid")
    drawn = PatchFigure.of(zarrfeed.ZarrIterableDataset(data, batch_size=8).session.schedule).sections[0]
    along = drawn.every.index(3)
    assert drawn.when.shape[along] == 250 <= MOST_TILES
    assert drawn.edges[along].tolist() == [*range(0, 1500, 6), 1500]


def test_patches_of_one_dimension_have_a_section() -> None:
    drawn = PatchFigure.of(
        zarrfeed.ZarrIterableDataset(tiles({0: 5}, (61,)), batch_size=4, shuffle=True).session.schedule
    )
    assert drawn.plane.across is None
    assert drawn.sections[0].when.shape == (len(drawn.sections[0].edges[0]) - 1, 1)


def test_the_largest_volume_is_drawn() -> None:
    data = zarrfeed.concat([tiles({0: 4, 1: 4}, shape) for shape in ((8, 9), (30, 20), (9, 9))])
    drawn = PatchFigure.of(zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True).session.schedule)
    assert (drawn.plane.volume, drawn.plane.num_volumes) == (1, 3)
    assert sorted(drawn.extent) == [20, 30]


def test_patches_that_are_no_tiles_are_refused() -> None:
    data = tiles({0: 4, 1: 4}, (30, 30), sampling="random", n=20)
    with pytest.raises(UnsupportedError, match="no tiles"):
        PatchFigure.of(zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=True).session.schedule)


@pytest.fixture
def store(tmp_path: Path) -> str:
    group = zarr.create_group(tmp_path / "train.zarr")
    group.create_array("image", shape=(40, 30, 20), chunks=(8, 8, 8), dtype="u1", dimension_names=("z", "y", "x"))
    group.create_array("label", shape=(40, 30, 20), chunks=(16, 16, 16), dtype="u1", dimension_names=("z", "y", "x"))
    return str(tmp_path / "train.zarr")


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ([], ["train.zarr: epoch 0, in order", "sample axis (samples)", "chunk is decoded", "sample 0"]),
        (["--shuffle", "--batch-size", "4", "--ranks", "2", "--epoch", "3"], ["epoch 3, shuffled, shared by 2 ranks"]),
        (
            ["--patch", "z=8,y=8,x=8", "--shuffle", "--batch-size", "4"],
            ["Epoch 0: ", "Epoch 1: ", " (voxels)", "(batches of 4)"],
        ),
        (["--patch", "0=8,y=8", "--stride", "y=4", "--border", "shift"], ["Patches overlap", "in order"]),
        (["--patch", "z=8", "--shuffle", "--lanes", "2", "--ranks", "2"], ["patches of 8 voxels", "rank 1"]),
    ],
)
def test_the_picture_says_what_it_shows(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], texts: list[str]
) -> None:
    """Ids of SVG are the same each time, and text is text: so pictures can be compared and searched."""
    pictures = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for picture in pictures if {"--epoch", "--border"} & {*options} else pictures[:1]:
        assert cli.main(["info", store, *options, "--plot", str(picture)]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert out.endswith(f"order drawn in {picture}\n")
    assert picture.read_bytes() == pictures[0].read_bytes()
    for text in texts:
        assert text in pictures[0].read_text()


def test_a_png_is_made(store: str, tmp_path: Path) -> None:
    assert cli.main(["info", store, "--plot", str(tmp_path / "order.PNG")]) == 0
    assert (tmp_path / "order.PNG").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_large_stores_make_small_pictures(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "rows.zarr", shape=(200_000, 1), chunks=(2, 1), dtype="u1")
    zarr.create_array(tmp_path / "volume.zarr", shape=(4096, 4096), chunks=(64, 64), dtype="u1")
    for store, options in (("rows.zarr", ["--ranks", "4"]), ("volume.zarr", ["--patch", "0=8,1=8"])):
        picture = tmp_path / "large.svg"
        argv = ["info", str(tmp_path / store), "--shuffle", "--batch-size", "8", *options, "--plot", str(picture)]
        assert cli.main(argv) == 0
        assert picture.stat().st_size < 1_000_000
        assert "oo many" in picture.read_text()


def test_patches_are_explained_without_a_picture(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--patch", "z=8,y=8,x=8", "--batch-size", "4", "--shuffle", "--seed", "7", "--ranks", "2"]
    options += ["--num-threads", "1"]
    assert cli.main(["info", store, *options]) == 0
    data = zarrfeed.open(store).patch({"z": 8, "y": 8, "x": 8})
    with zarrfeed.ZarrIterableDataset(
        data, batch_size=4, shuffle=True, seed=7, rank=0, world_size=2, num_threads=1
    ) as dataset:
        assert capsys.readouterr().out == f"{data}\n\n{dataset.explain()}\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plot", "order.pdf"], "order.pdf, must end with .svg or .png"),
        (["--plot", "order"], "order, must end with"),
        (["--patch", "z"], "z, must be sizes from 1, such as z=64,y=64,x=64"),
        (["--patch", "z=0"], "z=0, must be sizes"),
        (["--patch", "z=8,z=8"], "z=8,z=8, must be sizes"),
        (["--stride", "z=-1"], "z=-1, must be sizes"),
        (["--border", "mirror"], "invalid choice: 'mirror'"),
        (["--num-threads", "0"], "0, must be an integer of at least 1"),
        (["--ranks", "0"], "0, must be an integer of at least 1"),
        (["--epoch", "-1"], "-1, must be an integer"),
        (["--seed", "x"], "x, must be an integer"),
    ],
)
def test_wrong_options_are_told(
    store: str, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["info", store, *options])
    assert stop.value.code == cli.EXIT_ERROR
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stride", "z=4"], "--stride is for patches: give --patch, too"),
        (["--border", "drop"], "--border is for patches: give --patch, too"),
        (["--patch", "t=4"], "'t'"),
        (["--patch", "z=4", "--stride", "z=5"], "stride = 5"),
        (["--ranks", "33", "--plot", "order.svg"], "--ranks = 33, must be at most 32 with --plot"),
        (["--plot", "nowhere/order.svg"], "nowhere/order.svg: cannot be written"),
    ],
)
def test_options_that_do_not_fit_are_told_in_one_line(
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["info", store, *options]) == cli.EXIT_ERROR
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("zarrfeed: ")
    assert err.count("\n") == 1
    assert message in err


def test_without_matplotlib_the_command_says_what_to_install(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # what an import of a missing module finds
    assert cli.main(["info", store, "--plot", str(tmp_path / "order.svg")]) == cli.EXIT_ERROR
    assert capsys.readouterr().err == 'zarrfeed: --plot needs matplotlib: pip install "zarrfeed[plot]"\n'
    assert cli.main(["info", store]) == 0
