"""The sweep axis, the width of columns and the lanes that patches are read with, where the user names none.

Invariant: the choice is a function of the layout and of the memory. It depends neither on the seed nor on the world
size. It is never an error for want of memory: columns become narrower, down to one tile, then lanes become fewer, down
to one.

Wide columns have few walls, and decode little twice; but a lane has to hold two blocks of a column and the chunks that
one layer hands to the next. More lanes mix better, and leave each less memory. So the search goes over all axes and
widths for each number of lanes, and takes the most lanes that decode at most a tenth more than few lanes do.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.validate import check_counts, check_int
from zarrfeed.plan.budget.mixing import TYPICAL_BATCH
from zarrfeed.plan.order.rank_lanes import LANE_COUNTS
from zarrfeed.plan.patches.footprint import Footprint, Footprints, footprint_of, steps_of_whole_chunks
from zarrfeed.plan.patches.sweep import GOOD_AMPLIFICATION, Sweep, SweepChoice, num_parts
from zarrfeed.plan.patches.sweep_cost import Float64, decodes_of_sweeps, representatives
from zarrfeed.plan.patches.tiling import Tiling
from zarrfeed.plan.samples.selection import Int64

#: Lanes to start from: few of them if more would multiply the decoding by more than this factor, as where few lanes
#: have room for whole cross-sections of the volume and more lanes have not.
_WANTED_LANES, _FEW_LANES, _MOST_FOR_WANTED = 8, 4, 1.2
#: Largest factor by which still more lanes may multiply the decoding.
_MOST_FOR_LANES = 1.1
#: Factor up to which the decodes of sweeps count as equal: the sweep with most runs mixes best.
_AS_GOOD = 1.005
#: Largest share that cutting columns into runs may add to the decoding.
_MOST_FOR_RUNS = 0.01
#: Planning takes about 460 bytes a block: no sweep has more, unless all have.
_MANY_BLOCKS = 1 << 20
#: Widths below this are all tried, larger ones in steps of this factor.
_SMALL_WIDTH, _WIDTH_STEP = 12, 1.15
#: The engine rounds the memory of a crop up by no more than this.
_CROP_ROOM = 17 / 16
#: Decodes that are saved by a cache as large as all chunks together, for those that several columns need. Each
#: chunk is cached for half of an epoch, on average.
_SAVED = 2.0
#: A sweep that needs less to be cached is better, if memory allows both.
_PREFERRED = 0.1
#: Number of chunks and columns up to which the engine finds the chunks to cache.
_MOST_CACHED = 1 << 20
#: No batch is mixed better by more lanes than it has samples.
_MOST_LANES = TYPICAL_BATCH


@dataclass(frozen=True)
class PatchField:
    """The properties of one field that the choice depends on.

    Attributes
    ----------
    chunk
        Length of a chunk along each patched dimension.
    cell_bytes
        Decoded bytes of all chunks at one index of the chunk grid over the patched dimensions: the bytes of one chunk,
        times the chunks that other dimensions are cut into.
    sample_bytes
        Bytes of a patch in a batch.
    footprint
        The items of the array that patches cover. None: the voxels of the grid.
    crop_share
        The part of `cell_bytes` that crops have: below 1 if samples have some items of other dimensions, or a chunk
        reaches beyond the array along these.
    cells
        Chunks at one index of the chunk grid.
    """

    chunk: tuple[int, ...]
    cell_bytes: int
    sample_bytes: int
    footprint: Footprint | None = None
    crop_share: float = 1
    cells: int = 1

    def carried_bytes(self, *, crops: bool) -> float:
        """Return the bytes that are carried of the chunks at one index, where patches need all of them."""
        return self.cell_bytes * (self.crop_share if crops else 1)

    @property
    def array(self) -> Footprints:
        """The items of the array that patches cover."""
        return self.chunk if self.footprint is None else self.footprint


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Sweeps to choose from: one entry for each, shape (sweeps,).

    Attributes
    ----------
    axis, width, unit, layers
        The values of each sweep; `width` and `unit` have the shape (sweeps, D), and 0 layers stands for None.
    decodes, added
        Decoded bytes of one lane, and what each lane more adds, divided by the bytes of all chunks.
    runs, blocks
        Number of runs, and of blocks.
    block_tiles, lane_bytes, carried_bytes
        The attributes of `SweepChoice`, for each sweep.
    changing_bytes
        Bytes of the chunks that one layer hands on while it still needs those that were handed to it.
    all_bytes, chunks
        Decoded bytes of all chunks, and how many there are: the same for all sweeps.
    """

    axis: Int64
    width: Int64
    unit: Int64
    layers: Int64
    decodes: Float64
    added: Float64
    runs: Float64
    blocks: Float64
    block_tiles: Float64
    lane_bytes: Float64
    carried_bytes: Float64
    changing_bytes: Float64
    all_bytes: Float64
    chunks: Float64

    @classmethod
    def join(cls, parts: Sequence[_Candidates]) -> _Candidates:
        """Return the sweeps of several axes together; sweeps of too many blocks are left out, if there are others."""
        joined = {f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in dataclasses.fields(cls)}
        few_blocks = joined["blocks"] <= max(_MANY_BLOCKS, joined["blocks"].min())
        return cls(**{name: column[few_blocks] for name, column in joined.items()})

    def sweep(self, which: int) -> Sweep:
        width, unit = tuple(self.width[which].tolist()), tuple(self.unit[which].tolist())
        return Sweep(int(self.axis[which]), width, unit, int(self.layers[which]) or None)

    def amplification(self, lanes: int) -> Float64:
        return self.decodes + (lanes - 1) * self.added

    def with_cache(self, lanes: int, num_threads: int, memory: float) -> Float64:
        """Return the amplification where memory that is left caches chunks that several columns need."""
        amplification = self.amplification(lanes)
        left = np.maximum(0, memory - self.total_bytes(lanes, num_threads))
        with_cache = np.maximum(np.minimum(amplification, 1), amplification - _SAVED * left / self.all_bytes)
        return np.where(self.chunks * amplification <= _MOST_CACHED, with_cache, amplification)

    def total_bytes(self, lanes: int, num_threads: int) -> Float64:
        return lanes * self.lane_bytes + min(lanes, num_threads) * self.changing_bytes

    def best(self, lanes: int, num_threads: int, memory: float, *, keeps: bool) -> int | None:
        """Return the sweep to take with some lanes; None if none fits in the memory."""
        fitting = np.flatnonzero(self.total_bytes(lanes, num_threads) <= memory)
        if not len(fitting):
            return None
        amplification = self.amplification(lanes)[fitting]
        if keeps:
            with_cache = self.with_cache(lanes, num_threads, memory)[fitting]
            amplification = with_cache + _PREFERRED * (amplification - with_cache)
        good = fitting[amplification <= _AS_GOOD * amplification.min()]
        return int(good[np.lexsort((self.lane_bytes[good], -self.runs[good]))[0]])


