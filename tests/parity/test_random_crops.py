"""Random crops of recordings, against a statement in NumPy; every row holds its own index."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr

import zarrfeed
from tests.support.examples import tries
from tests.support.runs import Run
from zarrfeed import ConfigError, Data, ZarrDataset, ZarrIterableDataset
from zarrfeed.plan.choice.crop_starts import CropStarts
from zarrfeed.plan.order.crop_order import draw_starts

#: Rows of each recording; some are shorter than a crop.
LENGTHS = (30, 3, 17, 8, 1, 40, 9, 25)
ENDS = np.cumsum(LENGTHS)
LENGTH = 8


def recordings(lengths: Any = LENGTHS, rows: int = 7) -> Data:
    total = int(np.sum(lengths))
    return zarrfeed.open(zarr.array(np.arange(total), chunks=(rows,))).segments(np.cumsum(lengths))


def of_two_dimensions() -> Data:
    array = zarr.array(np.zeros((64, 80)), chunks=(8, 16), dimension_names=("member", "time"))
    return zarrfeed.open(array, sample_dim=("member", "time")).segments(np.arange(80, 64 * 80 + 1, 80))


def crops_of(lengths: Any, length: int, pad: Any) -> list[list[tuple[int, ...]]]:
    """Return all crops of each recording that has any."""
    found, begin = [], 0
    for rows in lengths:
        end = begin + rows
        starts = range(begin, end - length + 1) if rows >= length else [begin] if pad is not None and rows else []
        crops = [
            tuple(row if row < end else (end - 1 if pad == "edge" else pad) for row in range(start, start + length))
            for start in starts
        ]
        found += [crops] if crops else []
        begin = end
    return found


def dataset_of(data: Data, epoch: int, **options: Any) -> ZarrIterableDataset:
    usual: dict[str, Any] = {"batch_size": 2, "shuffle": True, "seed": 5, "even": "off"}
    dataset = ZarrIterableDataset(data, **usual | options)
    dataset.set_epoch(epoch)
    return dataset


def read(data: Data, epoch: int = 0, **options: Any) -> list[np.ndarray]:
    return [np.asarray(batch) for batch in dataset_of(data, epoch, **options)]


def in_all(batches: list[np.ndarray]) -> list[tuple[int, ...]]:
    return sorted(map(tuple, np.concatenate(batches).tolist()))


def test_an_epoch_has_as_many_crops_of_every_recording_on_any_ranks_and_after_resuming() -> None:
    for seed in range(tries(usual=12, large=300)):
        check_random_recordings(np.random.default_rng(seed))


def check_random_recordings(random: np.random.Generator) -> None:
    lengths = random.integers(0, 60, random.integers(1, 20))
    length, n, pad = int(random.integers(1, 30)), int(random.integers(1, 4)), [None, "edge", -7][random.integers(3)]
    allowed = crops_of(lengths, length, pad)
    if not allowed:
        return
    data = recordings(lengths, int(random.integers(1, 30))).random_crop(length, n=n, pad=pad)
    assert len(data) == n * len(allowed)
    size = int(random.integers(1, 5))
    world = max(1, min(int(random.integers(1, 9)), len(data) // size))
    options: dict[str, Any] = {"shuffle": bool(random.integers(2)), "world_size": world, "batch_size": size}
    drawn = CropStarts(np.cumsum([len(crops) for crops in allowed]), n)
    flat = [crop for crops in allowed for crop in crops]
    for epoch in range(2):
        ranks = [read(data, epoch, rank=rank, **options) for rank in range(world)]
        got = in_all([batch for batches in ranks for batch in batches])
        assert got == sorted(flat[position] for position in draw_starts(drawn, 5, epoch))
        if options["shuffle"]:
            together = read(data, epoch, batch_size=size * world)
            assert [in_all([b[i] for b in ranks if i < len(b)]) for i in range(len(together))] == [
                in_all([batch]) for batch in together
            ]
    done = int(random.integers(0, len(ranks[0])))
    dataset = dataset_of(data, 1, rank=0, **options)
    begun = iter(dataset)
    for _ in range(done):
        next(begun)
    again = dataset_of(data, 0, rank=0, **options)
    again.load_state_dict(dataset.state_dict())
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in ranks[0][done:]]


def counts_of(data: Data, epoch: int = 0) -> list[int]:
    """Return the number of crops that an epoch has of each recording."""
    first = np.concatenate(read(data, epoch))[:, 0]
    counts: list[int] = np.bincount(np.searchsorted(ENDS, first, side="right"), minlength=len(ENDS)).tolist()
    return counts


def test_weights_of_recordings_are_exact_and_their_starts_drawn() -> None:
    """Weights are given for all recordings, for those that are long enough, or for rows, such as by a column."""
    crops, kind = recordings().random_crop(LENGTH), np.array([0, 9, 1, 0, 9, 0, 1, 0])
    long = np.array(LENGTHS) >= LENGTH
    weights = np.array([2, 7, 0, 4, 7, 6, 1, 7.0])
    expected = np.where(long, weights, 0) * 10 / weights[long].sum()
    described = [crops.weight(one, n=10) for one in (weights, weights[long], np.repeat(weights, LENGTHS))]
    assert len({data.resolved.expected.digest for data in described if data.resolved.expected is not None}) == 1
    for epoch in range(4):
        counts = np.array(counts_of(described[0], epoch))
        assert counts.sum() == 10
        assert ((counts >= np.floor(expected)) & (counts <= np.ceil(expected))).all()
    assert len({tuple(np.concatenate(read(described[0], epoch))[:, 0]) for epoch in range(4)}) == 4
    assert counts_of(crops.balance(kind, n=24)) == [3, 0, 6, 3, 0, 3, 6, 3]
    named = zarrfeed.open(zarr.array(np.arange(ENDS[-1]), chunks=(7,))).segments(ENDS)
    fifth = named.random_crop(LENGTH).weight(lambda segment: 1.0 * (segment == 5), n=4)
    assert counts_of(fifth) == [0, 0, 0, 0, 0, 4, 0, 0]
    run = Run.of(described[0], batch_size=2)
    assert run.on(3, epoch=1).sample_order().tolist() == run.on(1, epoch=1).sample_order().tolist()
    mixed = zarrfeed.mix([described[0], recordings().random_crop(LENGTH)], [1, 1], stop=100)
    assert "random crops: by weights of 6 recordings in a pass" in str(dataset_of(mixed, 0).explain())


def test_starts_of_a_recording_are_equally_likely() -> None:
    starts = CropStarts(np.array([10, 13]), each=3)
    drawn = np.stack([draw_starts(starts, 1, epoch) for epoch in range(500)])
    counts = np.bincount(drawn.ravel(), minlength=13)
    expected = np.r_[np.full(10, 150), np.full(3, 500)]
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_workers_stores_targets_and_values_of_recordings_go_along() -> None:
    lengths = (12, 20, 9)
    ends = np.cumsum(lengths)
    arrays = [np.arange(end - rows, end) for end, rows in zip(ends, lengths, strict=True)]
    data = zarrfeed.open(arrays, [-one for one in arrays]).random_crop(4, n=5)
    batches = list(zarrfeed.ZarrDataLoader(ZarrIterableDataset(data, batch_size=3, shuffle=True), num_workers=2))
    rows = np.concatenate([np.asarray(x) for x, _ in batches])
    assert (np.diff(rows) == 1).all()
    assert (np.concatenate([np.asarray(y) for _, y in batches]) == -rows[:, 0]).all()
    assert np.bincount(np.searchsorted(ends, rows[:, 0], side="right")).tolist() == [5, 5, 5]
    assert (np.searchsorted(ends, rows[:, 0], side="right") == np.searchsorted(ends, rows[:, -1], side="right")).all()

    named = zarrfeed.open({"x": np.arange(41)}).segments(ends).segment_field(kind=["a", "b", "c"])
    batch = next(iter(ZarrIterableDataset(named.random_crop({"x": 4}, mask=True, pad=0), batch_size=3)))
    assert batch["kind"] == ["a", "b", "c"]
    assert not batch["x_is_pad"].any()


def test_crops_stay_inside_of_their_part_of_a_split() -> None:
    train, _ = recordings().split((0.5, 0.5), by="contiguous")
    rows = np.concatenate([read(train.random_crop(4), epoch) for epoch in range(20)]).reshape(-1, 4)
    assert rows.max() < ENDS[-1] / 2 + 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_mixture_draws_crops_of_every_recording_in_each_pass(shuffle: bool) -> None:
    """Two sources of crops, one of windows, and one that is weighted."""
    others = [zarrfeed.open(np.arange(first, first + 60)).window(range(4)) for first in (1000, 2000)]
    one, two = recordings(), recordings((9, 20, 2), 5)
    sources = [one.random_crop(4), two.random_crop(4, n=2), others[0], others[1].weight(np.arange(57.0))]
    data = zarrfeed.mix(sources, [2, 1, 1, 1], stop=60)
    run = Run.of(data, shuffle=shuffle, batch_size=4)
    samples = np.concatenate([run.on(1, epoch=epoch).sample_order() for epoch in range(9)])
    source, position = run.schedule.order.taken_at(np.arange(len(samples)))  # type: ignore[attr-defined]
    first = np.cumsum([0, ENDS[-1], 31, 60])
    for number, (lengths, each) in enumerate(((LENGTHS, 1), ((9, 20, 2), 2))):
        mine, ends = source == number, np.cumsum(lengths)
        expected = each * (np.array(lengths) >= 4)
        drawn = set()
        for one_pass in range(position[mine].max() // expected.sum()):
            starts = samples[mine & (position // expected.sum() == one_pass)] - first[number]
            if len(starts) < expected.sum():  # passes overlap where they end
                continue
            recording = np.searchsorted(ends, starts, side="right")
            assert np.bincount(recording, minlength=len(ends)).tolist() == expected.tolist()
            assert (starts + 4 <= ends[recording]).all()
            drawn.add(tuple(np.sort(starts)))
        assert len(drawn) > 1
    for epoch, ranks, workers in ((1, 3, 0), (2, 8, 2)):
        begun = run.on(ranks, workers, epoch)
        delivered = [batch for batches in begun.all_batches() for batch in batches[:1]]
        delivered += [batch for batches in begun.after(1, 2, 3).all_batches() for batch in batches]
        whole = run.on(1, epoch=epoch).sample_order()
        assert np.sort(np.concatenate(delivered)).tolist() == np.sort(whole).tolist()
    with ZarrIterableDataset(data, batch_size=4, shuffle=shuffle, return_index=True) as dataset:
        assert "random crops: 2 of each of 2 recordings in a pass" in str(dataset.explain())
        for rows, _ in dataset:
            assert (np.diff(rows) == 1).all()


def test_crops_of_a_mixture_are_those_of_its_sources() -> None:
    one, two = recordings(), recordings((9, 20, 2), 5)
    after, before = zarrfeed.mix([one, two], [3, 1], stop=200).random_crop(5), [one.random_crop(5), two.random_crop(5)]
    orders = [Run.of(data).sample_order() for data in (after, zarrfeed.mix(before, [3, 1], stop=200))]
    assert orders[0].tolist() == orders[1].tolist()
    with pytest.raises(ConfigError, match="source 1 of the mixture has no recording as long as a crop"):
        zarrfeed.mix([one, two]).random_crop(25)
    with pytest.raises(ConfigError, match=r"sources of the mixture are random crops; call random_crop\(\) last"):
        after.select([0])


def test_crops_print_compare_and_pickle_and_are_explained() -> None:
    whole = recordings()
    data = whole.random_crop(LENGTH, n=2)
    assert repr(data).endswith(".random_crop(8, n=2)")
    assert data == whole.random_crop(LENGTH, n=2) != whole.random_crop(LENGTH)
    assert in_all(read(pickle.loads(pickle.dumps(data)))) == in_all(read(data))
    dataset = dataset_of(data, 0)
    assert "12 random crops an epoch, 2 of each of 6 recordings" in str(dataset.explain())
    assert "12 random crops an epoch" in data._repr_html_()
    assert "12 an epoch by random crops" in repr(dataset)


@pytest.mark.parametrize(
    ("describe", "message"),
    [
        (lambda: zarrfeed.open(np.arange(9)).random_crop(3), "the samples are one recording; say where"),
        (lambda: recordings().random_crop(0), "length = 0"),
        (lambda: recordings().random_crop(41), "the longest segment has 40 samples"),
        (lambda: recordings().random_crop(8).select([0]), r"samples are random crops; call random_crop\(\) last"),
        (
            lambda: recordings().random_crop(8).weight(np.ones(9)),
            "a value for each of the 8 recordings, for each",
        ),
        (lambda: recordings().random_crop(8).weight(np.ones(8)).balance(np.ones(8)), "weighted already"),
        (lambda: recordings().balance(np.ones(ENDS[-1])).random_crop(8), "samples are weighted"),
        (lambda: recordings().window((0, 1)).random_crop(8), r"window\(\) was called before"),
        (lambda: ZarrDataset(recordings().random_crop(8)), "drawn anew in each epoch"),
        (lambda: ZarrIterableDataset(recordings().random_crop(8), epoch_size=3), "epoch_size is not for random crops"),
        (
            lambda: dataset_of(of_two_dimensions().random_crop(3), 0),
            "is for one sample dimension, and these .* several",
        ),
        (lambda: zarrfeed.concat([recordings().random_crop(8)] * 2), "crop the result"),
    ],
)
def test_refusals_say_what_to_do(describe: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe()
