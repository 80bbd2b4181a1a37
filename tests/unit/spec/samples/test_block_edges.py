"""The edges of the blocks of many stores against a list of them."""

from __future__ import annotations

import numpy as np

from zarrfeed.spec.samples.block_edges import StoreEdges


def test_edges_are_those_of_each_store_after_another() -> None:
    rng = np.random.default_rng(3)
    for _ in range(200):
        lengths = rng.integers(1, 60, int(rng.integers(1, 12)))
        rows = rng.integers(1, 15, len(lengths))
        begin = np.concatenate(([0], np.cumsum(lengths)))
        edges = StoreEdges(begin, rows)
        stores = zip(begin[:-1].tolist(), begin[1:].tolist(), rows.tolist(), strict=True)
        listed = np.array([first for low, high, step in stores for first in range(low, high, step)])
        listed = np.append(listed, begin[-1])
        assert np.asarray(edges).tolist() == listed.tolist()
        assert len(edges) == len(listed)
        assert edges.max_rows == np.diff(listed).max()
        samples = np.arange(begin[-1])
        assert edges.block_of(samples).tolist() == (np.searchsorted(listed, samples, side="right") - 1).tolist()
        assert np.asarray(edges, dtype=np.int32).dtype == np.int32
