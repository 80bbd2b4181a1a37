"""What is done with a case whose storage is sound: epochs, breaks, resumed runs, samples by index; each checked."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import zarr

import zarrfeed
from tests.faults.soak import harm
from tests.faults.soak.case import Case, StoredArray, WrongError
from tests.faults.soak.reader import NO_SAMPLES, Leg, Reader, Tally, draw_setup
from tests.support.flat import map_dataset
from zarrfeed import ZarrDataLoader


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
    of_state = setup.of_order()
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
    dataset = map_dataset(
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
        reader.check_shares(Leg([np.concatenate([*seen, NO_SAMPLES])], [], True), case.chosen)


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


#: Act -> how often, in proportion.
ACTS: dict[Callable[[Random, Case, Tally], None], float] = {
    read_epochs: 6,
    resume: 4,
    at_random: 3,
    harm.damage: 2,
    harm.fail_to_read: 1.5,
    harm.leave_out: 1,
    harm.skip: 3,
    harm.try_again: 1,
    harm.stall: 0.3,
    fail_in_transform: 0.5,
    verify_store: 0.7,
    through_workers: 0.08,
}
