"""Finalizers run once: when their owner is gone, when they are called, or at exit before zarr-python ends its loop."""

from __future__ import annotations

import gc

import pytest

from tests.support.scripts import run_new_script, run_script
from zarrfeed.storage.access import exit_finalizers
from zarrfeed.storage.access.exit_finalizers import finalize


class Owner:
    pass


def test_a_finalizer_runs_once_when_its_owner_is_gone_or_it_is_called() -> None:
    done: list[int] = []
    owners = [Owner(), Owner()]
    before = len(exit_finalizers._at_exit)
    called, _ = [finalize(owner, done.append, number) for number, owner in enumerate(owners)]
    called()
    assert done == [0]
    del owners
    gc.collect()
    assert done == [0, 1]
    called()
    assert done == [0, 1]
    assert len(exit_finalizers._at_exit) == before, "nothing is left for the exit"


def test_at_exit_the_newest_runs_first_and_an_error_does_not_keep_the_others() -> None:
    result = run_new_script(
        """
        import weakref
        class Owner: pass
        first = Owner()
        weakref.finalize(first, print, "weakref's")  # registered for the exit before zarr-python is imported
        from zarrfeed.storage.access.exit_finalizers import finalize
        from zarrfeed.storage.access.zarr_internals import event_loop
        loop = event_loop()
        owners = [Owner() for _ in range(5)]
        for number, owner in enumerate(owners):
            end = (lambda: 1 / 0) if number == 2 else (lambda number=number: print(number, loop.is_running()))
            finalize(owner, end)
        del owner, owners[3]
        print("exit")
        """
    )
    assert result.stdout.splitlines() == ["3 True", "exit", "4 True", "1 True", "0 True", "weakref's"]
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert result.returncode == 0


def test_a_process_that_never_read_starts_no_loop_at_exit() -> None:
    result = run_new_script(
        """
        import atexit, threading
        from zarrfeed.storage.access.exit_finalizers import finalize
        class Owner: pass
        owner = Owner()
        finalize(owner, print, "ended")
        import zarr.core.sync
        zarr.core.sync._get_loop = lambda: print("a loop is started")
        """
    )
    assert (result.stdout, result.stderr) == ("ended\n", "")


#: Reads of an array stall: those of metadata from the second on, or those of the chunks behind the first twenty.
_STALLS = """
import asyncio, sys, threading
import torch, zarr, zarrfeed
from zarr.storage import MemoryStore, WrapperStore
from tests.support.oracle import numbered
from tests.support.pictures import image_array, numbered_png

kind, what = sys.argv[1:]

class Stalling(WrapperStore):
    armed, stalled = False, threading.Event()

    async def get(self, key, prototype, byte_range=None):
        stalls = what == "look" if ".z" in key else what == "chunks" and int(key.partition(".")[0]) >= 20
        if Stalling.armed and stalls:
            self.stalled.set()
            await asyncio.sleep(1e6)
        return await super().get(key, prototype, byte_range)

store = Stalling(MemoryStore())
if kind == "images":
    array = image_array(store, [numbered_png(number) for number in range(400)], chunks=(4,))
    data = zarrfeed.open(array).decode("image", size=(3, 4))
else:
    data = zarrfeed.open(zarr.create_array(store, data=numbered((400, 3)), chunks=(4, 3), zarr_format=2))
feed = iter(zarrfeed.ZarrIterableDataset(data, batch_size=4, shuffle=False, num_threads=1))
Stalling.armed = True
for _ in range(20 if kind == "images" else 5):  # images are asked for 3 batches ahead
    next(feed)
assert store.stalled.wait(60)
print("stalls", flush=True)
"""


@pytest.mark.parametrize("what", ["look", "chunks"])
@pytest.mark.parametrize("kind", ["numbers", "images"])
@pytest.mark.whole_product
def test_an_interpreter_exits_quietly_while_reads_stall(kind: str, what: str) -> None:
    """The warm interpreter imported torch before zarr-python, as most programs do."""
    result = run_script(_STALLS, kind, what, timeout=120)
    assert result.stdout == "stalls\n", result.stderr
    assert (result.returncode, result.stderr) == (0, "")
