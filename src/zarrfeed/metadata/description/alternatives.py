"""`Alternatives`: the schedules that a dataset would have with other options, or of a store with shorter chunks.

Invariant: each is the schedule of the dataset that a user would make with these options, its slabs included, so that
figures that are told of it are the figures that he gets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.metadata.description.slab_choice import SlabCosts, choose_schedule
from zarrfeed.metadata.group.batch_columns import Column, OpenedField
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.spec.arrays.array import ArraySpec
from zarrfeed.spec.fields.field import ResidentField, StoredField


@dataclass(frozen=True)
class Alternatives:
    """The schedules of the same samples with other options.

    Attributes
    ----------
    planning
        The options of the dataset.
    resolved
        The samples.
    """

    planning: Planning
    resolved: ResolvedData
    _costs: SlabCosts = field(default_factory=dict, init=False, compare=False, repr=False)
    _made: dict[Any, Schedule] = field(default_factory=dict, init=False, compare=False, repr=False)

    def with_options(
        self,
        *,
        budget: int | None = None,
        lanes: int | None = None,
        block: Literal["auto"] | int | None = None,
    ) -> Schedule:
        """Return the schedule with some of the options; the others stay, but for `lanes` and `mix`, which it chooses.

        Raises
        ------
        ConfigError
            If such blocks cannot be read.
        """
        asked = budget, lanes, block
        if asked not in self._made:  # a search asks again for the options that it found
            self._made[asked] = self._choose(*asked)
        return self._made[asked]

    def _choose(self, budget: int | None, lanes: int | None, block: Literal["auto"] | int | None) -> Schedule:
        whole, planning = self.planning.whole, self.planning
        mixing = replace(planning.mixing, lanes=lanes, mix=None, block=block or planning.mixing.block)
        options = replace(planning.options, budget=budget or planning.options.budget, lanes=lanes, mix=None)
        return choose_schedule(replace(whole, mixing=mixing, options=options), self.resolved, self._costs)[1]

    def with_chunks(self, rows: int) -> Schedule | None:
        """Return the schedule of whole chunks of so many rows, with the codecs that arrays have; None: it is not known.

        It is known of rows of a single store.
        """
        planning, resolved = self.planning.whole, self.resolved
        if resolved.patching is not None or resolved.blend is not None or resolved.given is not None:
            return None
        if not all(isinstance(one.field, ResidentField) or _is_one_array(one.field) for one in resolved.columns):
            return None

        def pack(spec: ArraySpec) -> ArraySpec:
            shape = list(spec.chunk_shape)
            shape[spec.sample_axis] = rows
            return replace(spec, chunk_shape=tuple(shape), shard=None)

        def packed(column: Column) -> Column:
            return column.with_field(column.field.with_specs(pack))

        mixing = replace(planning.mixing, lanes=None, mix=None, block="chunk")
        options = replace(planning.options, lanes=None, mix=None)
        shorter = replace(planning, mixing=mixing, options=options)
        return Schedule.make(*shorter.order(resolved.mapped(packed)), options)


def _is_one_array(field: OpenedField) -> bool:
    """Return whether a field is one array of rows, of one store, each of which is the sample with its index."""
    if not isinstance(field, StoredField) or field.parts is not None or field.others:
        return False
    return field.row_map is None and field.spec.merged is None
