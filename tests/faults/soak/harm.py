"""What is done with a case whose storage is not sound: damage, errors, absence, waits; and what must come of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from tests.faults.soak.case import Case, Int64, StoredArray, WrongError
from tests.faults.soak.reader import NO_SAMPLES, Reader, Tally, draw_setup
from zarrfeed import CorruptChunkError, StoreReadError, ZarrfeedError

_NOTHING_LEFT = "no block of the epoch has a good sample"


@dataclass
class Harm:
    """One stored object that is not as it should be, for a while.

    Attributes
    ----------
    name
        Of the field.
    stored, key
        Which object.
    kind, errnos
        What reading it raises.
    hurt, mend
        Begin and end it.
    options
        Those of the dataset without which it is no error.
    """

    name: str
    stored: StoredArray
    key: str
    kind: type[ZarrfeedError]
    hurt: Callable[[], None]
    mend: Callable[[], None]
    errnos: tuple[int, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def inside(self) -> str:
        """The key below the array."""
        return self.key.removeprefix(f"{self.stored.prefix}/")

    def check_error(self, error: ZarrfeedError) -> None:
        """Fail unless an error is the one that is specified."""
        if not isinstance(error, self.kind) or self.inside not in str(error):
            raise WrongError(f"the error is no {self.kind.__name__} that names {self.inside}: {error!r}") from error
        if isinstance(error, StoreReadError) and error.errno not in self.errnos:
            raise WrongError(f"the error has errno {error.errno}, must be one of {self.errnos}: {error!r}") from error

    @contextmanager
    def hurting(self) -> Iterator[None]:
        """Do it, and mend it after."""
        self.hurt()
        try:
            yield
        finally:
            self.mend()


def draw_damage(r: Random, case: Case) -> Harm | None:
    """Cut or empty a stored object."""
    found = _any_object(r, case)
    if found is None:
        return None
    name, stored, key = found
    whole = stored.get(key)
    broken = whole[: r.choice((0, len(whole) // 2))]
    return Harm(name, stored, key, CorruptChunkError, lambda: stored.set(key, broken), lambda: stored.set(key, whole))


def draw_failure(r: Random, case: Case) -> Harm | None:
    """Let a stored object be unreadable: by an error of the store, or a folder in its place."""
    found = _any_object(r, case)
    if found is None:
        return None
    name, stored, key = found
    retries = (("retries", r.choice((0, 0, 0, 1))),)
    if case.faulty is not None:
        failures = case.faulty.failures
        return Harm(
            name,
            stored,
            key,
            StoreReadError,
            lambda: failures.update({key: 1 << 30}),
            failures.clear,
            (errno.EIO,),
            retries,
        )
    if case.local is None:
        return None
    file, aside = case.local.root / key, case.local.root / "aside"

    def hurt() -> None:
        file.rename(aside)
        file.mkdir()

    def mend() -> None:
        file.rmdir()
        aside.rename(file)

    return Harm(name, stored, key, StoreReadError, hurt, mend, (errno.EISDIR, errno.EINVAL), retries)


def draw_absence(r: Random, case: Case) -> Harm | None:
    """Delete a stored object, where that is an error."""
    found = _any_object(r, case)
    if found is None or any(f.stored is not None and f.stored.has_holes for f in case.fields.values()):
        return None
    name, stored, key = found
    whole = stored.get(key)
    return Harm(
        name,
        stored,
        key,
        StoreReadError,
        lambda: stored.delete(key),
        lambda: stored.set(key, whole),
        (errno.ENOENT,),
        (("missing", "raise"),),
    )


def _any_object(r: Random, case: Case) -> tuple[str, StoredArray, str] | None:
    found = [(name, stored, key) for name, stored in case.damageable for key in stored.list_keys()]
    return r.choice(found) if found else None


def damage(r: Random, case: Case, tally: Tally) -> None:
    """Cut or empty a stored object: an error names it if it is needed; mended, all is right again."""
    _raise_and_mend(r, case, tally, draw_damage(r, case))


def fail_to_read(r: Random, case: Case, tally: Tally) -> None:
    """Let a stored object be unreadable: an error names it if it is needed; later, all is right again."""
    _raise_and_mend(r, case, tally, draw_failure(r, case))


def leave_out(r: Random, case: Case, tally: Tally) -> None:
    """Delete a stored object: with `missing="raise"` an error names it; put back, all is right again."""
    _raise_and_mend(r, case, tally, draw_absence(r, case))


def _raise_and_mend(r: Random, case: Case, tally: Tally, harm: Harm | None) -> None:
    if harm is None:
        return
    setup = replace(draw_setup(r, case, **dict(harm.options)), world_size=1, even="off", return_index=True)
    with Reader(case, setup, tally) as reader:
        order = setup.delivered_of(reader.datasets[0].sample_order(2))
        if r.random() < 0.3:
            reader.read(1, steps=r.randint(0, 4))
    got: list[list[Int64]] = []
    state = None
    with harm.hurting():
        try:
            with Reader(case, setup, tally) as reader:
                try:
                    reader.read(2, got=got)
                finally:
                    if got:
                        state = reader.datasets[0].state_dict()
        except ZarrfeedError as error:
            harm.check_error(error)
            tally.errors[harm.kind.__name__] += 1
        else:
            tally.counts["damage not met"] += 1
            if case.needs(harm.key, harm.name, order).any():
                raise WrongError(f"{harm.key} of {harm.name} cannot be read, and every batch came")
    with Reader(case, setup, tally) as reader:
        if state is not None and state["epoch"] == 2 and r.random() < 0.7:
            used = np.concatenate([*got[0], NO_SAMPLES])
            if reader.load(state):
                reader.check_shares(reader.read(), np.setdiff1d(case.chosen, used))
                tally.counts["resumes"] += 1
        reader.check_shares(reader.read(3), case.chosen)


class Replacements:
    """Which sample came in the place of which, on all ranks and in all readings of an epoch."""

    def __init__(self, case: Case, harm: Harm) -> None:
        self._case, self._harm = case, harm
        self.by_sample: dict[int, int] = {}
        self.count = 0

    def check(self, announced: Int64, got: Int64) -> None:
        """Fail unless what differs is of the bad object, and replaced as in other readings."""
        bad = self._case.needs(self._harm.key, self._harm.name, announced)
        other = announced != got
        if (other & ~bad).any():
            raise WrongError(f"samples {announced[other & ~bad].tolist()} were replaced, their chunks are good")
        if not self._harm.stored.has_shards and (bad & ~other).any():
            raise WrongError(f"samples {announced[bad & ~other].tolist()} came, their chunk is bad")
        self.count += int(other.sum())
        for sample, came in zip(announced[bad].tolist(), got[bad].tolist(), strict=True):
            if self.by_sample.setdefault(sample, came) != came:
                raise WrongError(f"sample {sample} is replaced by {came}, elsewhere by {self.by_sample[sample]}")


def skip(r: Random, case: Case, tally: Tally) -> None:
    """Let bad objects be skipped: others take their samples' slots, the same on all ranks; mended, all is right."""
    harm = r.choice((draw_damage, draw_damage, draw_failure, draw_absence))(r, case)
    if harm is None:
        return
    options = dict(harm.options) | {"on_error": "skip", "max_errors": 1_000_000}
    first = replace(draw_setup(r, case, **options), return_index=True)
    of_order = first.of_order() | {"lanes": first.options["lanes"]}
    if first.options["lanes"] is None:
        first = replace(first, budget=None)
    other = replace(draw_setup(r, case, **options, **of_order), return_index=True, budget=first.budget)
    if not first.options["shuffle"]:  # then the order depends on the ranks
        other = replace(other, world_size=first.world_size, even=first.even)
    replacements = Replacements(case, harm)
    for setup in (first, other):
        replacements.count = 0
        with Reader(case, setup, tally) as reader:
            with harm.hurting():
                try:
                    reader.read(2, on_announced=replacements.check)
                except ZarrfeedError as error:
                    if _NOTHING_LEFT not in str(error):
                        raise
                    harm.check_error(error)
                    _check_nothing_left(case, harm, reader)
                    tally.counts["nothing left to put there"] += 1
                else:
                    tally.counts["epochs with what could be read"] += setup.world_size
                skipped = [chunk for dataset in reader.datasets for chunk in dataset.skipped_chunks()]
                tally.counts["chunks skipped"] += len(skipped)
                for chunk in skipped:
                    harm.check_error(chunk.cause)
                    if harm.inside not in chunk.key or chunk.epoch != 2:
                        raise WrongError(f"{chunk} is said to be skipped, {harm.inside} of epoch 2 is bad")
                if replacements.count and not skipped:
                    raise WrongError("samples were replaced, and no chunk is said to be skipped")
            reader.check_shares(reader.read(3), case.chosen)


