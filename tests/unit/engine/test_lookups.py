"""Which reader looks up the samples of a field, by its kind."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zarrfeed.engine.batch_arrays import BatchArrays, ByteArrays
from zarrfeed.engine.lookups import LookupOptions, make_lookup
from zarrfeed.engine.reader import Reader
from zarrfeed.engine.sample_lookup import SampleLookup, skipped_alone
from zarrfeed.engine.stats import Stats
from zarrfeed.engine.substitution import Skipped, SkippedField
from zarrfeed.plan.budget.field_needs import FieldNeeds
from zarrfeed.plan.budget.memory import plan_memory
from zarrfeed.plan.order.order import Order
from zarrfeed.plan.order.unfolding import ReadPlan
from zarrfeed.plan.samples.selection import Int64
from zarrfeed.spec.description.error_policy import Faults
from zarrfeed.spec.fields.field import IndexField
from zarrfeed.spec.fields.field_kind import FieldKind

pytestmark = pytest.mark.timeout(60)

N = 24


@dataclass(frozen=True)
class Doubled(FieldKind):
    """Twice the index of each sample, which a reader of its own computes."""

    num_samples: int
    name: str = "doubled"

    sample_shape: tuple[int, ...] = ()

    @property
    def dtype_name(self) -> str:
        return "int64"

    @property
    def is_lookup(self) -> bool:
        return True


class DoubledReader(SampleLookup[int]):
    """Doubles; sample 13 cannot be had."""

    def __init__(self, arrays: BatchArrays) -> None:
        self._arrays = arrays

    @property
    def source(self) -> None:
        return None

    def open(self, plan: ReadPlan, max_open_batches: int) -> None:
        pass

    def close(self) -> None:
        pass

    def take_what_is_good(self, index: Int64) -> tuple[Any, list[int]]:
        return 2 * index, [one for one in index.tolist() if one == 13]

    def skippable(self, number: int, name: str) -> dict[int, SkippedField]:
        return {number: skipped_alone(name)}

    def skipped(self, number: int, index: Int64, errors: list[int]) -> Skipped:
        raise NotImplementedError

    def stats(self) -> Stats:
        return Stats(images_decoded=1)

    def _error_of(self, bad: int) -> BaseException:
        return LookupError(f"there is no sample {bad}")


@make_lookup.register
def _(field: Doubled, options: LookupOptions) -> SampleLookup[Any]:  # noqa: ARG001 (of other kinds)
    return DoubledReader(options.arrays)


def options() -> Any:
    return SimpleNamespace(arrays=ByteArrays())


def test_another_kind_of_field_is_read_by_the_reader_that_is_named_for_it() -> None:
    fields = [IndexField(N), Doubled(N)]
    memory = plan_memory(FieldNeeds.of(fields), batch_size=4, num_threads=1, budget=1 << 30, min_open_batches=1)
    assert memory.list_bytes == 0  # which chunks that are stored would take
    reader = Reader(fields, batch_size=4, num_threads=1, memory=memory, arrays=ByteArrays(), policy=Faults())
    order = Order(num_samples=N, block_rows=4, shuffle=True, seed=0, lanes=1)
    reader.start(order.plan(0), 2)
    seen: list[int] = []

    def read_all() -> None:
        while (batch := reader.next()) is not None:
            index, doubled = batch
            index = np.asarray(index).view(np.int64).reshape(-1)
            assert doubled.tolist() == (2 * index).tolist()
            seen.extend(index.tolist())

    with pytest.raises(LookupError, match="there is no sample 13"):
        read_all()
    reader.stop()
    assert seen
    assert len(seen) == len(set(seen))
    assert 13 not in seen
    assert reader.stats().images_decoded == 1


def test_a_kind_without_a_reader_is_refused_by_its_name_and_not_when_a_batch_is_made() -> None:
    with pytest.raises(NotImplementedError, match=r"index: engine/lookups.py names no reader"):
        make_lookup(IndexField(N), options())
