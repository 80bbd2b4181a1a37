"""Stores of obstore over HTTP, which threads read: late requests, the end of the interpreter, forks, and `stats()`.

All servers are on 127.0.0.1, and send whole objects.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from benchmarks.harness.loopback import LoopbackServer
from tests.support.oracle import assert_parity, numbered
from tests.support.scripts import run_script
from zarrfeed import ZarrIterableDataset

pytest.importorskip("obstore")

TIMEOUT_S = 60.0
N, ROWS = 400, 4


class HoldingServer(LoopbackServer):
    """A web server of a directory that holds requests for some paths back until `may_answer` says otherwise.

    Attributes
    ----------
    may_answer
        Called under `changed` with the path and the number of the request among those for the path, from 1.
    asked
        Path -> number of GETs.
    """

    def __init__(self, root: Path, may_answer: Callable[[str, int], bool] = lambda _path, _number: True) -> None:
        self.root = root
        self.may_answer = may_answer
        self.asked: Counter[str] = Counter()
        self.changed = threading.Condition()
        self.is_over = False
        super().__init__(_Handler)

    def hold(self, path: str) -> None:
        with self.changed:
            self.asked[path] += 1
            number = self.asked[path]
            self.changed.wait_for(lambda: self.is_over or self.may_answer(path, number), TIMEOUT_S)

    def server_close(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()
        super().server_close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HoldingServer

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments, directory=str(arguments[2].root))

    def do_GET(self) -> None:
        self.server.hold(self.path)
        super().do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., HoldingServer]]:
    with contextlib.ExitStack() as servers:
        yield lambda **options: servers.enter_context(HoldingServer(tmp_path, **options))


@pytest.fixture
def data(tmp_path: Path) -> np.ndarray[Any, Any]:
    """Write samples that are their own index to an array "a" of 100 chunks."""
    data = numbered((N, 6))
    zarr.create_array(tmp_path / "a", data=data, chunks=(ROWS, 6))
    return data


def test_an_epoch_is_the_array_and_stats_say_how_it_was_read(
    serve: Callable[..., HoldingServer], data: np.ndarray[Any, Any]
) -> None:
    server = serve()
    dataset = assert_parity(f"{server.url}/a", data)
    stats = dataset.stats()
    assert stats.requests >= N // ROWS
    assert stats.concurrency >= 1
    assert stats.read_rate > 0
    assert "requests at once now" in str(stats)
    assert "threads ask for chunks" in str(dataset.explain())


def test_a_late_request_is_made_a_second_time_and_the_first_answer_counts(
    serve: Callable[..., HoldingServer], data: np.ndarray[Any, Any]
) -> None:
    """The server never answers the first request for one chunk: without second requests the epoch would hang."""
    late = "/a/c/99/0"
    server = serve(may_answer=lambda path, number: path != late or number > 1)
    dataset = ZarrIterableDataset(f"{server.url}/a", batch_size=ROWS, shuffle=False)
    np.testing.assert_array_equal(torch.cat(list(dataset)).numpy(), data)
    assert server.asked[late] == 2
    stats = dataset.stats()
    assert stats.hedges_won >= 1
    assert stats.hedges_won <= stats.hedges <= 0.05 * stats.requests + 1
    assert stats.retries == 0


def test_a_connection_that_breaks_is_tried_again_by_the_event_loop(
    serve: Callable[..., HoldingServer], data: np.ndarray[Any, Any]
) -> None:
    broken: set[str] = set()

    def may_answer(path: str, _number: int) -> bool:
        if "/c/" in path and path not in broken and len(broken) < 5:
            broken.add(path)
            raise ConnectionResetError
        return True

    server = serve(may_answer=may_answer)
    dataset = ZarrIterableDataset(f"{server.url}/a", batch_size=ROWS, shuffle=False)
    np.testing.assert_array_equal(torch.cat(list(dataset)).numpy(), data)
    assert len(broken) == 5
    assert dataset.stats().retries == 5


_HANGING = """
import os, sys
import zarrfeed
dataset = zarrfeed.ZarrIterableDataset(sys.argv[1], batch_size=4, shuffle=False, num_threads=1)
batches = iter(dataset)
for _ in range(60):
    next(batches)
print("begun", flush=True)
"""


@pytest.mark.parametrize("ending", ["sys.exit(0)", "dataset.close()"])
@pytest.mark.usefixtures("data")
def test_an_interpreter_ends_while_a_server_does_not_answer(serve: Callable[..., HoldingServer], ending: str) -> None:
    server = serve(may_answer=lambda path, _number: not path.startswith("/a/c/9") or path == "/a/c/9/0")
    result = run_script(_HANGING + ending + "\n", f"{server.url}/a")
    assert result.stderr == "", result.stderr
    assert (result.stdout, result.returncode) == ("begun\n", 0)


_FORKING = """
import os, sys
import torch, zarrfeed
dataset = zarrfeed.ZarrIterableDataset(sys.argv[1], batch_size=4, shuffle=False)
batches = iter(dataset)
first = next(batches)
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
rest = list(batches)
print(len(rest), int(torch.cat([first, *rest]).shape[0]))
child = os.fork()
if child == 0:  # threads of obstore do not survive a fork: what cannot work is refused
    try:
        list(dataset)
    except zarrfeed.ConfigError as error:
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
dataset.close()
"""


@pytest.mark.usefixtures("data")
def test_a_fork_in_the_middle_of_an_epoch_leaves_the_parent_and_the_child_whole(
    serve: Callable[..., HoldingServer],
) -> None:
    server = serve()
    result = run_script(_FORKING, f"{server.url}/a")
    assert result.stdout.split() == ["99", "400", "0"], result.stderr
