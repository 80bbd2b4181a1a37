"""The number of lanes of an epoch order beyond few ranks, and the number of ranks that decode each chunk.

Position g of an epoch order is of lane g mod L, and rank r of W has the positions r, r + W, ... So rank r has positions
of the lanes that are r modulo gcd(W, L), and `ranks_of_chunk` = W / gcd(W, L) ranks decode the chunks of each lane.

Invariants, and what tests check of each world size up to 1024:

1. Up to `FEW_RANKS` ranks, the lanes are the chosen ones: they do not depend on the world size.
2. Beyond, W divides the lanes that are chosen, so one rank decodes each chunk, but for chunks that the end of a lane
   cuts.
3. The lanes are a function of the layout, the memory budget and the world size. No rank, no node and no number of
   workers goes into it, so all ranks find the same number without talking.
"""

from __future__ import annotations

import math
from collections.abc import Callable

#: Up to this many ranks, the epoch order does not depend on their number.
FEW_RANKS = 8

#: Lane counts to choose from: many divisors, so that usual numbers of ranks and workers divide them.
LANE_COUNTS = (
    *(1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 72, 96, 120, 128, 144, 192, 240, 256, 288, 360, 384, 480, 512, 720),
)
#: Small arrays have so many lanes in any case, so that up to 8 ranks have a lane each.
LANES_OF_SMALL = 8

#: Lanes of a rank to choose from: many divisors, so that usual numbers of workers divide them.
_LANES_OF_RANK = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 72, 80)


def lanes_for_ranks(lanes: int, ranks: int, suits: Callable[[int], bool] | None = None) -> int:
    """Return the lanes of an epoch that is read by a number of ranks, near those that were chosen for few ranks.

    Beyond `FEW_RANKS` these are `lanes` if the ranks divide them; a lane for each rank if there are more ranks; or else
    the next multiple of the ranks that leaves each of them a number of lanes with many divisors. If that does not suit,
    it is the multiple below.

    Parameters
    ----------
    lanes
        The lanes for few ranks.
    ranks
        The world size; if samples are dealt to nodes, the ranks of a node.
    suits
        Says of a larger number of lanes whether memory has room for it, and whether it cuts few blocks. None: no
        larger number does.

    Examples
    --------
    >>> [lanes_for_ranks(720, ranks, lambda lanes: True) for ranks in (8, 7, 16, 64, 512, 1000)]
    [720, 720, 720, 768, 1024, 1000]
    >>> lanes_for_ranks(720, 64)
    512
    """
    if ranks <= FEW_RANKS or lanes % ranks == 0:
        return lanes
    if ranks > lanes:
        return ranks
    more = next((one * ranks for one in _LANES_OF_RANK if one * ranks >= lanes), lanes // ranks * ranks)
    if more < lanes or (suits is not None and suits(more)):
        return more
    return max(one * ranks for one in _LANES_OF_RANK if one * ranks <= lanes)


def ranks_of_chunk(ranks: int, lanes: int) -> int:
    """Return the number of ranks that decode each chunk that has as many rows, because of the number of lanes.

    Examples
    --------
    >>> [ranks_of_chunk(64, lanes) for lanes in (64, 96, 720, 768)]
    [1, 2, 4, 1]
    """
    return ranks // math.gcd(ranks, lanes)


def nearest_multiple(lanes: int, ranks: int) -> int:
    """Return the multiple of the ranks that is nearest to a number of lanes; the larger one if two are as near.

    Examples
    --------
    >>> [nearest_multiple(lanes, 64) for lanes in (5, 720, 96)]
    [64, 704, 128]
    """
    return max(1, (2 * lanes + ranks) // (2 * ranks)) * ranks
