"""The queue of requests for objects: each is taken once, answered once, and forgotten when its epoch ends."""

from __future__ import annotations

import select
import threading
import time

import numpy as np
import pytest

from zarrfeed import CorruptChunkError, StoreReadError
from zarrfeed.engine.fetch_threads import Request
from zarrfeed.engine.object_requests import Answer, ObjectRequests

DATA = np.zeros(3, np.uint8)


def requests_for(queue: ObjectRequests, count: int) -> list[Request]:
    return [(0, f"key {i}", False, [(i, 0, None)]) for i in queue.new_ids(count)]


class Heard:
    """Answers, as they are told."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Answer]] = []

    def __call__(self, request_id: int, answer: Answer) -> None:
        self.answers.append((request_id, answer))

    @property
    def ids(self) -> list[int]:
        return [request_id for request_id, _ in self.answers]


def test_threads_take_each_request_once_and_answers_are_told_once() -> None:
    heard = Heard()
    queue = ObjectRequests(heard)
    epoch, count, taken = queue.request_epoch(), 2000, []

    def work() -> None:
        answers: list[tuple[int, Answer]] = []
        while (found := queue.exchange(epoch, answers)) is not None:  # type: ignore[arg-type]
            request = found[0]
            taken.append(request[1])
            answers = [(request[3][0][0], DATA)]
        queue.answer(answers)  # type: ignore[arg-type]

    threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    wanted = requests_for(queue, count)
    for request in wanted:
        queue.post([request])
    while len(taken) < count:  # to stop before that would drop the requests that wait
        time.sleep(0.001)
    queue.stop()
    for thread in threads:
        thread.join(240)
        assert not thread.is_alive()
    assert sorted(taken) == sorted(request[1] for request in wanted)
    assert len(set(heard.ids)) == len(heard.ids) >= count - len(threads)  # a thread answers when it asks for more


def test_requests_come_in_order_and_the_first_ones_before_all() -> None:
    queue = ObjectRequests(Heard())
    wanted = requests_for(queue, 5)
    queue.post(wanted[:3])
    queue.post(wanted[3:], first=True)
    taken, _ = queue.take_requests()
    assert [request[1] for request in taken] == ["key 3", "key 4", "key 0", "key 1", "key 2"]


def test_the_descriptor_is_readable_while_requests_wait() -> None:
    queue = ObjectRequests(Heard())

    def is_readable() -> bool:
        poll = select.poll()  # select.select takes no descriptor above 1023
        poll.register(queue.request_descriptor(), select.POLLIN)
        return bool(poll.poll(0))

    assert not is_readable()
    for request in requests_for(queue, 70_000):  # more than a pipe holds
        queue.post([request])
    assert is_readable()
    assert len(queue.take_requests()[0]) == 70_000
    assert not is_readable()


def test_errors_are_told_in_place_of_answers() -> None:
    heard = Heard()
    queue = ObjectRequests(heard)
    queue.post(requests_for(queue, 3))
    queue.take_requests()
    queue.refuse(0, "no", 5)
    queue.refuse_corrupt(1, "cut")
    queue.answer([(2, None)])
    (_, first), (_, second), (_, third) = heard.answers
    assert isinstance(first, StoreReadError)
    assert (first.errno, first.strerror) == (5, "no")
    assert isinstance(second, CorruptChunkError)
    assert str(second) == "cut"
    assert third is None
    assert queue.take_requests() == ([], [0, 1, 2])


@pytest.mark.parametrize("taken", [False, True])
def test_what_comes_after_the_end_of_the_epoch_is_dropped(taken: bool) -> None:
    heard = Heard()
    queue = ObjectRequests(heard)
    epoch = queue.request_epoch()
    queue.post(requests_for(queue, 2))
    if taken:
        queue.take_requests()
    queue.stop()
    queue.answer([(0, DATA)])
    queue.refuse(1, "late", 5)
    assert heard.answers == []
    assert queue.take_requests() == ([], [])
    assert queue.exchange(epoch, []) is None
    assert list(queue.new_ids(1)) == [2]  # an id is never used again
