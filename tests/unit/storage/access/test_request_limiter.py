"""storage/access/request_limiter.py: requests to one store wait for their turn, on event loops and on threads."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from zarr.storage import MemoryStore

from zarrfeed.storage.access.request_limiter import RequestLimiter, shared_limiter

TIMEOUT_S = 240.0


def refuse(_: Exception) -> bool:
    return True


def test_requests_have_their_turn_in_order_and_none_is_lost_when_some_are_given_up() -> None:
    async def scenario() -> None:
        limiter = RequestLimiter(2, refuse)
        gates = [asyncio.Event() for _ in range(12)]
        begun: list[int] = []

        async def request(number: int) -> int:
            begun.append(number)
            await gates[number].wait()
            if number == 3:
                raise ValueError(number)
            return number

        tasks = [asyncio.create_task(limiter.run(lambda n=n: request(n))) for n in range(12)]  # type: ignore[misc]
        await asyncio.sleep(0)
        assert begun == [0, 1]
        tasks[2].cancel()  # waits
        tasks[1].cancel()  # is under way
        gates[0].set()
        await asyncio.wait([tasks[0], tasks[1], tasks[2]])
        await asyncio.sleep(0)
        assert begun == [0, 1, 3, 4][: len(begun)]
        # given up in the very turn of the loop in which its turn came
        gates[3].set()
        while not tasks[3].done():
            await asyncio.sleep(0)
        tasks[5].cancel()
        for gate in gates:
            gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        good = [n for n in results if isinstance(n, int)]
        assert good == [0, 4, *range(6, 12)]
        assert begun == sorted(begun)
        assert limiter._active == 0
        assert not limiter._waiting

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_never_more_are_under_way_than_the_limit() -> None:
    async def scenario() -> int:
        limiter = RequestLimiter(16, refuse)
        now = most = 0

        async def request() -> None:
            nonlocal now, most
            now += 1
            most = max(most, now)
            assert now <= limiter.controller.limit or limiter.controller.epoch
            await asyncio.sleep(0)
            now -= 1

        await asyncio.gather(*(limiter.run(request) for _ in range(2000)))
        return most

    assert 2 <= asyncio.run(asyncio.wait_for(scenario(), 30)) <= 16


def test_all_readers_of_a_store_share_a_limiter_as_long_as_there_is_one() -> None:
    a, b = MemoryStore(), MemoryStore()
    limiter = shared_limiter(a, 8, refuse)
    assert shared_limiter(a, 8, refuse) is limiter
    assert shared_limiter(b, 8, refuse) is not limiter
    a.origin = b.origin = "http://somewhere"  # type: ignore[attr-defined]
    assert shared_limiter(a, 8, refuse) is not limiter
    shared = shared_limiter(a, 8, refuse)
    assert shared_limiter(b, 8, refuse) is shared


def test_threads_and_an_event_loop_share_the_turns_of_one_store() -> None:
    """Every request has its turn, and never more are under way than the limit."""
    limiter = RequestLimiter(3, refuse, first=3)
    lock = threading.Lock()
    under_way: list[int] = [0]
    most: list[int] = [0]
    done: list[int] = []

    def begin() -> None:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])

    def end(number: int) -> None:
        with lock:
            under_way[0] -= 1
            done.append(number)

    def of_thread(first: int) -> None:
        for number in range(first, first + 50):
            turn = limiter.enter()
            begin()
            time.sleep(0)
            end(number)
            limiter.end(turn)

    async def request(number: int) -> None:
        begin()
        await asyncio.sleep(0)
        end(number)

    async def of_loop() -> None:
        await asyncio.gather(*(limiter.run(lambda n=n: request(n)) for n in range(200, 400)))  # type: ignore[misc]

    threads = [threading.Thread(target=of_thread, args=(50 * i,)) for i in range(4)]
    threads.append(threading.Thread(target=lambda: asyncio.run(asyncio.wait_for(of_loop(), TIMEOUT_S))))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
    assert sorted(done) == list(range(400))
    assert 1 <= most[0] <= 3
    assert limiter._active == 0


def test_a_turn_that_was_given_away_is_not_given_twice() -> None:
    limiter = RequestLimiter(1, refuse)
    slow = limiter.enter()
    begun = threading.Event()

    def other() -> None:
        limiter.end(limiter.enter())
        begun.set()

    thread = threading.Thread(target=other)
    thread.start()
    assert not begun.is_set()
    limiter.give_away(slow)
    assert begun.wait(TIMEOUT_S)
    thread.join(TIMEOUT_S)
    for finish in (limiter.end, limiter.give_away):  # the slow one ends in the end
        finish(slow)
        assert limiter._active == 0


@pytest.mark.parametrize("error", [OSError("refused"), KeyboardInterrupt()])
def test_a_turn_that_ends_with_an_error_lets_the_next_one_begin(error: BaseException) -> None:
    limiter = RequestLimiter(4, refuse, first=1)
    limiter.end(limiter.enter(), error)
    limiter.end(limiter.enter())
    assert limiter._active == 0
