"""A run that is saved in the middle of an epoch goes on with exactly the samples not yet used, on any other machine."""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from torch.utils.data import DataLoader

from tests.support import ranks as on_ranks
from tests.support.examples import slow, usual
from tests.support.flat import iterable_dataset
from tests.support.ranks import Cell, Ranks, take
from tests.support.shares import assert_shared_out, shuffled_order
from zarrfeed import ConfigError, ZarrDataLoader, ZarrIterableDataset

Int64: TypeAlias = npt.NDArray[np.int64]
State: TypeAlias = dict[str, Any]

N = 211  # a prime
CHUNK = 4
SETTINGS: dict[str, Any] = {"shuffle": True, "seed": 5, "lanes": 6}

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def write_store(path: Path, n: int = N, chunk: int = CHUNK) -> str:
    zarr.create_array(str(path), data=np.repeat(np.arange(n), 3).reshape(n, 3), chunks=(chunk, 3))
    return str(path)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("resume") / "samples.zarr")


@dataclass(frozen=True)
class Setup:
    """On how many ranks, with how many workers, in batches of what a run goes on."""

    world_size: int
    num_workers: int
    batch_size: int

    def cell(self, store: str, **settings: Any) -> Cell:
        """Return how a rank reads; with `rank`, in this process."""
        method = "fork" if self.num_workers else None
        return Cell(
            store, {**SETTINGS, "batch_size": self.batch_size, **settings}, "zarrfeed", self.num_workers, method
        )


@dataclass
class Leg:
    """What the ranks received between two saves, and the state that they saved."""

    batches: list[list[Int64]]
    state: State

    @property
    def samples(self) -> list[Int64]:
        return [np.concatenate([*batches, np.empty(0, np.int64)]) for batches in self.batches]

    @property
    def together(self) -> Int64:
        return np.concatenate(self.samples)


def through_json(state: State) -> State:
    text = json.dumps(state)
    assert len(text) < 2000, "a small dict"
    read_back: State = json.loads(text)
    assert read_back == state
    return read_back


def run(store: str, setup: Setup, state: State | None = None, steps: int | None = None, **settings: Any) -> Leg:
    """Load a state, take some steps (all unless told), and save; the ranks are simulated one after the other."""
    batches, states = [], []
    for rank in range(setup.world_size):
        cell = setup.cell(store, rank=rank, world_size=setup.world_size, **settings)
        dataset, loader = cell.make()
        if state is not None:
            loader.load_state_dict(copy.deepcopy(state))
        feed = iter(loader)
        batches.append(take(feed, steps))
        states.append(through_json(loader.state_dict()))
        del feed
        dataset.close()
    assert all(state == states[0] for state in states), "ranks in step save the same state"
    return Leg(batches, states[0])


def save_points(store: str, setup: Setup, **settings: Any) -> list[Leg]:
    """Run one epoch, and return what a save before each step, and one after the last, would have had."""
    per_rank = []
    for rank in range(setup.world_size):
        dataset, loader = setup.cell(store, rank=rank, world_size=setup.world_size, **settings).make()
        feed, seen, states = iter(loader), [], []
        for _ in range(len(loader)):
            states.append(through_json(loader.state_dict()))
            seen += take(feed, 1)
        del feed
        dataset.close()
        per_rank.append((seen, states))
    return [
        Leg([seen[:step] for seen, _ in per_rank], per_rank[0][1][step])
        for step in range(min(len(seen) for seen, _ in per_rank))
    ]


def rest_of(used: Int64) -> Int64:
    assert len(np.unique(used)) == len(used), "a sample came twice before the save"
    return np.setdiff1d(np.arange(N), used)


def assert_rest(used: Int64, leg: Leg, *, even: str, drop_last: bool = False, batch_size: int = 0) -> None:
    """Check that a leg that ran to the end of the epoch delivered what was not used: all of it, or as `even` says."""
    rest = rest_of(used)
    index = np.searchsorted(rest, leg.together)
    assert np.array_equal(rest[np.minimum(index, len(rest) - 1)], leg.together), "a used sample came again"
    if not drop_last:
        assert_shared_out([np.searchsorted(rest, samples) for samples in leg.samples], len(rest), even=even)
        return
    assert len(np.unique(leg.together)) == len(leg.together)
    assert even == "drop"
    steps = len(rest) // len(leg.batches) // batch_size
    assert [len(batches) for batches in leg.batches] == [steps] * len(leg.batches)