def _check_nothing_left(case: Case, harm: Harm, reader: Reader) -> None:
    """Fail if a block has good samples alone: one of them could have taken any place."""
    blocks = case.chosen // reader.datasets[0].session.schedule.order.block_rows
    bad = case.needs(harm.key, harm.name, case.chosen)
    good = np.setdiff1d(blocks, blocks[bad])
    if len(good):
        raise WrongError(f"no block is said to have a good sample, blocks {good.tolist()} have no bad one")


def try_again(r: Random, case: Case, tally: Tally) -> None:
    """Let reads fail once or twice: they are tried again, and nothing is to be seen of it but the count."""
    if case.faulty is None:
        return
    setup = draw_setup(r, case, retries=4)
    keys = [(name, key) for name, stored in case.damageable for key in stored.list_keys()]
    if not keys:
        return
    with Reader(case, setup, tally) as reader:
        orders = [setup.delivered_of(dataset.sample_order(5)) for dataset in reader.datasets]
        failing = r.sample(keys, min(len(keys), r.randint(1, 3)))
        case.faulty.failures.update({key: r.choice((1, 1, 2)) for _, key in failing})
        try:
            reader.check_shares(reader.read(5), case.chosen)
        finally:
            case.faulty.failures.clear()
        tried = sum(dataset.stats().retries for dataset in reader.datasets)
        needed = any(case.needs(key, name, order).any() for name, key in failing for order in orders)
        if needed and not tried:
            raise WrongError(f"{failing} failed, and stats() counts no retry")
        tally.counts["retries"] += tried


def stall(r: Random, case: Case, tally: Tally) -> None:
    """Let the store not answer: after `timeout` an error names the chunk, and the next epoch is whole."""
    found = _any_object(r, case)
    if case.faulty is None or found is None:
        return
    name, _, key = found
    setup = replace(draw_setup(r, case, timeout=0.2, on_error=r.choice(("raise", "skip"))), even="off", world_size=1)
    case.faulty.stalls.add(key)
    try:
        with Reader(case, setup, tally) as reader:
            order = setup.delivered_of(reader.datasets[0].sample_order(6))
            reader.read(6)
            if case.needs(key, name, order).any():
                raise WrongError(f"{key} of {name} never came, and every batch did")
    except StoreReadError as error:
        if error.errno != errno.ETIMEDOUT or " chunk " not in str(error):  # a busy machine may be late with others
            raise WrongError(f"the error does not tell of a time limit: {error!r}") from error
        tally.errors["StoreReadError, timeout"] += 1
    finally:
        case.faulty.stalls.clear()
    setup = replace(setup, options=setup.options | {"timeout": 60.0})
    with Reader(case, setup, tally) as reader:
        reader.check_shares(reader.read(7), case.chosen)