def choose_sweep(
    tiling: Tiling,
    fields: Sequence[PatchField],
    *,
    memory: int,
    num_threads: int,
    lanes: int | None = None,
    shuffle: bool = True,
    crops: bool = False,
    listed: bool = False,
    keeps: bool = False,
) -> SweepChoice:
    """Choose the sweep axis, the width of columns, and the lanes.

    Parameters
    ----------
    tiling
        The patches.
    fields
        The fields that patches are cut out of.
    memory
        Bytes for open batches and for chunks that are carried from layer to layer.
    num_threads
        Number of decode threads.
    lanes
        Number of lanes, as the user gave it. None: chosen.
    shuffle
        True if columns are shuffled, and begun at random layers.
    crops
        True if a lane carries no more of a chunk than lies in its column and its volume, instead of whole chunks.
    listed
        True if patches are listed: a layer may be several blocks, which hand on all chunks of the layer.
    keeps
        True if memory that is left caches chunks that several columns need.

    Raises
    ------
    ConfigError
        If an argument is out of its range.
    """
    check_int("num_threads", num_threads, 1)
    check_counts(lanes=lanes)
    check_int("memory", memory, 0)
    _check_fields(fields, tiling.num_dimensions)
    most = tiling.most_tiles.max(axis=0).tolist()
    cuts = [_ways_to_cut(tiling, fields, d, count, listed=listed) for d, count in enumerate(most)]
    axes = range(tiling.num_dimensions)
    made = _Candidates.join(
        [_of_axis(tiling, fields, axis, cuts, shuffle=shuffle, crops=crops, listed=listed) for axis in axes]
    )
    if lanes is None:
        lanes = _choose_lanes(made, tiling, memory, num_threads, keeps=keeps)
    else:
        lanes = min(lanes, tiling.shortest)
    total, amplification = made.total_bytes(lanes, num_threads), made.amplification(lanes)
    chosen = made.best(lanes, num_threads, memory, keeps=keeps)
    if chosen is None:
        chosen = int(total.argmin())
    good = total[amplification <= GOOD_AMPLIFICATION]
    keeps = keeps and bool(made.chunks[chosen] * amplification[chosen] <= _MOST_CACHED)
    if keeps:
        amplification = made.with_cache(lanes, num_threads, memory)
        good = total + np.maximum(0, made.amplification(lanes) - GOOD_AMPLIFICATION) / _SAVED * made.all_bytes
    return SweepChoice(
        sweep=made.sweep(chosen),
        lanes=lanes,
        amplification=float(amplification[chosen]),
        block_tiles=int(made.block_tiles[chosen]),
        bytes_of_lane=int(made.lane_bytes[chosen]),
        carried_bytes=int(made.carried_bytes[chosen]),
        total_bytes=int(total[chosen]),
        fits=bool(total[chosen] <= memory),
        good_bytes=int(good.min()) if len(good) else None,
        keeps=keeps,
    )


