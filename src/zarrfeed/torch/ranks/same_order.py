"""Find a rank that would read another order than the other ranks, through the store by which the ranks met.

Each rank chooses the order of a dataset for itself: from the data and the arguments. Ranks with another seed, another
selection or another memory budget would read positions of different orders, so samples would be lost and others would
come twice. So the first rank that begins a pass of a dataset writes the terms of its order to the store of
`torch.distributed`, and each other rank compares its own terms with these. Invariants:

1. No rank waits for another one: a comparison is two requests, which the store answers at once. There is no
   collective call. A store that cannot be asked means that nothing is compared.
2. The terms were settled when the dataset was made, or by `set_sample_weights`, after which ranks compare anew. So
   states, epochs, `set_offsets` and a look at the first batch by one rank make no difference.

There is no certain sign that datasets of two ranks are to be one dataset: decision 0049 says what was considered.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from zarrfeed.base.documents import parse_json
from zarrfeed.base.errors import ConfigError
from zarrfeed.base.optional_torch import imported
from zarrfeed.base.per_process import OwnerProcess, PerProcess
from zarrfeed.plan.schedule.order_terms import OrderTerms
from zarrfeed.torch.ranks.callers import outer_frames

#: The name of the format of entries: ranks with another format are not compared.
_PREFIX = "zarrfeed/order/1"
#: Entries of this process in the store; older ones are deleted.
_MOST_KEYS = 64
#: An entry is not longer; the end of a longer value is replaced by its digest.
_LONGEST_VALUE = 400


class SameOrder:
    """The comparison of the order of one dataset with that of other ranks.

    Parameters
    ----------
    sources
        The names of the arrays that are read.
    terms
        The options and figures that determine the order, as the dataset was made with them.
    """

    def __init__(self, sources: Iterable[str], terms: OrderTerms) -> None:
        self._site = _digest([*_calls(), *sources])
        self._terms = terms
        self._entered: PerProcess[list[_Entry]] = PerProcess(list)
        _find_board()  # so that a child that is forked later knows that the group is not its own

    def check(self) -> None:
        """Raise an error if the order differs from that of another rank of the default process group.

        Raises
        ------
        ConfigError
            If the orders differ; the message names the differing terms.
        """
        board = _find_board()
        if board is None:
            return
        entered = self._entered.here
        if not entered or entered[0].board is not board:
            entered[:] = [_Entry(board, self._site, self._terms.on(board.world_size), self._terms.causes)]
        entered[0].compare()


class _Entry:
    """The entry of this process about the order of one dataset."""

    def __init__(self, board: _Board, site: str, terms: Mapping[str, Any], causes: Mapping[str, Any]) -> None:
        self.board = board
        self._terms, self._causes = _short(terms), _short(causes)
        self._digest = _digest(self._terms)
        self._site = site
        self._read = board.read.setdefault(site, [])
        self._number = len(self._read)
        self._read.append(self._digest)

    def compare(self) -> None:
        rank = imported("torch.distributed").get_rank()
        mine = {"rank": rank, "digest": self._digest, "terms": self._terms, "causes": self._causes}
        first_number = self.board.lowest(f"{self._site}/of/{self._digest}", self._number)
        theirs = self.board.meet(f"{self._site}/{self._number}", mine)
        if theirs is None or theirs["rank"] == rank or theirs["digest"] == self._digest:
            return
        if theirs["digest"] in self._read or first_number < self._number:
            return
        raise ConfigError(
            f"rank {rank} would read another order than rank {theirs['rank']}, so samples would be lost, and others "
            f"would come twice: {self._differences(theirs)}. Give the dataset the same data and arguments on all "
            "ranks, or rank=0, world_size=1 if each rank is to read all of its own"
        )

    def _differences(self, theirs: Mapping[str, Any]) -> str:
        pairs = [(self._terms, theirs["terms"]), (self._causes, theirs["causes"])]
        return "; ".join(
            f"{name} = {ours.get(name)}, but {of_other.get(name)} on rank {theirs['rank']}"
            for ours, of_other in pairs
            for name in {**ours, **of_other}
            if ours.get(name) != of_other.get(name)
        )


class _Board:
    """The entries in the store of one default process group.

    Attributes
    ----------
    read
        The digests of the datasets whose passes this process began, by their call site.
    owner
        The process that saw the group first.
    world_size
        Ranks of the group.
    """

    def __init__(self, group: Any, number: int) -> None:
        self.read: dict[str, list[str]] = {}
        self.owner = OwnerProcess()
        self.world_size: int = group.size()
        self._group = weakref.ref(group)  # whoever holds a group keeps its threads and sockets
        self._stem = f"{_PREFIX}/{number}/{self.world_size}"
        self._written: deque[str] = deque()
        self._fails = False

    def is_of(self, group: Any) -> bool:
        return self._group() is group

    def meet(self, name: str, mine: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the entry of the first rank that came, such as `mine`. None: it is not known."""
        found = self._compare_set(name, "", json.dumps(mine))
        return None if found is None else parse_json(found)

    def lowest(self, name: str, number: int) -> int:
        """Return the lowest number that a rank has named here, `number` included."""
        expected = ""
        while True:
            found = self._compare_set(name, expected, str(number))
            if found is None or int(found) <= number:
                return number if found is None else int(found)
            expected = found

    def _compare_set(self, name: str, expected: str, wanted: str) -> str | None:
        """Let the store replace an entry that is expected, or is not there; return the entry. None: it is not known."""
        found = self._ask(lambda store: store.compare_set(f"{self._stem}/{name}", expected, wanted))
        if found == wanted and name not in self._written:
            self._written.append(name)
            while len(self._written) > _MOST_KEYS:
                self._delete(self._written.popleft())
        return found

    def _delete(self, name: str) -> None:
        self._ask(lambda store: store.delete_key(f"{self._stem}/{name}"))

    def _ask(self, request: Callable[[Any], Any]) -> str | None:
        """Return the answer of the store; after one that failed it is not asked again."""
        if not self._fails:
            try:
                answer = request(imported("torch.distributed").distributed_c10d._get_default_store())  # noqa: SLF001 - there is no public way
            except (RuntimeError, KeyError, AttributeError):  # gone, too old, or of another backend such as MPI
                self._fails = True
            else:
                return answer.decode() if isinstance(answer, bytes) else None
        return None


#: The boards of the default process groups that this process, and those that it was forked from, saw: one for each.
_boards: list[_Board] = []


def _find_board() -> _Board | None:
    """Return the board of the default process group; None if there is none, of one rank, or one of another process."""
    distributed = imported("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD
    if not _boards or not _boards[-1].is_of(group):
        for past in _boards:
            past.read.clear()
        _boards.append(_Board(group, len(_boards)))
    board = _boards[-1]
    # The sockets of a forked child are those of its parent.
    return board if board.owner.is_here and board.world_size > 1 else None


def _calls() -> list[Any]:
    """Return the calls on the stack: the same list wherever the same program is at the same call site."""
    return [(PurePath(frame.f_code.co_filename).name, frame.f_code.co_name, frame.f_lasti) for frame in outer_frames()]


def _short(terms: Mapping[str, Any]) -> dict[str, str]:
    texts = {name: json.dumps(value, default=str) for name, value in terms.items()}
    return {
        name: text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({_digest(text)})"
        for name, text in texts.items()
    }


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
