"""After reads are given up, those under way have ended, and no other begins."""

from __future__ import annotations

import asyncio
import pickle
import threading

import pytest

from zarrfeed.storage.access.shared_access import SharedAccess


async def answer() -> int:
    return 7


def test_what_was_never_used_can_be_given_up() -> None:
    access = SharedAccess()
    access.give_up()
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(access.run(asyncio.sleep(60)))


def test_a_read_under_way_ends_before_giving_up_returns() -> None:
    access, began, ended = SharedAccess(), threading.Event(), threading.Event()

    async def read() -> None:
        began.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async def serve() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(access.run(read()))

    loop = threading.Thread(target=lambda: asyncio.run(serve()))
    loop.start()
    assert began.wait(30)
    access.give_up()
    assert ended.wait(30)
    loop.join(30)
    assert not loop.is_alive()


def test_a_copy_reads_on() -> None:
    access = SharedAccess()
    access.give_up()
    assert asyncio.run(pickle.loads(pickle.dumps(access)).run(answer())) == 7
