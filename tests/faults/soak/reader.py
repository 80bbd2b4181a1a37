"""Reads a case as a stream, on all ranks side by side, and checks every batch."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from tests.faults.harness.oracle import assert_shared_out
from tests.faults.soak.case import Case, Int64, WrongError
from tests.support.flat import iterable_dataset
from zarrfeed import (
    ConfigError,
    MemoryBudgetError,
    ZarrIterableDataset,
)

#: A larger budget may keep small arrays in memory, and have no room for that by some bytes.
_MOST_REFUSALS = 5
NO_SAMPLES: Int64 = np.empty(0, np.int64)


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
            return iterable_dataset(
                case.samples,
                case.targets,
                batch_size=self.batch_size,
                drop_last=self.drop_last,
                return_index=self.return_index,
                rank=rank,
                world_size=self.world_size,
                even=self.even,
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

    def of_order(self) -> dict[str, Any]:
        """Return the options that the order, and so a saved state, depends on; lanes and budget do as well."""
        order = {name: self.options[name] for name in ("shuffle", "seed", "mix")}
        return order | {"block": self.options.get("block", "chunk")}

    def has_batches(self, n: int) -> bool:
        """Return whether a rank has a batch in an epoch of n samples."""
        longest = n // self.world_size if self.even == "drop" else -(-n // self.world_size)
        return longest >= (self.batch_size if self.drop_last and self.batch_size is not None else 1)

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
        if not setup.has_batches(len(case.chosen)):
            try:
                setup.make(case, 0, tally, **more).close()
            except ConfigError as error:
                if "an epoch has no batch" not in str(error):
                    raise
                tally.errors["ConfigError: no batch"] += 1
            else:
                raise WrongError(f"an epoch without a batch is not refused: {setup}")
            setup = replace(setup, even="off", drop_last=False)
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

    def read(
        self,
        epoch: int | None = None,
        steps: int | None = None,
        *,
        got: list[list[Int64]] | None = None,
        on_announced: Callable[[Int64, Int64], None] | None = None,
    ) -> Leg:
        """Read on all ranks in turn, a batch each, up to so many steps.

        Parameters
        ----------
        epoch
            Which; None where a state was loaded.
        steps
            How many batches of each rank; None: all.
        got
            Where to put what was delivered, for those who want to know it after an error.
        on_announced
            Called with the samples that were announced for a batch and those that came, where these may differ.
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
                    batch,
                    None if on_announced else expected,
                    return_index=setup.return_index,
                    single=setup.batch_size is None,
                )
                if on_announced is not None and expected is not None:
                    if len(index) != len(expected):
                        raise WrongError(f"rank {rank}: a batch of {len(index)}, must be {len(expected)}")
                    on_announced(expected, index)
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
        return Leg([np.concatenate([*batches, NO_SAMPLES]) for batches in got], states, ended)

    def check_shares(self, leg: Leg, samples: Int64) -> None:
        """Fail unless the ranks got each of `samples` once, or as `even` and `drop_last` say."""
        setup, n = self.setup, len(samples)
        together = np.concatenate(leg.delivered)
        index = np.searchsorted(samples, together)
        if not np.array_equal(samples[np.minimum(index, n - 1)] if n else NO_SAMPLES, together):
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
            shares = [index[a:b] for a, b in itertools.pairwise(starts)]
            assert_shared_out(shares, n, even=setup.even)
        self.tally.counts["epochs"] += len(leg.delivered)
