"""storage/chunks/hedging.py: which requests are late, and how many of them are made a second time."""

from __future__ import annotations

import threading

from zarrfeed.storage.chunks.hedging import MOST_HEDGES, HedgeRule


def rule_of(latencies: list[float], size_class: str = "a") -> HedgeRule:
    rule = HedgeRule()
    for latency in latencies:
        rule.finished(size_class, latency)
    return rule


def test_nothing_is_late_before_enough_is_known() -> None:
    assert rule_of([0.1] * 31).late_after("a") is None
    assert rule_of([0.1] * 32).late_after("a") is not None
    assert rule_of([0.1] * 32).late_after("b") is None


def test_late_is_later_than_most_and_than_three_medians() -> None:
    assert rule_of([0.1] * 100).late_after("a") == 0.3  # all take as long: a full connection
    assert rule_of([0.1] * 80 + [0.7] * 20).late_after("a") == 0.7  # the 95th percentile
    assert rule_of([0.001] * 100).late_after("a") == 0.05  # no sooner than it is looked for


def test_what_was_long_ago_is_forgotten() -> None:
    rule = rule_of([5.0] * 300 + [0.1] * 256)
    assert rule.late_after("a") == 0.3


def test_one_in_twenty_requests_is_hedged_at_most() -> None:
    rule = rule_of([0.1] * 100)
    assert [rule.take_hedge() for _ in range(6)] == [True] * 5 + [False]
    for _ in range(20):
        rule.finished("a", 0.1)
    assert [rule.take_hedge() for _ in range(2)] == [True, False]


def test_the_bound_holds_between_threads() -> None:
    rule = HedgeRule()
    taken: list[bool] = []

    def work() -> None:
        for _ in range(500):
            rule.finished("a", 0.1)
            taken.append(rule.take_hedge())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sum(taken) <= MOST_HEDGES * 2000
