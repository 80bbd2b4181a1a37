"""Mixtures: the source of each step of an epoch, and the sample that the step takes of that source.

A pure function of weights, seed and step, in integers alone, so that it can be written again in another language bit by
bit. The steps are dealt to C columns: step k is row `k div C` of column `k mod C`. C has many divisors and does not
depend on the world size, so a rank of W, where W divides C, has whole columns.

**In a column**, a binary tree splits the rows. Its leaves are the sources, and each node splits its rows between its
two children, as a Sturmian word does: of the node's first n rows, the left child has

    floor(n r + phi),  r = weight of the left child / weight of the node,  0 <= phi < 1,

and the right child has the others. So each split adds less than 1 to the error of a source in a prefix of the column,
and the splits below scale that down; in a Huffman tree, the sum was below 2 wherever it was measured. The phases phi of
the C columns are evenly spaced, from a random start, in an order of their own for each node, so that the columns'
errors hardly add up: at most 8 samples at any prefix of all columns, for C = 24 and up to 20 sources.

**Sample m of source s in column c is at position m C + c of the endless sequence of that source.** The sequence repeats
the source: position p is number `p mod n` of its pass `p div n`. Invariants:

- each step has one source and one position, and each position of each source has one step (a bijection);
- the positions that a rank reads of a source are those of its columns: a regular stride, so that each of the source's
  chunks is decoded by one rank, exactly as where the source is read alone;
- nothing depends on the number of ranks, workers or threads.

Numbers: r and phi are multiples of 2**-62, products have 124 bits. Phases are drawn by SplitMix64, as rows are permuted
(cpp/plan/row_order.h). Weights may change from a step on, at the next beginning of a row: the tree stays, its ratios
change, and the fractional parts of n r + phi are carried over as the new phases.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from zarrfeed.base.errors import ConfigError
from zarrfeed.base.native import core
from zarrfeed.base.validate import check_int
from zarrfeed.plan.order.keyed_random import WORD, KeyedRandom, permutation

Int64: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

#: Columns where the user names none: 1, 2, 3, 4, 6, 8, 12 and 24 ranks have whole columns.
COLUMNS = 24
#: Limits of columns, sources and shares of a weight: far beyond any use, so that no number overflows.
MOST_COLUMNS, MOST_SOURCES, MOST_WEIGHT = 1 << 16, 1 << 16, 1 << 40
#: Steps and positions are below this.
END = 1 << 62

_BITS = 62
_ONE = 1 << _BITS
_LOW = np.uint64(0xFFFFFFFF)
_32, _2, _62 = np.uint64(32), np.uint64(2), np.uint64(62)
#: Purposes of random numbers; part of their key.
_PHASE, _COLUMNS = 0x70686173, 0x706C6163
#: The first split's columns are this far apart in phase, as a part of all.
_GOLDEN = (math.sqrt(5) - 1) / 2


def parse_weights(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights as integers without a common divisor: 0.7 is exactly 7/10.

    Raises
    ------
    ConfigError
        If one is negative or not finite, all are 0, or they differ by more than 40 bits.

    Examples
    --------
    >>> parse_weights([0.7, 0.2, 0.1]), parse_weights([1, 1])
    ((7, 2, 1), (1, 1))
    """
    numbers = [weight if isinstance(weight, int | np.integer) else float(weight) for weight in weights]
    if not numbers or not all(math.isfinite(number) and number >= 0 for number in numbers) or not any(numbers):
        raise ConfigError(f"weights = {list(weights)!r}, must be finite numbers of at least 0, and one above 0")
    fractions = [Fraction(str(number)) for number in numbers]
    common = math.lcm(*(fraction.denominator for fraction in fractions))
    whole = [int(fraction * common) for fraction in fractions]
    divisor = math.gcd(*whole)
    whole = [one // divisor for one in whole]
    if max(whole) > MOST_WEIGHT:
        raise ConfigError(f"weights = {list(weights)!r}, must be fractions of at most {MOST_WEIGHT} in lowest terms")
    return tuple(whole)


@dataclass(frozen=True)
class Mixture:
    """The source of each step, by weights that may change.

    Attributes
    ----------
    weights
        Weight of each source, integers, such as (7, 2, 1).
    seed
        Key of the phases, in [0, 2**64).
    columns
        C of the module's docstring.
    changes
        Pairs (step, weights), by ascending steps: weights that hold from the first row that begins at the step or
        later. A weight may be 0 for a time.

    Examples
    --------
    >>> mixture = Mixture((7, 2, 1), seed=0)
    >>> mixture.taken(1000).tolist()
    [699, 201, 100]
    >>> source, position = mixture.at(np.arange(6))
    >>> mixture.steps_of(source, position).tolist()
    [0, 1, 2, 3, 4, 5]
    """

    weights: tuple[int, ...]
    seed: int
    columns: int = COLUMNS
    changes: tuple[tuple[int, tuple[int, ...]], ...] = ()

    def __post_init__(self) -> None:
        check_int("seed", self.seed, 0, WORD)
        check_int("columns", self.columns, 1, MOST_COLUMNS)
        count, last = len(self.weights), 0
        if not 1 <= count <= MOST_SOURCES:
            raise ConfigError(f"weights has {count} numbers, must have 1 to {MOST_SOURCES}, one for each source")
        for step, weights in self._stages:
            named = f"weights = {weights}" + f" from step {step} on" * (step > 0)
            if len(weights) != count:
                raise ConfigError(f"{named}: {len(weights)} weights, must be {count}, one for each source")
            if not all(0 <= weight <= MOST_WEIGHT for weight in weights) or not any(weights):
                raise ConfigError(f"{named}: must be integers in [0, {MOST_WEIGHT}], and one above 0")
        for step, _ in self.changes:
            if not last < step < END:
                raise ConfigError(f"weights: step = {step}, must be above {last}, as steps ascend")
            last = step
        for source in range(count):
            if not any(weights[source] for _, weights in self._stages):
                raise ConfigError(f"source {source} always has the weight 0; leave it out")

    @property
    def num_sources(self) -> int:
        """Number of sources."""
        return len(self.weights)

    def at(self, steps: npt.ArrayLike) -> tuple[Int64, Int64]:
        """Return the source of each step, and the position in the source's endless sequence.

        Parameters
        ----------
        steps
            Numbers of steps in [0, 2**62), of any shape.

        Returns
        -------
        Sources and positions, int64, of the shape of `steps`.
        """
        row, column = np.divmod(np.asarray(steps, dtype=np.int64), self.columns)
        source, before = np.zeros_like(row), np.zeros_like(row)
        for number, (stage, is_in) in enumerate(self._by_stage(row)):
            if number and not is_in.any():
                continue
            found, local = self._descend(stage, row[is_in] - stage.first_row, column[is_in])
            source[is_in], before[is_in] = found, local + stage.base[found, column[is_in]]
        return source, before * self.columns + column

    def steps_of(self, sources: npt.ArrayLike, positions: npt.ArrayLike) -> Int64:
        """Return the steps that take positions of sources: the inverse of `at`.

        Returns
        -------
        Steps, int64; -1 for a position that no step below 2**62 takes, such as one of a source that has the weight 0
        from some row on.
        """
        source, position = np.broadcast_arrays(np.asarray(sources, np.int64), np.asarray(positions, np.int64))
        before, column = np.divmod(position, self.columns)
        row = np.full(source.shape, -1, dtype=np.int64)
        for one in np.unique(source):
            is_of = source == one
            row[is_of] = self._rows_of(int(one), before[is_of], column[is_of])
        return np.where(row < 0, -1, row * self.columns + column)

    def count(self, columns: npt.ArrayLike, rows: npt.ArrayLike) -> Int64:
        """Return the samples of each source in the first rows of columns: int64 of shape (..., sources)."""
        column, row = np.broadcast_arrays(np.asarray(columns, np.int64), np.asarray(rows, np.int64))
        counts = np.empty((*row.shape, self.num_sources), dtype=np.int64)
        for stage, is_in in self._by_stage(row):
            if is_in.any():
                local = self._shares(stage, row[is_in] - stage.first_row, column[is_in])
                counts[is_in] = local[:, : self.num_sources] + stage.base[:, column[is_in]].T
        return counts

    def least_share(self, source: int) -> float:
        """Return the smallest share of a source, but for times in which it has none."""
        shares = [weights[source] / sum(weights) for _, weights in self._stages]
        return min(share for share in shares if share)

    def most_rows(self, source: int, samples: int) -> int:
        """Return an upper bound of the rows that `samples` samples in a row of a source are spread over.

        The samples may be of any columns, as long as no column has more of them in a row. At a node, number m of a
        child with the share r is in a row above m / r - 1 and below (m + 1) / r, whatever the phase; so is each row
        above it, up to the root.
        """
        most, total = 0.0, 0.0
        for stage in self._settled:
            shares: list[float] = []  # of the source, of the node above it, ... of the child of the root
            for node, side in reversed(self._tree.path(source)):
                of_child = int(stage.ratio[node]) / _ONE
                shares.append((of_child if side == 0 else 1 - of_child) * (shares[-1] if shares else 1.0))
            if not shares or shares[-1] > 0:
                least = shares.pop() if shares else 1.0
                error = 1 / least + 2 * sum(1 / share for share in shares) + 2
                most, total = max(most, samples / least), total + error
        return math.ceil(most + total)

    def to_core(self, unit: int = 1) -> core.Mixture:
        """Convert to the form in which the engine finds steps; `unit` steps in a row are one of this mixture."""
        return core.Mixture(
            columns=self.columns,
            unit=unit,
            paths=[self._tree.path(source) for source in range(self.num_sources)],
            stages=[
                core.MixtureStage(
                    first_row=stage.first_row, ratio=stage.ratio, phase=stage.phase.ravel(), base=stage.base.ravel()
                )
                for stage in self._settled
            ],
        )

    def front(self, step: int) -> Int64:
        """Return the next position of each source in each column after `step` steps: shape (sources, columns)."""
        column = np.arange(self.columns)
        rows = (step - column + self.columns - 1) // self.columns
        return self.count(column, rows).T * self.columns + column

    def taken(self, step: int) -> Int64:
        """Return the number of samples that the first `step` steps take of each source."""
        counts: Int64 = (self.front(step) // self.columns).sum(axis=1)
        return counts

    @property
    def _stages(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return ((0, self.weights), *self.changes)

    @cached_property
    def _tree(self) -> _Tree:
        # With several stages, the weight of a source is the sum of its shares in all of them.
        shares = [[Fraction(weight, sum(weights)) for weight in weights] for _, weights in self._stages]
        return _Tree.of([sum(share) for share in zip(*shares, strict=True)])

    @cached_property
    def _settled(self) -> tuple[_Stage, ...]:
        """The ratios, phases and counts of each stage."""
        tree, column = self._tree, np.arange(self.columns)
        phases = _phases(self.seed, len(tree.children), self.columns)
        base = np.zeros((self.num_sources, self.columns), dtype=np.int64)
        made: list[_Stage] = []
        for step, weights in self._stages:
            first_row = -(-step // self.columns)
            if made:  # what the stage before came to, and the fractional parts that it leaves
                last, rows = made[-1], first_row - made[-1].first_row
                nodes = self._shares(last, np.full(self.columns, rows), column)
                base = base + nodes[:, : self.num_sources].T
                phases = np.array(
                    [
                        [(int(n) * int(last.ratio[v]) + int(last.phase[v, c])) % _ONE for c, n in enumerate(of_node)]
                        for v, of_node in enumerate(nodes[:, self.num_sources :].T)
                    ],
                    dtype=np.uint64,
                ).reshape(phases.shape)
            made.append(_Stage(first_row, tree.ratios(weights), phases, base))
        return tuple(made)

    def _by_stage(self, row: Int64) -> list[tuple[_Stage, npt.NDArray[np.bool_]]]:
        """Return each stage, and which of some rows are in it."""
        firsts = [stage.first_row for stage in self._settled]
        number = np.searchsorted(firsts, row, side="right") - 1
        return [(stage, number == i) for i, stage in enumerate(self._settled)]

    def _descend(self, stage: _Stage, row: Int64, column: Int64) -> tuple[Int64, Int64]:
        """Return the source of each row of a stage, and how many rows before it, in the stage, the source has."""
        found, before = np.zeros_like(row), row.copy()
        if self.num_sources == 1:
            return found, before
        at = np.full_like(row, self.num_sources)  # the root
        active = np.arange(len(row))
        while len(active):
            node, n = at[active] - self.num_sources, before[active]
            ratio, phase = stage.ratio[node], stage.phase[node, column[active]]
            left = _share(n, ratio, phase)
            is_left = _share(n + 1, ratio, phase) > left
            before[active] = np.where(is_left, left, n - left)
            at[active] = np.where(is_left, self._tree.children[node, 0], self._tree.children[node, 1])
            active = active[at[active] >= self.num_sources]
        return at, before

    def _shares(self, stage: _Stage, rows: Int64, column: Int64) -> Int64:
        """Return how the first rows of a stage divide among sources and nodes: shape (rows, sources + nodes)."""
        tree = self._tree
        counts = np.empty((len(rows), self.num_sources + len(tree.children)), dtype=np.int64)
        counts[:, self.num_sources if len(tree.children) else 0] = rows
        for node, (left, right) in enumerate(tree.children):
            n = counts[:, self.num_sources + node]
            counts[:, left] = _share(n, stage.ratio[node], stage.phase[node, column])
            counts[:, right] = n - counts[:, left]
        return counts

    def _rows_of(self, source: int, before: Int64, column: Int64) -> Int64:
        """Return the rows of a source's samples, by how many the source has before them in their columns."""
        begun = np.stack([stage.base[source] for stage in self._settled])  # (stages, columns)
        # If a source has nothing in some stages, the last one that begins with the same count has the sample.
        number = (begun[:, column] <= before).sum(axis=0) - 1
        rows = np.full(before.shape, -1, dtype=np.int64)
        for i, stage in enumerate(self._settled):
            is_in = number == i
            if not is_in.any():
                continue
            n, columns = before[is_in] - begun[i, column[is_in]], column[is_in]
            for node, side in self._tree.path(source):
                ratio = stage.ratio[node]
                if (ratio if side == 0 else np.uint64(_ONE) - ratio) == 0:
                    n = np.full_like(n, -1)
                    break
                n = _nth(n, ratio, stage.phase[node, columns], side, END // self.columns - stage.first_row)
            rows[is_in] = np.where(n < 0, -1, n + stage.first_row)
        return rows


@dataclass(frozen=True, eq=False)
class _Stage:
    """The weights from a row on.

    Attributes
    ----------
    first_row
        The first row where the weights hold.
    ratio
        Share of the left child of each node, in units of 2**-62.
    phase
        Phase of each node and column, in the same units: shape (nodes, columns).
    base
        Number of samples that each source has before: shape (sources, columns).
    """

    first_row: int
    ratio: _Words
    phase: _Words
    base: Int64


@dataclass(frozen=True, eq=False)
class _Tree:
    """The tree that splits rows: sources have the numbers [0, W), node v has W + v, and the root is node 0.

    Attributes
    ----------
    children
        The left and the right child of each node: shape (nodes, 2). The left one weighs at least as much.
    """

    children: Int64

    @classmethod
    def of(cls, weights: Sequence[Fraction | int]) -> _Tree:
        """Return Huffman's tree; among equal weights, the first ones are joined first."""
        count = len(weights)
        heap = [(weight, number) for number, weight in enumerate(weights)]
        heapq.heapify(heap)
        joined: list[tuple[int, int]] = []  # the last one is the root
        while len(heap) > 1:
            (light, right), (heavy, left) = heapq.heappop(heap), heapq.heappop(heap)
            heapq.heappush(heap, (light + heavy, count + len(joined)))
            joined.append((left, right))
        last = 2 * count - 2  # the root's number while joining; from the root down, it is the first one
        children = [[one if one < count else count + last - one for one in pair] for pair in reversed(joined)]
        return cls(np.array(children, dtype=np.int64).reshape(-1, 2))

    def ratios(self, weights: Sequence[int]) -> _Words:
        """Return the share of each node's left child, for some weights of the sources."""
        count = len(weights)
        total = [*weights, *([0] * len(self.children))]
        made = [0] * len(self.children)
        for node in reversed(range(len(self.children))):  # children have higher numbers
            left, right = map(int, self.children[node])
            total[count + node] = total[left] + total[right]
            made[node] = (total[left] << _BITS) // total[count + node] if total[count + node] else 0
        return np.array(made, dtype=np.uint64)

    def path(self, source: int) -> list[tuple[int, int]]:
        """Return the nodes from a source up to the root, and on which side of each: 0 is left."""
        count = len(self.children) + 1
        parents = {int(child): (v, side) for v, pair in enumerate(self.children) for side, child in enumerate(pair)}
        made: list[tuple[int, int]] = []
        number = source
        while number in parents:
            made.append(parents[number])
            number = count + parents[number][0]
        return made


def _share(n: Int64, ratio: _Words | np.uint64, phase: _Words) -> Int64:
    """Return floor(n ratio + phase), of numbers in units of 2**-62, through a product of 128 bits."""
    words = n.astype(np.uint64)
    n0, n1, r0, r1 = words & _LOW, words >> _32, ratio & _LOW, ratio >> _32
    p00, p01, p10 = n0 * r0, n0 * r1, n1 * r0
    middle = (p00 >> _32) + (p01 & _LOW) + (p10 & _LOW)
    low = (middle << _32) | (p00 & _LOW)
    high = n1 * r1 + (p01 >> _32) + (p10 >> _32) + (middle >> _32)
    summed = low + phase
    high = high + (summed < low)
    shares: Int64 = ((high << _2) | (summed >> _62)).astype(np.int64)
    return shares


def _nth(n: Int64, ratio: np.uint64, phase: _Words, side: int, end: int) -> Int64:
    """Return the row of a node that is number n of a child: the least x with share(x + 1) = n + 1.

    -1 where that is no row below `end`, or n is -1.
    """

    def share(rows: Int64) -> Int64:
        left = _share(rows, ratio, phase)
        return left if side == 0 else rows - left

    never = (n < 0) | (share(np.full_like(n, end)) <= n)
    n = np.where(never, 0, n)
    part, start = float(ratio) / _ONE, phase.astype(np.float64) / _ONE
    part, start = (part, start) if side == 0 else (1 - part, -start)
    # The estimate may be off by rounding; the brackets around it are widened until they hold, so the result is exact.
    near = np.clip((n + 1 - start) / max(part, 2.0**-_BITS), 0, end).astype(np.int64)
    width = 2 + (near >> 48)
    low, high = np.maximum(near - width, 0), np.minimum(near + width, end)
    while (wrong := (share(low) > n)).any():
        low = np.where(wrong, np.maximum(low - width, 0), low)
        width = 2 * width
    while (wrong := (share(high) <= n) & ~never).any():
        high = np.where(wrong, np.minimum(high + width, end), high)
        width = 2 * width
    while (high - low > 1).any():
        middle = low + (high - low) // 2
        is_low = share(middle) <= n
        low, high = np.where(is_low, middle, low), np.where(is_low, high, middle)
    return np.where(never, -1, high - 1)


def _phases(seed: int, num_nodes: int, columns: int) -> _Words:
    """Return the phase of each node in each column: evenly spaced, from a random start, in a random order.

    The root's columns are in an order in which neighbours are far apart, as most of a source's error comes from there.
    """
    far = min(
        (g for g in range(1, max(2, columns)) if math.gcd(g, columns) == 1), key=lambda g: abs(g / columns - _GOLDEN)
    )
    phases = np.empty((num_nodes, columns), dtype=np.uint64)
    for node in range(num_nodes):
        permuted = (
            [c * far % columns for c in range(columns)] if node == 0 else permutation(columns, seed, _COLUMNS, node)
        )
        start = KeyedRandom(seed, _PHASE, node).word() >> 2
        phases[node] = [((number << _BITS) // columns + start) % _ONE for number in permuted]
    return phases