def grid(*, large: bool) -> Iterator[tuple[Setup, list[Setup]]]:
    """Yield a setup before the save, and those after it."""
    if large:
        grid_axes = (1, 2, 3, 4), (0, 1, 2, 3)
        for before in itertools.product(*grid_axes, (4, 7)):
            yield Setup(*before), [Setup(*after) for after in itertools.product(*grid_axes, (5,))]
        return
    without_workers = [Setup(w, 0, b) for w, b in itertools.product((1, 2, 3, 4), (4, 7))]
    for one, setup in enumerate(without_workers):
        # any world size, with one of the batch sizes: with both after the two batch sizes of a world size before
        yield setup, [after for other, after in enumerate(without_workers) if (one + other + other // 2) % 2 == 0]
    yield Setup(1, 2, 7), [Setup(1, 0, 7), Setup(2, 3, 4)]
    yield Setup(2, 3, 4), [Setup(3, 0, 7), Setup(1, 2, 5)]
    yield Setup(3, 0, 5), [Setup(2, 2, 7)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "afters" in metafunc.fixturenames:
        cases = list(grid(large=metafunc.config.getoption("--large")))
        ids = [f"world{s.world_size}-workers{s.num_workers}-batch{s.batch_size}" for s, _ in cases]
        metafunc.parametrize(("before", "afters"), cases, ids=ids)


def chosen(points: Sequence[Leg], *, large: bool) -> list[Leg]:
    """Choose save points: the start, after one batch, in the middle, and late ones."""
    last = len(points) - 1
    steps = {0, 1, last // 2, last} if large else {1, last // 2, last}
    return [points[step] for step in sorted(steps) if 0 <= step <= last]


#: Ways to share out: (even, drop_last).
_KINDS = (("drop", False), ("drop", True), ("repeat", False), ("off", False))


def test_on_any_other_setup_the_rest_of_the_epoch_follows(
    store: str, before: Setup, afters: list[Setup], request: pytest.FixtureRequest, record_property: Any
) -> None:
    """Save point x (world, workers, batch size) before x after: none missing, none twice."""
    points = chosen(save_points(store, before, even="off"), large=request.config.getoption("--large"))
    record_property("cells", len(points) * len(afters))
    for point, after in itertools.product(points, afters):
        assert_rest(point.together, run(store, after, point.state, even="off"), even="off")


@pytest.mark.parametrize(
    ("before", "after", "even", "drop_last"),
    [
        *((Setup(4, 0, 5), Setup(3, 0, 4), *kind) for kind in _KINDS),
        *usual([(Setup(2, 3, 4), Setup(4, 2, 3), *kind) for kind in _KINDS], 0, 2),
    ],
)
def test_ranks_stay_even_after_resuming(store: str, before: Setup, after: Setup, even: str, drop_last: bool) -> None:
    in_workers = 3 if drop_last or even == "repeat" else 7  # each leg starts 14 workers
    for steps in (in_workers,) if before.num_workers else (3, 7):
        point = run(store, before, steps=steps, even=even, drop_last=drop_last)
        leg = run(store, after, point.state, even=even, drop_last=drop_last)
        assert_rest(point.together, leg, even=even, drop_last=drop_last, batch_size=after.batch_size)
        if even != "off":
            assert len({len(batches) for batches in leg.batches}) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_of_unequal_length_save_the_same_state_up_to_the_last_step(store: str, num_workers: int) -> None:
    """Of 211 samples on 2 ranks, one is left when rank 1 has had all of its batches of 5."""
    setup = Setup(2, num_workers, 5)
    point = run(store, setup, steps=21, even="off")
    assert [len(samples) for samples in point.samples] == [105, 105]
    assert_rest(point.together, run(store, Setup(1, 0, 5), point.state, even="off"), even="off")
    ended = run(store, setup, even="off").state
    assert (ended["epoch"], ended["position"]) == (1, 0)


@pytest.mark.parametrize("before", [slow(Setup(1, 0, 7)), slow(Setup(3, 0, 4)), Setup(2, 2, 5)])
def test_without_shuffling_the_rest_follows_too(store: str, before: Setup) -> None:
    for steps in (1, 5):
        point = run(store, before, steps=steps, even="off", shuffle=False, lanes=None)
        for after in (Setup(1, 0, 5), Setup(2, 0, 7), Setup(2, 3, 4)):
            leg = run(store, after, point.state, even="off", shuffle=False, lanes=None)
            assert_rest(point.together, leg, even="off")


@pytest.mark.parametrize("walk", usual(range(12), 0, 1, 2))
def test_a_run_that_is_saved_again_and_again(store: str, walk: int, request: pytest.FixtureRequest) -> None:
    """Each leg runs on another setup and is saved; together the legs are one epoch."""
    rng = random.Random(walk)
    most_workers = 3 if request.config.getoption("--large") or walk == 0 else 0
    used, state = np.empty(0, np.int64), None
    while len(used) < N - 60:  # a leg takes at most 4 x 3 x 5 samples
        setup = Setup(rng.randint(1, 4), rng.randint(0, most_workers), rng.choice((1, 2, 3, 5)))
        leg = run(store, setup, state, rng.randint(0, 3), even="off")
        used, state = np.concatenate([used, leg.together]), leg.state
    assert_rest(used, run(store, Setup(2, 0, 4), state, even="off"), even="off")


def test_without_workers_the_same_setup_continues_with_the_same_batches(store: str) -> None:
    for world_size in (1, 3):
        setup = Setup(world_size, 0, 7)
        whole = run(store, setup)
        for point in save_points(store, setup):
            done = len(point.batches[0])
            leg = run(store, setup, point.state)
            for rank in range(world_size):
                expected = [b.tolist() for b in whole.batches[rank][done:]]
                assert [b.tolist() for b in leg.batches[rank]] == expected


@pytest.mark.parametrize("num_workers", [0, 2])
def test_after_the_rest_of_the_epoch_the_next_one_is_whole(store: str, num_workers: int) -> None:
    cell = Setup(1, num_workers, 7).cell(store)
    dataset, loader = cell.make()
    whole = [take(iter(loader)) for _ in range(4)]
    assert sorted(np.concatenate(whole[3])) == list(range(N))
    dataset, loader = cell.make()
    dataset.set_epoch(1)
    seen = take(feed := iter(loader), 4)
    state = loader.state_dict()
    del feed
    assert state["epoch"] == 1
    assert_same(seen, whole[1][:4])

    _, resumed = cell.make()
    resumed.load_state_dict(state)
    assert sorted(np.concatenate([*seen, *take(iter(resumed))])) == list(range(N))
    assert_same(take(iter(resumed)), whole[2])
    assert_same(take(iter(resumed)), whole[3])


def assert_same(got: Sequence[Int64], expected: Sequence[Int64]) -> None:
    assert [b.tolist() for b in got] == [b.tolist() for b in expected]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_loop_that_names_its_epochs_resumes_too(store: str, num_workers: int) -> None:
    """`for epoch in range(saved, last): loader.set_epoch(epoch)` is what every loop with a sampler does."""
    cell = Setup(1, num_workers, 7).cell(store)
    _, loader = cell.make()
    loader.set_epoch(1)
    seen = take(feed := iter(loader), 4)
    state = loader.state_dict()
    del feed
    _, resumed = cell.make()
    resumed.load_state_dict(state)
    rest, *later = [(resumed.set_epoch(epoch), take(iter(resumed)))[1] for epoch in (1, 2, 1)]
    assert sorted(np.concatenate([*seen, *rest])) == list(range(N))
    for epoch in later:
        assert sorted(np.concatenate(epoch)) == list(range(N)), "a rest is read once"
    resumed.load_state_dict(state)
    resumed.set_epoch(2)
    assert_same(take(iter(resumed)), later[0])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_from_before_the_first_batch_is_the_start_of_an_epoch(store: str, num_workers: int) -> None:
    cell = Setup(1, num_workers, 7).cell(store)
    _, loader = cell.make()
    fresh = through_json(loader.state_dict())
    first = take(iter(loader))
    _, resumed = cell.make()
    resumed.load_state_dict(fresh)
    assert_same(take(iter(resumed)), first)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_from_after_an_epoch_is_the_start_of_the_next(store: str, num_workers: int) -> None:
    cell = Setup(1, num_workers, 7).cell(store)
    _, loader = cell.make()
    take(iter(loader))
    ended = through_json(loader.state_dict())
    second = take(iter(loader))
    _, resumed = cell.make()
    resumed.load_state_dict(ended)
    assert_same(take(iter(resumed)), second)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_from_the_last_batch_holds_nothing_of_that_epoch(store: str, num_workers: int) -> None:
    """The loop received the last batch and did not ask for another: nothing is left, the next epoch is whole."""
    cell = Setup(1, num_workers, 7).cell(store)
    _, loader = cell.make()
    feed = iter(loader)
    assert len(take(feed, len(loader))) == len(loader)
    state = through_json(loader.state_dict())
    del feed
    second = take(iter(loader))
    _, resumed = cell.make()
    resumed.load_state_dict(state)
    left = take(iter(resumed))
    assert_same(left or take(iter(resumed)), second)


def test_a_dataset_is_saved_and_resumed_by_hand(store: str) -> None:
    """Without any loader: `state_dict` and `load_state_dict` of the dataset."""
    settings: dict[str, Any] = {**SETTINGS, "batch_size": 7, "return_index": True}
    dataset = iterable_dataset(store, **settings)
    seen = take(feed := iter(dataset), 9)
    state = through_json(dataset.state_dict())
    seen_later = take(feed)
    resumed = iterable_dataset(store, **settings)
    resumed.load_state_dict(state)
    assert_same(take(iter(resumed)), seen_later)
    # the running dataset may be wound back, too
    dataset.load_state_dict(state)
    assert_same(take(iter(dataset)), seen_later)
    assert sorted(np.concatenate([*seen, *seen_later])) == list(range(N))


@pytest.mark.parametrize("num_workers", [1, 3])
def test_the_workers_of_a_plain_dataloader_read_the_rest(store: str, num_workers: int) -> None:
    settings: dict[str, Any] = {**SETTINGS, "batch_size": 7, "return_index": True}
    dataset = iterable_dataset(store, **settings)
    seen = take(iter(dataset), 9)
    state = dataset.state_dict()
    resumed = iterable_dataset(store, **settings)
    resumed.load_state_dict(state)
    loader = DataLoader(resumed, batch_size=None, num_workers=num_workers, multiprocessing_context="fork", timeout=240)
    assert sorted(np.concatenate([*seen, *take(iter(loader))])) == list(range(N))
    assert sorted(np.concatenate(take(iter(loader)))) == list(range(N))
    with pytest.raises(ConfigError, match="DataLoader workers"):
        resumed.state_dict()


def test_a_loader_is_resumed_with_the_state_of_its_dataset_and_the_other_way(store: str) -> None:
    settings: dict[str, Any] = {**SETTINGS, "batch_size": 7, "return_index": True}
    dataset = iterable_dataset(store, **settings)
    feed = iter(dataset)
    take(feed, 3)
    state = dataset.state_dict()
    rest = take(feed)
    _, loader = Setup(1, 0, 7).cell(store).make()
    loader.load_state_dict(state)
    assert_same(take(iter(loader)), rest)
    other = iterable_dataset(store, **settings)
    _, loader = Setup(1, 0, 7).cell(store).make()
    take(feed := iter(loader), 3)
    other.load_state_dict(loader.state_dict())
    assert_same(take(iter(other)), rest)


def test_single_samples_are_counted_one_by_one(store: str) -> None:
    """Without a batch size the engine reads in batches of its own, of which a part may be used."""
    settings: dict[str, Any] = {**SETTINGS, "return_index": True}
    dataset = iterable_dataset(store, **settings)
    feed = iter(dataset)
    seen = [int(next(feed)[1]) for _ in range(10)]
    state = through_json(dataset.state_dict())
    later = [int(index) for _, index in feed]
    resumed = iterable_dataset(store, **settings)
    resumed.load_state_dict(state)
    assert [int(index) for _, index in resumed] == later
    assert sorted(seen + later) == list(range(N))


def test_what_was_prefetched_does_not_count(store: str) -> None:
    """Workers are far ahead of the consumer; what it received counts."""
    dataset = iterable_dataset(store, **SETTINGS, batch_size=3, return_index=True)
    loader = ZarrDataLoader(dataset, num_workers=2, prefetch_factor=16, multiprocessing_context="fork", timeout=240)
    feed = iter(loader)
    seen = take(feed, 5)
    state = through_json(loader.state_dict())
    later = take(feed)
    assert sorted(np.concatenate([*seen, *later])) == list(range(N))
    _, resumed = Setup(1, 0, 3).cell(store).make()
    resumed.load_state_dict(state)
    assert sorted(np.concatenate(take(iter(resumed)))) == sorted(np.concatenate(later))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_persistent_workers_take_a_state_too(store: str, num_workers: int) -> None:
    cell = Cell(
        store, {**SETTINGS, "batch_size": 7}, "zarrfeed", num_workers, "fork", persistent_workers=num_workers > 0
    )
    _, loader = cell.make()
    seen = take(iter(loader), 5)
    state = loader.state_dict()
    second = take(iter(loader))
    loader.load_state_dict(state)
    rest = take(iter(loader))
    assert sorted(np.concatenate([*seen, *rest])) == list(range(N))
    assert_same(take(iter(loader)), second)


def remove_used_up(store: Path, used: Int64, chunk: int) -> int:
    """Delete the chunks of which every sample was used; return how many."""
    whole = [c for c in range(-(-N // chunk)) if np.isin(np.arange(c * chunk, min(N, (c + 1) * chunk)), used).all()]
    for c in whole:
        (store / "c" / str(c) / "0").unlink()
    return len(whole)


@pytest.mark.parametrize("shuffle", [True, False])
def test_resuming_reads_no_chunk_that_was_used_up(tmp_path: Path, shuffle: bool) -> None:
    """Used-up chunks are deleted: a resumed run that asked for one would count it as missing."""
    store = tmp_path / "samples.zarr"
    write_store(store)
    settings: dict[str, Any] = {"shuffle": shuffle, "batch_size": 5, "return_index": True, "num_threads": 1}
    lanes = 3 if shuffle else None
    dataset = iterable_dataset(str(store), lanes=lanes, **settings)
    seen = np.concatenate(take(iter(dataset), 30))
    state = dataset.state_dict()
    removed = remove_used_up(store, seen, CHUNK)
    assert removed > 25
    resumed = iterable_dataset(str(store), lanes=lanes, **settings)
    resumed.load_state_dict(state)
    rest = np.concatenate(take(iter(resumed)))
    assert sorted([*seen, *rest]) == list(range(N))
    stats = resumed.stats()
    assert stats.chunks_missing == 0
    left = -(-N // CHUNK) - removed
    assert left <= stats.chunks_read <= left + (3 if shuffle else 0), "but for blocks that a lane's end cuts, each once"


def test_resuming_on_another_setup_reads_no_chunk_that_was_used_up(tmp_path: Path) -> None:
    store = tmp_path / "samples.zarr"
    write_store(store)
    point = run(str(store), Setup(2, 2, 5), steps=13)
    removed = remove_used_up(store, point.together, CHUNK)
    assert removed > 10
    for rank in range(3):
        dataset = iterable_dataset(
            str(store), **SETTINGS, batch_size=4, return_index=True, rank=rank, world_size=3, num_threads=1
        )
        dataset.load_state_dict(point.state)
        take(iter(dataset))
        assert dataset.stats().chunks_missing == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 6}, r"seed.*5.*6|seed.*6.*5"),
        ({"mix": 2}, r"mix.*1.*2|mix.*2.*1"),
        ({"shuffle": False, "lanes": None}, "shuffle"),
        ({"blocks": range(40)}, "blocks"),
    ],
)
def test_a_state_of_another_order_is_refused(store: str, changed: dict[str, Any], message: str) -> None:
    state = run(store, Setup(1, 0, 7), steps=3).state
    other = iterable_dataset(store, **{**SETTINGS, "batch_size": 7, **changed})
    with pytest.raises(ConfigError, match=message):
        other.load_state_dict(state)
    assert len(take_first(other)) > 0, "a state that was refused changed nothing"


def test_the_lanes_of_a_state_hold_for_the_rest_of_its_epoch(store: str) -> None:
    """Lanes that were chosen may depend on the batch size: those of the run that was saved go on, then our own."""
    point = run(store, Setup(2, 0, 7), steps=3)
    own = shuffled_order(store, epoch=1, seed=5, lanes=4)
    _, loader = Setup(1, 0, 5).cell(store, lanes=4).make()
    loader.load_state_dict(point.state)
    assert np.array_equal(np.concatenate(take(iter(loader))), shuffled_order(store, seed=5, lanes=6)[42:])
    assert np.array_equal(np.concatenate(take(iter(loader))), own)


def take_first(dataset: ZarrIterableDataset) -> Any:
    return next(iter(dataset))


@pytest.mark.parametrize(("n", "chunk", "message"), [(N + 1, CHUNK, "212"), (N, CHUNK + 1, r"\b5\b")])
def test_a_state_of_another_layout_is_refused(store: str, tmp_path: Path, n: int, chunk: int, message: str) -> None:
    state = run(store, Setup(1, 0, 7), steps=3).state
    other = iterable_dataset(write_store(tmp_path / "other.zarr", n, chunk), **SETTINGS, batch_size=7)
    with pytest.raises(ConfigError, match=message):
        other.load_state_dict(state)


def test_what_is_no_state_is_refused(store: str) -> None:
    dataset = iterable_dataset(store, **SETTINGS, batch_size=7)
    good = dataset.state_dict()
    for bad in ({}, {"epoch": 3}, [1], None, "state", {**good, "epoch": -1}, {**good, "epoch": "one"}):
        with pytest.raises(ConfigError):
            dataset.load_state_dict(bad)  # type: ignore[arg-type]
    for name in good:
        with pytest.raises(ConfigError):
            dataset.load_state_dict({key: value for key, value in good.items() if key != name})


def test_the_same_arrays_elsewhere_take_the_state(store: str, tmp_path: Path) -> None:
    """A copy of the store on another machine's disk is the same data."""
    point = run(store, Setup(1, 0, 7), steps=4)
    elsewhere = write_store(tmp_path / "copy.zarr")
    assert_rest(point.together, run(elsewhere, Setup(1, 0, 7), point.state), even="drop")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "steps"), [*((method, steps) for method in ("fork", "forkserver") for steps in (1, 4, 9)), ("spawn", 4)]
)
def test_real_ranks_save_and_resume(store: str, ranks: Ranks, method: str, steps: int, record_property: Any) -> None:
    """The same with torch.distributed and workers in real processes, which must not hang either."""
    setups = [(1, 2, 5), (2, 3, 4), (3, 1, 5), (4, 0, 3)]
    record_property("cells", len(setups) ** 2)
    for before, after in itertools.product(setups, setups):
        cells = [
            Cell(
                store,
                {**SETTINGS, "batch_size": batch_size, "even": "off"},
                "zarrfeed",
                num_workers,
                method if num_workers else None,
            )
            for _, num_workers, batch_size in (before, after)
        ]
        saved = ranks.run(on_ranks.save, cells[0], steps, world_size=before[0], limit_s=300)
        used = np.concatenate([b for batches, _ in saved for b in batches])
        resumed = ranks.run(on_ranks.resume, cells[1], saved[0][1], world_size=after[0], limit_s=300)
        assert_rest(used, Leg(resumed, {}), even="off")
