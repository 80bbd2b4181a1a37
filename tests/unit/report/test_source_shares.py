"""What an epoch takes of each source of a mixture: in the figures, and on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

import zarrfeed
from zarrfeed import ZarrIterableDataset
from zarrfeed.report.source_shares import SourceShares

LENGTHS = (700, 2000, 100)


def opened(folder: Path) -> list[str]:
    paths = []
    for number, length in enumerate(LENGTHS):
        paths.append(str(folder / f"{number}.zarr"))
        zarr.create_array(paths[-1], data=np.zeros(length, dtype="f4"), chunks=(10 + 10 * number,))
    return paths


def shares_of(dataset: ZarrIterableDataset) -> SourceShares:
    shares = dataset.explain().sources
    assert shares is not None
    return shares


@pytest.mark.parametrize("batching", ["per_sample", "per_batch"])
@pytest.mark.parametrize("stop", ["first", "all", "longest", 600])
def test_an_epoch_takes_of_each_source_what_its_order_has(stop: str | int, batching: str, tmp_path: Path) -> None:
    data = zarrfeed.mix(opened(tmp_path), [7, 2, 1], stop=stop, batching=batching)  # type: ignore[arg-type]
    dataset = ZarrIterableDataset(data, batch_size=20, shuffle=True)
    taken = np.bincount(data.source_of(dataset.sample_order(0)), minlength=3)
    sources = shares_of(dataset).sources
    assert [one.taken for one in sources] == taken.tolist()
    assert [one.length for one in sources] == list(LENGTHS)
    assert [one.passes for one in sources] == (taken / LENGTHS).tolist()


def test_the_page_names_sources_by_their_stores(tmp_path: Path) -> None:
    first, second, third = opened(tmp_path)
    data = zarrfeed.mix([[first, third], second], [3, 1], stop=1000)
    rows = ZarrIterableDataset(data, batch_size=10, shuffle=True, mixing={"lanes": 4}).explain().rows()
    begin = next(number for number, (name, _) in enumerate(rows) if name == "mixture")
    assert [text for _, text in rows[begin : begin + 5]] == [
        "of 2 sources; a batch has samples of all; an epoch ends after 1000 samples",
        f"0, {first} and 1 more store: 75 %, 750 of 800 samples an epoch",
        "  74 blocks in 4 lanes, mix 1",
        f"1, {second}: 25 %, 250 of 2000 samples an epoch",
        "  100 blocks in 4 lanes, mix 1",
    ]
    assert "stores" not in [name for name, _ in rows]
    assert next(text for name, text in rows if name == "samples").startswith("2800 in the array, 1000 delivered")


def test_sources_in_memory_have_numbers_and_many_of_them_are_not_all_listed() -> None:
    data = zarrfeed.mix([np.zeros(50)] * 20, stop="all", batching="per_batch")
    dataset = ZarrIterableDataset(data, batch_size=10, shuffle=True)
    texts = [text for _, text in shares_of(dataset).rows(None)]
    assert texts[0] == 'of 20 sources; a batch is of one source; an epoch ends by stop = "all"'
    assert sum(text.startswith("source ") for text in texts) == 12
    assert texts[-1] == "and 8 others"


def test_shares_are_of_the_epoch_where_weights_change() -> None:
    data = zarrfeed.mix([np.zeros(100), np.zeros(100)], {0: [1, 0], 480: [1, 1]}, stop=960)
    shares = shares_of(ZarrIterableDataset(data, batch_size=10, shuffle=True))
    order = shares.order
    for epoch, expected in ((0, [720, 240]), (1, [480, 480])):
        taken = [one.taken for one in SourceShares.of(order, epoch).sources]
        assert sum(taken) == 960
        assert taken == pytest.approx(expected, abs=8)
    assert shares.rows(None)[1][1] == "weights change once: below are the shares of epoch 0"


def test_a_perfect_shuffle_of_each_source_is_the_yardstick() -> None:
    rng = np.random.default_rng(0)
    data = zarrfeed.mix([np.zeros(6400), np.zeros(640)], [3, 1], stop=800)
    shares = shares_of(ZarrIterableDataset(data, batch_size=80, shuffle=True))
    drawn = []
    rows = 0
    for one, count in zip(shares.order.orders, (60, 20), strict=True):
        block = np.repeat(np.arange(one.num_blocks), one.rows_at(np.arange(one.num_blocks))[1])
        rows += len(block)
        drawn.append(np.mean([len(np.unique(rng.choice(block, count, replace=False))) for _ in range(500)]))
    assert rows == 7040
    assert shares.perfect_mix(80) == pytest.approx(sum(drawn), rel=0.05)
