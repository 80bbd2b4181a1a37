"""The chunks that blocks need: against the rows of each sample, one by one, and without an entry for each of them."""

from __future__ import annotations

import itertools
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.cases import case
from tests.support.examples import tries
from zarrfeed.plan.blocks import chunks_over_blocks as module
from zarrfeed.plan.blocks.chunks_over_blocks import chunks_over_blocks
from zarrfeed.plan.samples import sample_set
from zarrfeed.plan.samples.field_rows import chunk_finder
from zarrfeed.plan.samples.row_runs import RowRuns
from zarrfeed.plan.samples.sample_set import as_samples
from zarrfeed.plan.samples.selection import Selection
from zarrfeed.spec.fields.field import StoredField
from zarrfeed.spec.samples.block_edges import Edges
from zarrfeed.spec.samples.row_map import NO_ROW, RowMap
from zarrfeed.spec.samples.sample_runs import SampleRuns
from zarrfeed.spec.samples.window import Borders, Pad, Window


def stored(path: Path, lengths: list[int], chunk: int) -> tuple[StoredField, Edges | None]:
    """Return the field, and the edges of the blocks, of an array, or of several, with chunks of so many rows."""
    for number, length in enumerate(lengths):
        zarr.create_array(path / f"{number}", data=np.arange(length, dtype="i4"), chunks=(chunk + number % 2,))
    paths = [path / f"{number}" for number in range(len(lengths))]
    data = zarrfeed.open(paths[0]) if len(lengths) == 1 else zarrfeed.concat(paths)
    fields, _ = data.resolved.planned(return_index=False, room=0, block="chunk", aligns=True)
    (field,) = fields.fields
    assert isinstance(field, StoredField)
    return field, fields.edges


def test_the_chunks_are_those_of_the_rows_of_each_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    n = 300
    lists = [np.flatnonzero(random.random(n - 80) < share) + 40 for share in (0.02, 0.3, 0.9)] + [
        np.r_[50:70, 71:90, 140:141, 200:220],
        np.arange(40, 250, 7),
        np.arange(40, 250),
    ]
    offsets: list[tuple[int, ...]] = [
        (0,),
        (0, 1),
        tuple(range(-9, 20)),
        (0, -37, 40),
        (0, 15),
        tuple(range(0, 40, 9)),
        (25, 3),
    ]
    for kind in ("one array", "stores", "padded", "padded stores", "list of rows", "even rows", "runs of rows"):
        lengths = [n] if "stores" not in kind else [130, 40, 130]
        base, edges = stored(tmp_path / kind, lengths, 10)
        for turn, of in enumerate(offsets):
            pad = Pad("edge", borders=Borders(np.array([0, 55, 60, n]))) if "padded" in kind else None
            field = replace(base, window=Window(of, pad=pad))
            if kind == "list of rows":
                rows = np.sort(random.integers(0, n, n))
                field = replace(field, rows=RowMap(np.where(random.random(n) < 0.1, -1, rows)))
            if kind == "even rows":
                field = replace(field, rows=RowMap(range(0, n - 150, 1) if of else range(0)))
            if kind == "runs of rows":
                begins = np.append(0, np.flatnonzero(random.random(n - 1) < 0.1) + 1)
                first = random.integers(0, n - np.diff(np.append(begins, n)) + 1)
                first[random.random(len(first)) < 0.2] = NO_ROW
                field = replace(field, rows=SampleRuns(begins, first, n, step=turn % 2))
            for chosen in lists[turn % 3 :: tries(3, 1)]:
                selection = Selection.of_samples(as_samples(chosen), 35, edges)
                samples = [selection.listed(np.array([held_index])) for held_index in range(len(selection.blocks))]
                held_indices = np.repeat(np.arange(len(samples)), [len(of_block) for of_block in samples]).tolist()
                ways = itertools.product(field.layouts, (0, 3, 5))
                for number, (layout, cut) in enumerate(ways, int(random.integers(3))):
                    find = chunk_finder(field, RowRuns(layout, cut))
                    wanted: set[tuple[int, int]] = set()
                    for offset in of:
                        of_samples = find(np.concatenate(samples), offset).tolist()
                        wanted.update(pair for pair in zip(held_indices, of_samples, strict=True) if pair[1] >= 0)
                    # a few at a time are dear: one way in three, by chance
                    for at_once in (1 << 18,) if number % 3 else (3, 1 << 18):
                        monkeypatch.setattr(module, "AT_ONCE", at_once)
                        monkeypatch.setattr(sample_set, "AT_ONCE", at_once)
                        found = list(
                            zip(*map(np.ndarray.tolist, chunks_over_blocks(selection, field, layout, cut)), strict=True)
                        )
                        with case(kind, of, len(chosen), at_once, cut):
                            assert found == sorted(wanted) if pad is None else wanted <= set(found)


def test_a_thousand_million_windows_of_stores_in_two_layouts_are_looked_up_by_their_blocks(tmp_path: Path) -> None:
    """Row by row, each layout took a thousand look-ups for each sample of the other one."""
    n = 10**8
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for number, path in enumerate(paths):
        zarr.create_array(path, shape=(n,), chunks=((1 << 16) + number % 2,), dtype="f4")
    data = zarrfeed.concat(paths).window(range(1000))
    fields, selection = data.resolved.planned(return_index=False, room=0, block="chunk", aligns=True)
    (field,) = fields.fields
    assert isinstance(field, StoredField)
    assert len(field.layouts) == 2
    assert selection is not None
    tracemalloc.start()
    found = [chunks_over_blocks(selection, field, layout) for layout in field.layouts]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    chunks = 3 * -(-n // (1 << 16))
    assert chunks - 9 <= sum(len(held_index) for held_index, _ in found) < 2 * chunks + 9
    assert peak < 50 << 20


def test_a_thousand_million_windows_are_looked_up_by_their_blocks(tmp_path: Path) -> None:
    """One entry for each sample of a step, and for each offset, would be tens of terabytes."""
    n = 10**9
    zarr.create_array(tmp_path / "x", shape=(n,), chunks=(1 << 20,), dtype="f4")
    data = zarrfeed.open(tmp_path / "x").select(slice(None, None, 3)).window(range(1000))
    fields, selection = data.resolved.planned(return_index=False, room=0, block="chunk", aligns=True)
    (field,) = fields.fields
    assert isinstance(field, StoredField)
    assert selection is not None
    tracemalloc.start()
    held_index, chunk = chunks_over_blocks(selection, field, field.layouts[0])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(held_index) == len(chunk) < 2 * -(-n // (1 << 20))
    assert peak < 50 << 20
