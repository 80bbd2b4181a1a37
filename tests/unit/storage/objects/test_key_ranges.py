"""Ranges of keys that are stolen from each other, by workers whose pages come in any order."""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarrfeed.storage.objects.key_ranges import KeyRange, KeyRanges, keys_that_begin


class Simulation:
    """Workers that list some keys from a server, which has at most one page under way for each."""

    def __init__(self, keys: set[str], workers: int, page: int) -> None:
        self.keys = sorted(keys)
        self.ranges = KeyRanges(workers)
        self.page = page
        self.under_way: list[tuple[KeyRange, list[str], bool]] = []
        self.listed: dict[KeyRange, list[str]] = {}
        self.requests = 0
        self._ask(self.ranges.ranges[0])

    def _ask(self, one: KeyRange) -> None:
        begin = bisect_right(self.keys, one.seen)
        page = self.keys[begin : begin + self.page]
        self.under_way.append((one, page, begin + self.page >= len(self.keys)))
        self.requests += 1

    def finish(self, number: int) -> int:
        """Let one page arrive; return how many requests are made then."""
        before = self.requests
        one, page, is_last = self.under_way.pop(number)
        self.listed.setdefault(one, []).extend(page[self.ranges.take_page(one, page, is_last=is_last)])
        if not one.is_done:
            self._ask(one)
        while len(self.under_way) < self.ranges.workers:
            stolen = self.ranges.steal()
            if stolen is None:
                break
            self._ask(stolen)
        self.check()
        return self.requests - before

    def check(self) -> None:
        """Check what holds at any time."""
        ranges = self.ranges.ranges
        assert ranges[0].after == ""
        assert ranges[-1].until is None
        assert all(one.until == other.after for one, other in pairwise(ranges))
        for one in ranges:
            assert one.after <= one.seen
            assert one.until is None or one.after < one.until
            assert one.until is None or one.seen <= one.until

    @property
    def found(self) -> list[str]:
        """What was listed, range by range."""
        return [key for one in self.ranges.ranges for key in self.listed.get(one, [])]


def run_in_rounds(keys: set[str], workers: int, page: int) -> tuple[Simulation, int]:
    """List keys from a server that takes the same time for each page; return after how many of these times it ended."""
    simulation = Simulation(keys, workers, page)
    order = [(1, 0)]
    count, now = 1, 0
    numbers = [0]  # of the pages under way
    while order:
        now, number = heapq.heappop(order)
        index = numbers.index(number)
        numbers.pop(index)
        for _ in range(simulation.finish(index)):
            numbers.append(count)
            heapq.heappush(order, (now + 1, count))
            count += 1
    return simulation, now


PARTS = st.one_of(
    st.integers(0, 3000).map(str),
    st.integers(0, 99).map("{:04d}".format),
    st.sampled_from(["train", "test", "é", "日本", "~", "a b", "x.zarr", "-", "\U0001f600"]),
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/"), min_size=1, max_size=3).filter(
        lambda part: part not in (".", "..")
    ),
)
KEYS = st.sets(st.lists(PARTS, min_size=1, max_size=3).map("/".join), max_size=60)


@given(keys=KEYS, workers=st.integers(1, 8), page=st.integers(1, 5), data=st.data())
def test_each_key_is_listed_once_whatever_is_stolen_when(
    keys: set[str], workers: int, page: int, data: st.DataObject
) -> None:
    simulation = Simulation(keys, workers, page)
    while simulation.under_way:
        simulation.finish(data.draw(st.integers(0, len(simulation.under_way) - 1)))
    assert simulation.found == sorted(keys)
    assert simulation.ranges.is_done
    assert simulation.requests <= 2 * len(keys) / page + 4 * workers + 1


@given(keys=KEYS, beginning=PARTS)
def test_the_keys_that_begin_so_lie_in_one_range(keys: set[str], beginning: str) -> None:
    for begins in (beginning, f"{beginning}/", *(key[: len(key) // 2] for key in keys)):
        one = keys_that_begin(begins)
        inside = {key for key in keys if key > one.after and (one.until is None or key <= one.until)}
        assert {key for key in keys if key.startswith(begins)} <= inside
        assert not one.after.endswith("/")


@pytest.mark.parametrize("last", ["\U0010ffff", "\ud7ff", "\ue000", "\x01", "0", "~"])
def test_the_ends_of_a_range_are_not_within_it(last: str) -> None:
    one = keys_that_begin(f"a{last}")
    for key in (f"a{last}", f"a{last}\U0010ffff", f"a{last}\U0010fffd/x"):
        assert one.after < key
        assert one.until is None or key < one.until
    assert all(not "\ud800" <= c <= "\udfff" for c in one.after + (one.until or ""))


PATTERNS: dict[str, Callable[[int], str]] = {
    "numbers with as many digits": lambda i: f"datasets/images/train/image-{i:08d}.jpeg",
    "numbers": lambda i: f"img_{i}.png",
    "digests": lambda i: hashlib.md5(str(i).encode()).hexdigest(),
    "folders": lambda i: f"train/{i % 7:02d}/image-{i:08d}.jpeg",
    "chunks": lambda i: f"x.zarr/c/{i // 141}/{i % 141}/0",
    "dates": lambda i: f"logs/{2020 + i // 4000}/{i // 400 % 10:02d}/{i // 20 % 20:02d}/{i % 20:02d}.gz",
    "few far away": lambda i: f"a/{i:06d}" if i < 19_000 else f"z/{i}",
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_sixteen_workers_are_at_least_five_times_as_fast_as_one(pattern: str) -> None:
    keys = {PATTERNS[pattern](i) for i in range(20_000)}
    simulation, rounds = run_in_rounds(keys, 16, 100)
    assert simulation.found == sorted(keys)
    assert rounds <= 200 / 5


def test_keys_of_other_scripts_are_shared_out_too() -> None:
    keys = {f"写真{chr(0x4E00 + i % 300)}/{i}" for i in range(20_000)}
    simulation, rounds = run_in_rounds(keys, 16, 100)
    assert simulation.found == sorted(keys)
    assert rounds <= 100


@pytest.mark.parametrize("count", [0, 1, 99, 100])
def test_one_page_is_one_request(count: int) -> None:
    simulation, rounds = run_in_rounds({f"{i:03d}" for i in range(count)}, 16, 100)
    assert (simulation.requests, rounds, len(simulation.found)) == (1, 1, count)


def test_nothing_is_stolen_where_the_server_lists_from_the_beginning_on_whatever_it_is_asked() -> None:
    ranges = KeyRanges(4)
    first = ranges.ranges[0]
    page = [f"{i:03d}" for i in range(10)]
    assert ranges.take_page(first, page, is_last=False) == slice(0, 10)
    stolen = ranges.steal()
    assert stolen is not None
    assert stolen.after > "009"
    assert ranges.take_page(stolen, page, is_last=False) == slice(10, 10)
    assert ranges.steal() is None
    assert not ranges.is_done


def test_a_page_counts_for_the_keys_of_its_range_alone() -> None:
    ranges = KeyRanges(2)
    first = ranges.ranges[0]
    ranges.take_page(first, ["a0", "a1"], is_last=False)
    stolen = ranges.steal()
    assert stolen is not None
    assert first.until == stolen.after
    assert ranges.take_page(first, ["a2", stolen.after + "x", stolen.after + "y"], is_last=False) == slice(0, 1)
    assert first.is_done
    assert ranges.take_page(stolen, ["a1", stolen.after, stolen.after + "x"], is_last=True) == slice(2, 3)
    assert ranges.is_done
