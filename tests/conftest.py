"""Options and profiles of the tests."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.support.ranks import Ranks

pytest.register_assert_rewrite("tests.support.oracle", "tests.support.shares")

_DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=_DETERMINISTIC, max_examples=60)
settings.register_profile("large", parent=_DETERMINISTIC, max_examples=2000)
settings.load_profile("ci")


#: Test processes are not more than this: each takes 1 GB, and starts processes of its own.
_MAX_PROCESSES = 6

#: What forkserver's workers would import one by one, 2 s each; "spawn" is where tests start with nothing imported.
_PRELOAD = ["torch", "zarrfeed.torch.loader", "zarrfeed.torch.map_dataset", "zarrfeed.tools.bench.plain"]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 0, which is this process alone, where all that is to be run is in one file: others take long to start."""
    files = {argument.partition("::")[0] for argument in config.args}
    if len(files) == 1 and Path(files.pop()).is_file():
        return 0
    return min(len(os.sched_getaffinity(0)) + 1, _MAX_PROCESSES)  # one more, as many tests wait


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--large", action="store_true", help="run tests marked slow, and many more random examples")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background jobs with SIGINT ignored, which children inherit: tests that interrupt would hang.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settings.load_profile("large" if config.getoption("--large") else "ci")
    multiprocessing.set_forkserver_preload(_PRELOAD)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--large"):
        return
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --large"))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Rank processes, started when first used and shared by all tests."""
    from tests.support.ranks import Ranks  # torch.distributed is not for every test run

    pool = Ranks()
    yield pool
    pool.close()