def _choose_lanes(made: _Candidates, tiling: Tiling, memory: int, num_threads: int, *, keeps: bool) -> int:
    """Return the most lanes that decode at most a tenth more than few lanes do."""
    best: dict[int, float] = {}
    for lanes in LANE_COUNTS:
        found = made.best(lanes, num_threads, memory, keeps=keeps)
        if lanes > min(_MOST_LANES, tiling.shortest) or found is None:
            break
        of_lanes = made.with_cache(lanes, num_threads, memory) if keeps else made.amplification(lanes)
        best[lanes] = float(of_lanes[found])
    if not best:
        return 1
    start = max(lanes for lanes in best if lanes <= _WANTED_LANES)
    few = min(start, _FEW_LANES)
    if best[start] > _MOST_FOR_WANTED * best[few]:
        start = few
    return max(lanes for lanes in best if lanes >= start and best[lanes] <= _MOST_FOR_LANES * best[start])


def _of_axis(
    tiling: Tiling,
    fields: Sequence[PatchField],
    axis: int,
    cuts: Sequence[Sequence[tuple[int, int]]],
    *,
    shuffle: bool,
    crops: bool,
    listed: bool,
) -> _Candidates:
    """Return the sweeps along an axis, for all combinations of cuts, given as (width, unit), of other dimensions."""
    grid = tiling.typical()
    layers = _layers_of_run(tiling, fields, axis) if shuffle else None
    cuts = [[(1, 1)] if d == axis else of_dimension for d, of_dimension in enumerate(cuts)]
    shape = tuple(map(len, cuts))
    decodes, added, carried, changing, all_bytes = *(np.zeros(shape) for _ in range(4)), 0.0
    all_chunks = 0
    for field in fields:
        of_lane, of_more, num_chunks = decodes_of_sweeps(grid, field.array, axis, cuts, layers, shuffle=shuffle)
        decodes += field.cell_bytes * of_lane
        added += field.cell_bytes * of_more
        all_bytes += field.cell_bytes * num_chunks
        all_chunks += field.cells * num_chunks
        cross = _cross_sections(tiling, field, axis, cuts, crops=crops)
        handed_on, beside = _carried_layers(tiling, axis, footprint_of(field.array, tiling))
        if listed:
            handed_on, beside = handed_on + beside, 0
        cell_bytes = field.carried_bytes(crops=crops)
        carried += cell_bytes * handed_on * cross
        changing += cell_bytes * beside * cross
    most = tiling.most_tiles.max(axis=0).tolist()
    tiles = _products([[min(width, m) for width, _ in one] for one, m in zip(cuts, most, strict=True)])
    runs, blocks = np.zeros(shape), np.zeros(shape)
    volumes, weights = representatives(grid)
    for volume, weight in zip(grid.count[volumes].tolist(), weights.tolist(), strict=True):
        parts = [
            [1.0] if d == axis else [num_parts(volume[d], *cut) for cut in of_dimension]
            for d, of_dimension in enumerate(cuts)
        ]
        runs += weight * _products(parts) * (1 if layers is None else -(-volume[axis] // layers))
        blocks += weight * _products(parts) * volume[axis]
    index = np.indices(shape).reshape(len(shape), -1)
    chosen = np.stack([np.array(one)[i] for one, i in zip(cuts, index, strict=True)], axis=1)
    return _Candidates(
        axis=np.full(len(chosen), axis),
        width=chosen[..., 0],
        unit=chosen[..., 1],
        layers=np.full(len(chosen), layers or 0),
        decodes=decodes.ravel() / all_bytes,
        added=added.ravel() / all_bytes,
        runs=runs.ravel(),
        blocks=blocks.ravel(),
        block_tiles=tiles.ravel(),
        lane_bytes=(2 * sum(field.sample_bytes for field in fields) * tiles + carried).ravel(),
        carried_bytes=carried.ravel(),
        changing_bytes=changing.ravel(),
        all_bytes=np.full(len(chosen), all_bytes),
        chunks=np.full(len(chosen), all_chunks),
    )


def _ways_to_cut(
    tiling: Tiling, fields: Sequence[PatchField], dimension: int, most: int, *, listed: bool
) -> list[tuple[int, int]]:
    """Return ways to cut `most` tiles along a dimension, as (width, unit): from all in one part down to one tile.

    If tiles, or cells of listed patches, end with chunks, parts are whole chunks, as far as they are not too wide.
    """
    arrays = [footprint_of(field.array, tiling) for field in fields]
    unit = steps_of_whole_chunks(arrays, tiling.step[dimension], dimension) if listed else None
    unit = unit or _tiles_of_whole_chunks(tiling, fields, dimension) or 1
    unit = unit if unit < most else 1
    ways = [(width * unit, unit) for width in _widths(-(-most // unit))]
    return ways if unit == 1 else [*ways, *((width, 1) for width in _widths(unit - 1))]


def _layers_of_run(tiling: Tiling, fields: Sequence[PatchField], axis: int) -> int | None:
    """Return the layers of a run: few, so that runs are many to shuffle, as far as that costs little; None for all."""
    most = int(tiling.most_tiles[:, axis].max())
    layers = _tiles_of_whole_chunks(tiling, fields, axis)  # runs share no chunks then
    if layers is None:
        # a run decodes about two layers of chunks again; with contexts, those that a layer shares with the next one
        chunks = math.inf
        for field in fields:
            array = footprint_of(field.array, tiling)
            again = 2 if field.footprint is None else 1 + max(1, _carried_layers(tiling, axis, array)[0])
            chunks = min(chunks, int(array.shape[:, axis].max()) / again)
        layers = -(-most // max(1, int(chunks * _MOST_FOR_RUNS)))
    return layers if layers < most else None


def _tiles_of_whole_chunks(tiling: Tiling, fields: Sequence[PatchField], dimension: int) -> int | None:
    """Return after how many tiles along a dimension a tile ends with a chunk of each field; None if that may not be."""
    step, arrays = tiling.step[dimension], [footprint_of(field.array, tiling) for field in fields]
    if not _is_regular(tiling, dimension) or not all(one.ends_with_chunks(step, dimension) for one in arrays):
        return None
    return steps_of_whole_chunks(arrays, step, dimension)


def _widths(most: int) -> list[int]:
    """Return widths that cut `most` into equal parts, from the widest to 1; large ones are a geometric series."""
    widths = [most]
    while widths[-1] > 1:
        last = widths[-1]
        wanted = last - 1 if last <= _SMALL_WIDTH else int(last / _WIDTH_STEP)
        widths.append(-(-most // -(-most // wanted)))
    return widths


def _is_regular(tiling: Tiling, dimension: int) -> bool:
    """Return whether all tiles along a dimension start at multiples of the step, in all volumes and epochs."""
    return tiling.border[dimension] != "shift" and bool((tiling.num_phases[:, dimension] == 1).all())


def _cross_sections(
    tiling: Tiling, field: PatchField, axis: int, cuts: Sequence[Sequence[tuple[int, int]]], *, crops: bool
) -> Float64:
    """Return the most chunks of a field that a layer of a column holds, for all combinations of cuts."""
    of = footprint_of(field.array, tiling)
    found = [
        _products(
            [
                [1.0] if d == axis else [_held_chunks(tiling, d, of, *cut, crops=cropped) for cut in along]
                for d, along in enumerate(cuts)
            ]
        )
        for cropped in (False, True)
    ]
    whole, cropped = found
    return np.minimum(whole, _CROP_ROOM * cropped) if crops else whole


def _held_chunks(tiling: Tiling, dimension: int, of: Footprint, width: int, unit: int, *, crops: bool) -> float:
    """Return the most chunks that a column of some tiles touches along a dimension; cropped ones count in part."""
    extents, chunk, step = of.extents[:, dimension], of.chunk[dimension], tiling.step[dimension]
    extent, whole = int(extents.max()), width >= tiling.most_tiles[:, dimension].max()
    items = -(-(width - 1) * step // of.scale[dimension]) + of.size[dimension]
    voxels = extent if whole else min(extent, items)
    if crops:
        if tiling.border[dimension] == "wrap":
            # The voxels that a column around the border lacks may lie inside of a chunk, whose crop has them then.
            voxels = max(voxels, int(extents[extents - voxels < chunk].max(initial=0)))
        return voxels / chunk
    return -(-extent // chunk) if whole else _most_touched(tiling, dimension, of, voxels, unit * step)


def _lies_inside(tiling: Tiling, axis: int, of: Footprint) -> bool:
    """Return whether items that patches have beyond the array are in no chunk, or there are none."""
    if of.pads[axis] or tiling.border[axis] == "wrap":
        return True
    first = of.first_item(axis)
    last_begins = (tiling.most_tiles[:, axis] - 1) * tiling.step[axis] - of.origin[axis]
    ends = last_begins // of.scale[axis] + of.shift[axis] + of.size[axis]
    return first >= 0 and bool((ends <= of.extents[:, axis]).all())


def _carried_layers(tiling: Tiling, axis: int, of: Footprint) -> tuple[int, int]:
    """Return how many layers of chunks a layer of tiles hands to the next one, and how many more it may hold.

    It holds more if it still needs those that were handed to it: if tiles begin in one chunk and end in another.
    """
    if tiling.most_tiles[:, axis].max() == 1:
        return 0, 0
    size, step, border, chunk = of.size[axis], tiling.step[axis], tiling.border[axis], of.chunk[axis]
    least = step // of.scale[axis]  # items from one tile to the next
    # a tile and the next one touch chunks at both of their ends, where these are all that there are
    both = size + -(-step // of.scale[axis]) + (2 * (chunk - 1) if size > least else 0)
    around = of.extents[:, axis] < both
    uneven = border == "wrap" and bool(((tiling.extents[:, axis] % step > 0) | around).any())
    overlap = size if border == "shift" or uneven else max(0, size - least)
    if overlap:
        layers = _most_touched(tiling, axis, of, overlap, step)
        return layers, layers
    # Tiles that lie side by side share the chunk that one of them ends in and the next one begins in. Those that reach
    # beyond the array share the chunk at its end.
    is_inside = _lies_inside(tiling, axis, of)
    regular = is_inside and _is_regular(tiling, axis) and of.size[axis] * of.scale[axis] == step
    if (chunk == 1 and is_inside) or (regular and least % chunk == 0 and of.first_item(axis) % chunk == 0):
        return 0, 0
    if regular and chunk % least == 0 and of.first_item(axis) % least == 0:  # no tile lies in two chunks
        return 1, 0
    # Around a dimension that wraps, the chunk that a tile begins in may be the one that the next tile ends in.
    ring = border == "wrap" and bool((of.extents[:, axis] < size + -(-step // of.scale[axis]) + chunk - 1).any())
    layers = min(1 + ring, int(-(-of.extents[:, axis].max() // chunk)))
    return layers, layers


def _most_touched(tiling: Tiling, dimension: int, of: Footprint, voxels: int, start: int) -> int:
    """Return the most chunks that a run of items touches, which starts at a multiple of `start` where it can."""
    chunk, multiple, extents = of.chunk[dimension], 1, of.extents[:, dimension]
    if _is_regular(tiling, dimension) and start % of.scale[dimension] == 0:
        multiple = math.gcd(start // of.scale[dimension], chunk)
        multiple = multiple if of.first_item(dimension) % multiple == 0 else 1
    touched = (chunk - multiple + voxels - 1) // chunk + 1
    # where the dimension wraps, the chunk before the border may be a short one
    touched += tiling.border[dimension] == "wrap" and bool((extents % chunk).any())
    return int(min(touched, -(-extents.max() // chunk)))


def _products(values: Sequence[Sequence[float]]) -> Float64:
    """Return the products of all combinations of values, an axis for each list of them."""
    product = np.ones((1,) * len(values))
    for d, along in enumerate(values):
        product = product * np.array(along, dtype=np.float64).reshape([-1 if d == i else 1 for i in range(len(values))])
    return product


def _check_fields(fields: Sequence[PatchField], dimensions: int) -> None:
    if not fields:
        raise ConfigError("fields is empty, must have at least one field that is read patch by patch")
    for field in fields:
        if len(field.chunk) != dimensions:
            raise ConfigError(f"chunk = {field.chunk}, must have one integer for each of {dimensions} dimensions")
        for length in field.chunk:
            check_int("chunk", length, 1)
        check_int("cell_bytes", field.cell_bytes, 1)
        check_int("sample_bytes", field.sample_bytes, 1)


def carried_bytes(tiling: Tiling, fields: Sequence[PatchField], sweep: Sweep, *, crops: bool) -> tuple[int, int]:
    """Return the bytes of chunks that a lane hands from layer to layer, and of those that it holds beside them.

    `crops` is that of `choose_sweep`.
    """
    of_lane, changing = 0.0, 0.0
    cuts = [[cut] for cut in zip(sweep.width, sweep.units, strict=True)]
    for field in fields:
        cross = float(_cross_sections(tiling, field, sweep.axis, cuts, crops=crops).item())
        layers, more_layers = _carried_layers(tiling, sweep.axis, footprint_of(field.array, tiling))
        cell_bytes = field.carried_bytes(crops=crops)
        of_lane += cell_bytes * layers * cross
        changing += cell_bytes * more_layers * cross
    return math.ceil(of_lane), math.ceil(changing)
