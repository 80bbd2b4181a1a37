"""What is done with a case: epochs, breaks, resumed runs, damage and repair, samples by index; each checked."""

from __future__ import annotations

import errno
import itertools
import json
import multiprocessing
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import zarr

import zarrfeed
from faults.oracle import assert_shared_out
from faults.soak.case import Case, Int64, StoredArray, WrongError
from zarrfeed import (
    ConfigError,
    CorruptChunkError,
    MemoryBudgetError,
    StoreReadError,
    ZarrDataLoader,
    ZarrDataset,
    ZarrfeedError,
    ZarrIterableDataset,
)

#: A larger budget may keep small arrays in memory, and have no room for that by some bytes.
_MOST_REFUSALS = 5
_NO_SAMPLES: Int64 = np.empty(0, np.int64)


@dataclass
class Tally:
    """What was done, counted.

    Attributes
    ----------
    counts
        Such as "epochs", "batches", "samples".
    errors
        Kind of error, all of them specified -> how often it came.
    children
        Processes of DataLoader workers.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    children: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Setup:
    """On how many ranks, and how, a stream is read."""

    world_size: int
    even: str
    batch_size: int | None
    drop_last: bool
    return_index: bool
    options: dict[str, Any]
    budget: int | str | None

    def make(self, case: Case, rank: int, tally: Tally, **more: Any) -> ZarrIterableDataset:
        """Return a rank's dataset; a budget that is refused becomes the least that is said to do."""

        def construct(budget: int | str | None) -> ZarrIterableDataset:
            return ZarrIterableDataset(
                case.samples,
                case.targets,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                return_index=self.return_index,
                rank=rank,
                world_size=self.world_size,
                even=self.even,  # type: ignore[arg-type]
                memory_budget=budget,
                **case.options,
                **self.options,
                **more,
            )

        budget = self.budget
        for _ in range(_MOST_REFUSALS):
            try:
                return construct(budget)
            except MemoryBudgetError as error:
                tally.errors["MemoryBudgetError"] += 1
                least = re.search(r"must be at least ([\d.]+ \w+)", str(error))
                if least is None:
                    raise
                budget = least[1]
        raise WrongError(f"memory_budget = {budget} is refused, and so was what the refusals before said would do")

    def delivered_of(self, announced: Int64) -> Int64:
        """Return what is delivered of a rank's samples."""
        if self.drop_last and self.batch_size is not None:
            return announced[: len(announced) // self.batch_size * self.batch_size]
        return announced


def draw_setup(r: Random, case: Case, **fixed: Any) -> Setup:
    """Draw how a stream is read; `fixed` are options that a saved state depends on."""
    n = len(case.chosen)
    options: dict[str, Any] = {
        "shuffle": r.random() < 0.7,
        "seed": r.getrandbits(r.choice((1, 20, 64))),
        "lanes": r.choice((None, None, r.randint(1, min(n, 12)), r.randint(1, n))),
        "mix": r.choice((1, 1, 1, r.randint(2, 5))),
        "num_threads": r.choice((1, 2, 2, 3, 4, None)),
    }
    if case.sharded and r.random() < 0.4:
        options["block"] = "shard"
    if r.random() < 0.1:
        options |= {"coalesce_gap": r.choice((0, 100, "1MiB")), "coalesce_limit": r.choice((1, 1000, "1MiB"))}
    return Setup(
        world_size=r.choice((1, 1, 1, 2, 3, 4)),
        even=r.choice(("drop", "repeat", "off")),
        batch_size=r.choice((None, 1, r.randint(2, 16), r.randint(2, 16), r.randint(2, 16), r.randint(1, n + 2))),
        drop_last=r.random() < 0.2,
        return_index=r.random() < 0.8,
        options=options | fixed,
        budget=r.choice((None, None, None, "8MiB", r.randint(1_000, 300_000))),
    )


@dataclass
class Leg:
    """What each rank received, and the state that it saved then."""

    delivered: list[Int64]
    states: list[dict[str, Any]]
    ended: bool


class Reader:
    """Reads a case on all ranks of a setup, side by side, and checks every batch."""

    def __init__(self, case: Case, setup: Setup, tally: Tally, **more: Any) -> None:
        self.case, self.setup, self.tally = case, setup, tally
        self.datasets: list[ZarrIterableDataset] = []
        try:
            for rank in range(setup.world_size):
                self.datasets.append(setup.make(case, rank, tally, **more))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all datasets."""
        for dataset in self.datasets:
            dataset.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def load(self, state: dict[str, Any]) -> bool:
        """Let all ranks go on from a state.

        Returns
        -------
        Whether they do: another budget may have no room for the lanes of the state, or make other blocks.
        """
        try:
            for dataset in self.datasets:
                dataset.load_state_dict(json.loads(json.dumps(state)))
        except MemoryBudgetError:
            self.tally.errors["MemoryBudgetError"] += 1
            return False
        except ConfigError as error:
            if "block_rows was" not in str(error):
                raise
            self.tally.errors["ConfigError, a state of other blocks"] += 1
            return False
        return True

    def read(self, epoch: int | None = None, steps: int | None = None, *, got: list[list[Int64]] | None = None) -> Leg:
        """Read on all ranks in turn, a batch each, up to so many steps.

        Parameters
        ----------
        epoch
            Which; None where a state was loaded.
        steps
            How many batches of each rank; None: all.
        got
            Where to put what was delivered, for those who want to know it after an error.
        """
        setup, ranks = self.setup, range(len(self.datasets))
        size = 1 if setup.batch_size is None else setup.batch_size
        announced: list[Int64 | None] = [None for _ in ranks]
        if epoch is not None:
            for rank, dataset in enumerate(self.datasets):
                dataset.set_epoch(epoch)
                announced[rank] = setup.delivered_of(dataset.sample_order(epoch))
        got = [] if got is None else got
        got += [[] for _ in ranks]
        passes: list[Iterator[Any] | None] = [iter(dataset) for dataset in self.datasets]
        done, taken = 0, [0 for _ in ranks]
        held: list[tuple[Any, Int64]] = []
        while any(p is not None for p in passes) and (steps is None or done < steps):
            for rank, one in enumerate(passes):
                if one is None:
                    continue
                try:
                    batch = next(one)
                except StopIteration:
                    passes[rank] = None
                    continue
                expected, known = None, announced[rank]
                if known is not None:
                    expected = known[taken[rank] : taken[rank] + size]
                if got[rank] and len(got[rank][-1]) < size:
                    raise WrongError(f"rank {rank}: a batch behind one of {len(got[rank][-1])}, batch_size = {size}")
                index = self.case.check_batch(
                    batch, expected, return_index=setup.return_index, single=setup.batch_size is None
                )
                if not 0 < len(index) <= size or (setup.drop_last and len(index) < size):
                    raise WrongError(f"rank {rank}: a batch of {len(index)}, batch_size = {size}")
                if done % 5 == 0:
                    held = [*held[-3:], (batch, index)]
                taken[rank] += len(index)
                got[rank].append(index)
                self.tally.counts["batches"] += 1
                self.tally.counts["samples"] += len(index)
            done += 1
        for batch, index in held:  # nothing is written to what was delivered
            self.case.check_batch(batch, index, return_index=setup.return_index, single=setup.batch_size is None)
        ended = all(p is None for p in passes)
        if ended:
            for rank, known in enumerate(announced):
                if known is not None and taken[rank] != len(known):
                    raise WrongError(f"rank {rank}: {taken[rank]} samples came, announced were {len(known)}")
        states = [dataset.state_dict() for dataset in self.datasets]
        return Leg([np.concatenate([*batches, _NO_SAMPLES]) for batches in got], states, ended)

    def check_shares(self, leg: Leg, samples: Int64) -> None:
        """Fail unless the ranks got each of `samples` once, or as `even` and `drop_last` say."""
        setup, n = self.setup, len(samples)
        together = np.concatenate(leg.delivered)
        place = np.searchsorted(samples, together)
        if not np.array_equal(samples[np.minimum(place, n - 1)] if n else _NO_SAMPLES, together):
            raise WrongError(f"samples that are not to be delivered: {np.setdiff1d(together, samples).tolist()}")
        if setup.drop_last and setup.batch_size is not None:
            size, world = setup.batch_size, setup.world_size
            share = {"drop": [n // world], "repeat": [-(-n // world)]}.get(
                setup.even, [len(range(k, n, world)) for k in range(world)]
            )
            wanted = [s // size * size for s in (share * world)[:world]]
            if [len(d) for d in leg.delivered] != wanted:
                raise WrongError(f"ranks got {[len(d) for d in leg.delivered]} samples, must be {wanted}")
            if setup.even != "repeat" and len(np.unique(together)) != len(together):
                raise WrongError("a sample came twice")
        elif n:
            starts = np.cumsum([0, *(len(d) for d in leg.delivered)])
            shares = [place[a:b] for a, b in itertools.pairwise(starts)]
            assert_shared_out(shares, n, even=setup.even)
        self.tally.counts["epochs"] += len(leg.delivered)


def read_epochs(r: Random, case: Case, tally: Tally) -> None:
    """Read whole epochs, after some that were left."""
    with Reader(case, draw_setup(r, case), tally) as reader:
        epoch = r.choice((0, 1, r.getrandbits(40)))
        for i in range(r.randint(1, 3)):
            if r.random() < 0.4:
                reader.read(epoch + i, steps=r.randint(0, 5))
                tally.counts["breaks"] += 1
            leg = reader.read(epoch + i)
            reader.check_shares(leg, case.chosen)
            setup = reader.setup
            whole = not setup.drop_last and setup.world_size == 1
            if whole and not setup.options["shuffle"] and not np.array_equal(leg.delivered[0], case.chosen):
                raise WrongError(f"not shuffled, and the order is {leg.delivered[0].tolist()}")


def resume(r: Random, case: Case, tally: Tally) -> None:
    """Save a run and resume it on other setups, again and again: each sample comes once."""
    setup = replace(draw_setup(r, case), return_index=True, drop_last=False, even="off")
    of_state = {name: setup.options[name] for name in ("shuffle", "seed", "mix", "block") if name in setup.options}
    rest = case.chosen
    state: dict[str, Any] | None = None
    for turn in range(r.randint(2, 4)):
        is_last = turn == 3 or r.random() < 0.3
        with Reader(case, setup, tally) as reader:
            if state is not None and not reader.load(state):
                return
            per_step = setup.world_size * (setup.batch_size or 1)
            steps = None if is_last else r.randint(0, max(0, len(rest) // per_step))
            leg = reader.read(epoch=3 if state is None else None, steps=steps)
        tally.counts["resumes"] += state is not None
        together = np.concatenate(leg.delivered)
        if len(np.setdiff1d(together, rest)) or (setup.even != "repeat" and len(np.unique(together)) < len(together)):
            raise WrongError(f"samples {together.tolist()}, left were {rest.tolist()}")
        state = leg.states[0]
        if leg.ended or state["epoch"] != 3:
            reader.check_shares(leg, rest)
            return
        if any(other != state for other in leg.states):
            raise WrongError(f"ranks in step saved different states: {leg.states}")
        rest = np.setdiff1d(rest, together)
        setup = replace(draw_setup(r, case, **of_state), return_index=True, drop_last=False)
        if not is_last:
            setup = replace(setup, even="off")
        elif not len(rest):
            return


def at_random(r: Random, case: Case, tally: Tally) -> None:
    """Ask for samples by index: in any order, repeated, counted from the end, one by one."""
    cache = r.choice((0, 10_000, "256MiB"))
    with_index = r.random() < 0.8
    dataset = ZarrDataset(
        case.samples,
        case.targets,
        return_index=with_index,
        num_threads=r.choice((1, 2, 4, None)),
        cache=cache,
        **case.options,
    )
    try:
        n = len(dataset)
        if n != len(case.chosen):
            raise WrongError(f"a length of {n}, must be {len(case.chosen)}")
        for _ in range(r.randint(1, 5)):
            request = [r.randint(-n, n - 1) for _ in range(r.choice((1, 3, r.randint(1, 60))))]
            case.check_batch(dataset[request], case.chosen[request], return_index=with_index)
            one = r.randint(-n, n - 1)
            case.check_batch(dataset[one], case.chosen[[one]], return_index=with_index, single=True)
            tally.counts["requests"] += 2
            tally.counts["samples"] += len(request) + 1
    finally:
        dataset.close()


def through_workers(r: Random, case: Case, tally: Tally) -> None:
    """Read through DataLoader workers, forked, left early and to the end."""
    setup = replace(draw_setup(r, case), world_size=1, even="off", return_index=True)
    setup = replace(setup, batch_size=r.randint(1, 16), budget=None)
    with Reader(case, setup, tally) as reader:
        (dataset,) = reader.datasets
        dataset.set_epoch(1)
        loader = ZarrDataLoader(dataset, num_workers=r.randint(1, 2), multiprocessing_context="fork")
        if r.random() < 0.5:
            for _ in zip(range(r.randint(1, 3)), loader, strict=False):
                tally.counts["batches"] += 1
            tally.counts["breaks"] += 1
        seen = []
        for batch in loader:
            tally.children |= {child.pid for child in multiprocessing.active_children() if child.pid is not None}
            seen.append(case.check_batch(batch, None, return_index=True))
        tally.counts["batches"] += len(seen)
        tally.counts["samples"] += sum(map(len, seen))
        tally.counts["loaders"] += 1
        reader.check_shares(Leg([np.concatenate([*seen, _NO_SAMPLES])], [], True), case.chosen)


class TransformError(Exception):
    """What a transform of the user raises."""


def fail_in_transform(r: Random, case: Case, tally: Tally) -> None:
    """Raise in `transform`: it reaches the caller, and the next epoch is whole."""
    armed = [r.randint(0, 3)]

    def transform(batch: Any) -> Any:
        if armed[0] == 0:
            raise TransformError
        armed[0] -= 1
        return batch

    setup = replace(draw_setup(r, case), world_size=1, even="off")
    with Reader(case, setup, tally, transform=transform) as reader:
        try:
            reader.read(0)
        except TransformError:
            tally.errors["of transform"] += 1
        armed[0] = -1
        reader.check_shares(reader.read(1), case.chosen)


def verify_store(r: Random, case: Case, tally: Tally) -> None:
    """Let `verify` find a sound store sound."""
    del r
    for stored in {id(f.stored): f.stored for f in case.fields.values() if f.stored is not None}.values():
        report = zarrfeed.verify(_opened(stored))
        if not report.ok:
            raise WrongError(f"verify of a sound array: {report.problems} {report.findings}")
        tally.counts["verified arrays"] += 1


def _opened(stored: StoredArray) -> Any:
    return zarr.open_array(stored.store, path=stored.prefix, mode="r")


def damage(r: Random, case: Case, tally: Tally) -> None:
    """Cut or empty a stored object: an error names it if it is needed; mended, all is right again."""
    found = [(name, stored, key) for name, stored in case.damageable for key in stored.list_keys()]
    if not found:
        return
    name, stored, key = r.choice(found)
    whole = stored.get(key)
    broken = whole[: r.choice((0, len(whole) // 2))]

    def hurt() -> None:
        stored.set(key, broken)

    def mend() -> None:
        stored.set(key, whole)

    _hurt_and_mend(r, case, tally, name, stored, key, CorruptChunkError, hurt, mend)


def fail_to_read(r: Random, case: Case, tally: Tally) -> None:
    """Let a stored object be unreadable: an error names it if it is needed; later, all is right again."""
    found = [(name, stored, key) for name, stored in case.damageable for key in stored.list_keys()]
    if not found or (case.faulty is None and case.local is None):
        return
    name, stored, key = r.choice(found)
    if case.faulty is not None:
        failures = case.faulty.failures

        def hurt() -> None:
            failures[key] = 1 << 30

        mend = failures.clear
    else:
        assert case.local is not None
        file = case.local.root / key
        aside = case.local.root / "aside"

        def hurt() -> None:
            file.rename(aside)
            file.mkdir()

        def mend() -> None:
            file.rmdir()
            aside.rename(file)

    _hurt_and_mend(r, case, tally, name, stored, key, StoreReadError, hurt, mend)


def _hurt_and_mend(
    r: Random,
    case: Case,
    tally: Tally,
    name: str,
    stored: StoredArray,
    key: str,
    kind: type[ZarrfeedError],
    hurt: Callable[[], None],
    mend: Callable[[], None],
) -> None:
    setup = replace(draw_setup(r, case), world_size=1, even="off", return_index=True)
    with Reader(case, setup, tally) as reader:
        order = setup.delivered_of(reader.datasets[0].sample_order(2))
        if r.random() < 0.3:
            reader.read(1, steps=r.randint(0, 4))
    needed = case.needs(key, name, order)
    got: list[list[Int64]] = []
    state = None
    hurt()
    try:
        with Reader(case, setup, tally) as reader:
            try:
                reader.read(2, got=got)
            finally:
                if got:
                    state = reader.datasets[0].state_dict()
    except kind as error:
        inside = key.removeprefix(f"{stored.prefix}/")
        if inside not in str(error) or (isinstance(error, StoreReadError) and not error.errno):
            raise WrongError(f"the error does not name {inside}: {error!r}") from error
        if isinstance(error, StoreReadError) and error.errno not in (errno.EIO, errno.EISDIR, errno.EINVAL):
            raise WrongError(f"the error has errno {error.errno}: {error!r}") from error
        tally.errors[kind.__name__] += 1
        needed = False
    else:
        tally.counts["damage not met"] += 1
        if needed:
            raise WrongError(f"{key} of {name} is broken, and every batch came")
    finally:
        mend()
    with Reader(case, setup, tally) as reader:
        if state is not None and state["epoch"] == 2 and r.random() < 0.7:
            used = np.concatenate([*got[0], _NO_SAMPLES])
            if reader.load(state):
                reader.check_shares(reader.read(), np.setdiff1d(case.chosen, used))
                tally.counts["resumes"] += 1
        reader.check_shares(reader.read(3), case.chosen)


#: Act -> how often, in proportion.
ACTS: dict[Callable[[Random, Case, Tally], None], float] = {
    read_epochs: 6,
    resume: 4,
    at_random: 3,
    damage: 2,
    fail_to_read: 1.5,
    fail_in_transform: 0.5,
    verify_store: 0.7,
    through_workers: 0.08,
}
