"""A lock of the threads of one process."""

from __future__ import annotations

import copy
import os
import pickle
import threading

import pytest

from zarrfeed.base.process_lock import ProcessLock


def test_threads_exclude_each_other_and_one_thread_may_take_it_twice() -> None:
    lock, inside, most = ProcessLock(), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with lock.held, lock.held:
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert most == 1


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    lock, held, done = ProcessLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held:
            held.set()
            done.wait(240)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(240)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock.held.acquire(timeout=240) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not lock.held.acquire(blocking=False)  # the parent's is still held
    done.set()
    thread.join(240)


def test_a_copy_is_another_lock() -> None:
    lock = ProcessLock()
    taken: list[bool] = []
    with lock.held:
        for other in (lock, copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):
            thread = threading.Thread(target=lambda other=other: taken.append(other.held.acquire(blocking=False)))
            thread.start()
            thread.join(240)
    assert taken == [False, True, True]
