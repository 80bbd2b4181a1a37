"""The choice of the blocks of an epoch order: whole chunks, or slabs of them, chosen once for a run.

Invariant: where whole chunks mix well in the memory for which orders are chosen, the order is that of whole chunks.
The choice depends on the layout, the options and the header of one stored chunk, and neither on the machine nor on
ranks. It is made in the training process alone: `Planning.slab_rows` travels with a pickled dataset, and with states.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from zarrfeed.base.errors import ConfigError, CorruptChunkError, StoreReadError
from zarrfeed.metadata.description.planning import Planning
from zarrfeed.metadata.description.resolved import ResolvedData
from zarrfeed.plan.blocks.decoded_bytes import WHOLE_CHUNK, Grain
from zarrfeed.plan.blocks.slab_cost import LEAST_BYTES, MOST_DECODES, SlabCost
from zarrfeed.plan.blocks.slabs import Slabs
from zarrfeed.plan.budget.field_needs import goes_by_blocks
from zarrfeed.plan.order.carry import Overlap
from zarrfeed.plan.schedule.epoch_plan import Schedule
from zarrfeed.plan.schedule.shuffle_measure import GOOD_SHARE, ShuffleMeasure, measure_shuffle
from zarrfeed.spec.description.edition import FIRST_REACHES
from zarrfeed.spec.fields.array_sources import ArraySource, array_sources
from zarrfeed.spec.fields.field import Field, FieldSet
from zarrfeed.storage.chunks.blosc_blocks import stored_block_bytes

#: Rows that are shorter in a batch are not looked up one by one where windows need many of them: their chunks are
#: decoded whole (cpp/engine/task_builder.h).
_SMALL_ROW = 4096
#: So many of them are looked up all the same (`TaskBuilder::kMostListed`).
_MOST_LISTED = 1 << 14
#: The `strip_reaches` of orders that mix well with it.
_LONG_REACHES = 32
#: Slabs have to mix so much better than whole chunks, as a share of a perfect shuffle.
_LEAST_GAIN = 0.05
#: Slabs that decode again, and mix poorly all the same, have to mix so many times as well.
_GREAT_GAIN = 1.5

#: The costs of slabs, by the stored fields, the primary one, their grains, and whether lanes hand rows on.
SlabCosts = dict[tuple[Any, ...], SlabCost]


def choose_schedule(
    planning: Planning, resolved: ResolvedData, costs: SlabCosts | None = None
) -> tuple[Planning, Schedule]:
    """Return a planning with the slabs that suit layout and memory, and the schedule of a description.

    Parameters
    ----------
    costs
        The costs that were counted for other options of the same samples; those that are counted here are added.

    Raises
    ------
    ConfigError
        If slabs are named, and the chunks of the array that makes the blocks cannot be cut.
    StoreReadError, CorruptChunkError
        If the header of a stored chunk cannot be read.
    """
    named = planning.mixing.block
    fields, order = planning.order(resolved)
    whole = Schedule.make(fields, order, planning.options)
    if not order.shuffle or not planning.may_cut or (named in (None, "auto") and _has_small_blocks(fields)):
        return planning, whole
    reason = _why_whole(fields, resolved)
    if isinstance(named, int):
        if reason:
            raise ConfigError(f"mixing: block = {named}, but {reason}; must be 'chunk', or left out")
        is_cut = named < max(layout.spec.rows_per_chunk for layout in _primary(fields).layouts)
        if not is_cut:
            return planning, whole
        grains = find_grains(fields)
        return _carrying(planning, resolved, grains, named) or _cut(planning, resolved, grains, named)
    trials = _Trials(planning, resolved, whole, {} if costs is None else costs)
    must_cut = named == "slab"
    if not must_cut and (reason or planning.takes_shards(resolved) or trials.is_good(0, False)):
        return planning, whole
    grains = () if reason else find_grains(fields)  # reads a chunk, which nobody does for an order that is good
    if not reason and all(one == WHOLE_CHUNK for one in _grains_of_primary(fields, grains)):
        reason = f"chunks of {_primary(fields).label} are decoded as a whole"
    if reason and must_cut:
        raise ConfigError(f"mixing: block = 'slab', but {reason}; must be 'chunk', or left out")
    return (planning, whole) if reason else _best(trials, grains, must_cut=must_cut)


def with_slabs(planning: Planning, resolved: ResolvedData, rows: int, *, strip_reaches: int) -> Planning:
    """Return a planning with slabs of so many rows, those of a state, which lanes may hand on; 0: of whole blocks.

    Raises
    ------
    ConfigError
        If these samples have no slabs.
    StoreReadError, CorruptChunkError
        As in `find_grains`.
    """
    if (rows, strip_reaches) == (planning.slab_rows, planning.strip_reaches):
        return planning
    if not rows:
        return planning.whole
    fields, _ = planning.whole.order(resolved)
    reason = _why_whole(fields, resolved)
    if reason:
        raise ConfigError(f"the state is of an order of slabs of {rows} rows, but {reason}")
    grains = planning.grains or find_grains(fields)
    return replace(planning, slab_rows=rows, grains=grains, strip_reaches=strip_reaches)


def find_grains(fields: FieldSet) -> tuple[Grain, ...]:
    """Find the grain of each of the `array_sources`.

    Raises
    ------
    StoreReadError, CorruptChunkError
        If the header of a stored chunk cannot be read.
    """
    return tuple(_grain_of(source, fields) for source in array_sources(fields.fields))


def known_grains(fields: FieldSet) -> tuple[Grain, ...]:
    """Find the grain of each of the `array_sources`, for orders of whole chunks; one that cannot be read is a chunk."""
    found = []
    for source in array_sources(fields.fields):
        try:
            found.append(_grain_of(source, fields, most_rows=_MOST_LISTED))
        except (StoreReadError, CorruptChunkError):  # whoever reads the chunk says so
            found.append(WHOLE_CHUNK)
    return tuple(found)


def _grain_of(source: ArraySource, fields: FieldSet, *, most_rows: int = 0) -> Grain:
    """Return the grain of an array. Windows of short rows are looked up where a block has up to `most_rows` of them."""
    spec = source.spec
    drawing = [fields.fields[number] for number in source.fields]
    plain = not spec.in_python and not spec.slow_codecs and not spec.item_type
    looks_up = all(
        f.window is None
        or f.sample_bytes >= _SMALL_ROW * len(f.window.offsets)
        or fields.block_rows * len(f.window.offsets) <= most_rows
        for f in drawing
    )
    if not plain or not looks_up or any(f.patch is not None for f in drawing):
        return WHOLE_CHUNK
    codecs = [codec.name for codec in spec.codecs]
    if not codecs:
        return Grain(spec.dtype.itemsize, is_fused=True)
    if codecs != ["blosc"] or spec.source is not None:  # a checksum, or another codec, is over the whole chunk
        return WHOLE_CHUNK
    layouts = (fields.fields[number].layouts[layout] for number, layout in source.draws)
    nbytes = stored_block_bytes(source.layout)
    return WHOLE_CHUNK if nbytes is None else Grain(nbytes, all(map(goes_by_blocks, layouts)))


def _has_small_blocks(fields: FieldSet) -> bool:
    """Return whether blocks are so small that none is cut."""
    return fields.block_rows * sum(f.sample_bytes for f in fields.fields) < 2 * LEAST_BYTES


def _why_whole(fields: FieldSet, resolved: ResolvedData) -> str:
    """Return why the chunks of a dataset are not cut, whatever they are; "" if they may be."""
    if resolved.patching is not None:
        return "samples are patches"
    primary = None if fields.primary is None else fields.fields[fields.primary]
    if primary is None or not primary.is_streamed:
        return "the blocks are no chunks of rows"
    if any(f.row_map is not None for f in fields.fields if f.is_streamed):
        return "samples of a join have other rows than those with their index"
    if not all(f.has_rows for f in fields.fields if f.is_stored):
        return "some arrays are no rows of numbers"
    return ""


def _best(trials: _Trials, grains: tuple[Grain, ...], *, must_cut: bool) -> tuple[Planning, Schedule]:
    """Return slabs that cost little, if they mix well; where whole chunks mix poorly, shorter ones that cost more."""
    trials.grains = grains
    if trials.shares_rows:
        _try(trials, trials.cost(carries=True), must_cut=must_cut)
    if not trials.has_good:
        _try(trials, trials.cost(carries=False), must_cut=must_cut)
    return trials.best(must_cut=must_cut)


def _try(trials: _Trials, cost: SlabCost, *, must_cut: bool) -> None:
    """Try slabs that cost little, and, where neither these nor whole chunks mix well, shorter ones that cost more."""
    carries = cost.strip_of is not None
    cheap = cost.cheap_rows()
    if cheap is not None:
        trials.cheap.add((cheap, carries))
    if (cheap is None or not trials.is_good(cheap, carries)) and (must_cut or trials.whole_is_poor):
        lengths = cost.shorter_than(cheap or cost.chunk_rows)
        low, high = 0, len(lengths) - 1
        while low < high:  # shorter slabs mix better, in the same memory, and decode more
            middle = (low + high) // 2
            low, high = (low, middle) if trials.is_good(lengths[middle], carries) else (middle + 1, high)
        if lengths:
            trials.is_good(lengths[low], carries)


class _Trials:
    """Schedules of slabs of several lengths, beside that of whole chunks, which have 0 rows here.

    Attributes
    ----------
    whole
        The schedule of whole chunks.
    grains
        The grain of each array.
    cheap
        The slabs that cost little: their rows, and whether lanes hand rows on.
    """

    def __init__(self, planning: Planning, resolved: ResolvedData, whole: Schedule, costs: SlabCosts) -> None:
        self._costs = costs
        self.whole, self.grains, self.cheap = whole, tuple[Grain, ...](), set[tuple[int, bool]]()
        self._planning, self._resolved = planning, resolved
        self._room = _room(whole)
        self._tried = {(0, False): (planning, whole)}
        self._measures = {(0, False): _measure(whole, self._room)}

    @property
    def whole_is_poor(self) -> bool:
        """True if whole chunks mix so badly that training would notice, or do not fit."""
        measure = self._measures[0, False]
        return measure is None or measure.is_poor

    @property
    def shares_rows(self) -> bool:
        """True if windows of neighbouring slabs share rows, which lanes may hand on."""
        return self.whole.planner.known.share_chunks

    @property
    def has_good(self) -> bool:
        """True if slabs that were tried mix well."""
        return any(rows and _is_good(measure) for (rows, _), measure in self._measures.items())

    def cost(self, *, carries: bool) -> SlabCost:
        """Return the decodes of slabs of any length, which do not depend on options, so that they are counted once."""
        fields = self.whole.fields
        assert fields.primary is not None
        stored = tuple(id(f) for f in fields.fields if f.is_stored)  # the cost keeps them alive
        key = stored, fields.primary, self.grains, carries
        if key not in self._costs:
            strip_of = self.strip_of if carries else None
            self._costs[key] = SlabCost(fields.fields, fields.primary, self.grains, strip_of)
        return self._costs[key]

    def strip_of(self, rows: int) -> int:
        """Return the number of slabs of so many rows that stay together where lanes hand rows on."""
        fields = self.whole.fields
        assert fields.primary is not None
        slabs = Slabs.of(fields.fields[fields.primary].layouts, fields.num_samples, rows)
        overlap = Overlap.of(fields.fields, rows, replace(slabs, grains=self.grains, strip_reaches=FIRST_REACHES))
        return 1 if overlap is None else overlap.wanted_strip()

    def is_good(self, rows: int, carries: bool) -> bool:
        """Return whether slabs of so many rows mix well in the memory for which orders are chosen.

        Slabs of which lanes are to hand rows on do not if there is no memory for that.
        """
        if (rows, carries) not in self._measures:
            self._measures[rows, carries] = None
            with contextlib.suppress(ConfigError):  # there are more blocks than a plan of windows may have
                cut = (_carrying if carries else _cut)(self._planning, self._resolved, self.grains, rows)
                if cut is not None:
                    self._tried[rows, carries] = cut
                    self._measures[rows, carries] = _measure(cut[1], self._room)
        return _is_good(self._measures[rows, carries])

    def best(self, *, must_cut: bool) -> tuple[Planning, Schedule]:
        """Return the longest slabs that mix well; else what mixes best.

        Unless chunks `must_cut`, they stay whole where slabs do not mix clearly better. Slabs that decode more than the
        `cheap` ones have to mix much better, or not poorly.

        Raises
        ------
        ConfigError
            If nothing can be cut, and must be.
        """
        measured = {slabs: self._measures[slabs] for slabs in self._tried if slabs[0]}
        if must_cut and not measured:
            raise ConfigError(
                f"mixing: block = 'slab', but slabs of a chunk would decode more than {MOST_DECODES:.0f} times its "
                "bytes, or be shorter than 1 MiB; must be 'chunk', or left out"
            )
        good = [slabs for slabs, measure in measured.items() if _is_good(measure)]
        if good:
            measured = {max(good): measured[max(good)]}
        quality = {slabs: 0.0 if measure is None else measure.of_perfect for slabs, measure in measured.items()}
        if not must_cut:
            whole = self._measures[0, False]
            least = 0.0 if whole is None else whole.of_perfect
            for slabs, measure in measured.items():
                is_mixed = measure is not None and not measure.is_poor
                if slabs not in self.cheap and not is_mixed and quality[slabs] < _GREAT_GAIN * least:
                    del quality[slabs]
            quality[0, False] = least + _LEAST_GAIN
        return self._tried[max(quality, key=quality.__getitem__)]


def _cut(
    planning: Planning, resolved: ResolvedData, grains: tuple[Grain, ...], rows: int, *, strip_reaches: int = 0
) -> tuple[Planning, Schedule]:
    cut = replace(planning, slab_rows=rows, grains=grains, strip_reaches=strip_reaches)
    return cut, Schedule.make(*cut.order(resolved), cut.options)


def _carrying(
    planning: Planning, resolved: ResolvedData, grains: tuple[Grain, ...], rows: int
) -> tuple[Planning, Schedule] | None:
    """Return slabs whose lanes hand on the rows that windows share; None if they share none, or memory has no room.

    Strips are long, as long as the order mixes well: their ends are decoded again.
    """
    long, first = (
        _cut(planning, resolved, grains, rows, strip_reaches=reaches) for reaches in (_LONG_REACHES, FIRST_REACHES)
    )
    strips, longer = ([one.strip for one in cut[1].order.orders] for cut in (first, long))
    if max(strips) == 1:
        return None
    measure = measure_shuffle(long[1].order) if longer != strips else None
    return first if measure is None or not measure.is_good else long


def _room(whole: Schedule) -> int:
    """Return the memory for which orders are chosen: more than 1 GiB if none is named, and whole chunks need more."""
    options = whole.options
    return options.order_budget if options.budget is not None else max(options.order_budget, _needed(whole))


def _needed(schedule: Schedule) -> int:
    planner, order = schedule.planner, schedule.order
    return planner.reserving(order).order_memory(order).least_budget


def _measure(schedule: Schedule, room: int) -> ShuffleMeasure | None:
    """Measure how well an order shuffles; None: its open blocks do not fit into `room` bytes."""
    return measure_shuffle(schedule.order) if _needed(schedule) <= room else None


def _is_good(measure: ShuffleMeasure | None) -> bool:
    return measure is not None and measure.share >= GOOD_SHARE and not measure.is_poor


def _primary(fields: FieldSet) -> Field:
    assert fields.primary is not None
    return fields.fields[fields.primary]


def _grains_of_primary(fields: FieldSet, grains: Sequence[Grain]) -> list[Grain]:
    """Return the grain of the array that makes the blocks, for each of its layouts."""
    sources = array_sources(fields.fields)
    return [grain for source, grain in zip(sources, grains, strict=True) if fields.primary in source.fields]
