"""Files of the first pass: each unit finds the samples that were dealt to it, and no others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from zarrfeed import CorruptChunkError
from zarrfeed.packing.targets.pack_layout import FieldLayout
from zarrfeed.packing.work.spill import read_spill, spill_parts
from zarrfeed.storage.chunks.chunk_encoder import Encoding

LAYOUTS = [
    FieldLayout("x", "number", (3,), "<i2", 1, 1, Encoding()),
    FieldLayout("name", "text", (), "|O", 1, 1, Encoding()),
    FieldLayout("blob", "bytes", (), "|O", 1, 1, Encoding()),
]
DTYPES = [np.dtype("i2"), np.dtype(object), np.dtype(object)]


@examples(30)
@given(units=st.lists(st.integers(0, 6), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_each_unit_gets_its_samples_back(tmp_path_factory: pytest.TempPathFactory, units: list[int], seed: int) -> None:
    count, rng = len(units), np.random.default_rng(seed)
    positions = rng.permutation(1000)[:count]
    x = np.arange(3 * count, dtype="i2").reshape(count, 3)
    name, blob = np.empty(count, object), np.empty(count, object)
    name[:], blob[:] = [f"ä{n}" * (n % 3) for n in range(count)], [bytes([n]) * (n % 4) for n in range(count)]
    path = tmp_path_factory.mktemp("spill") / "0"
    path.write_bytes(b"".join(spill_parts([x, name, blob], positions, np.array(units), 8)))
    for unit in range(8):
        wanted = np.flatnonzero(np.array(units) == unit)
        wanted = wanted[np.argsort(positions[wanted])]
        found, rows = read_spill(path, LAYOUTS, DTYPES, unit)
        assert np.array_equal(found, positions[wanted])
        assert np.array_equal(rows[0], x[wanted])
        assert list(rows[1]) == list(name[wanted])
        assert list(rows[2]) == list(blob[wanted])


def test_a_file_that_is_cut_is_an_error(tmp_path: Path) -> None:
    content = b"".join(spill_parts([np.arange(4, dtype="i2")], np.arange(4), np.zeros(4, np.int64), 1))
    path = tmp_path / "0"
    layout = [FieldLayout("x", "number", (), "<i2", 1, 1, Encoding())]
    for end in (1, 8, 20, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(CorruptChunkError, match="is no whole file of samples"):
            read_spill(path, layout, DTYPES[:1], 0)
