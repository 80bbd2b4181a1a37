"""Options and profiles of the tests."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.util
import multiprocessing.spawn
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import warm
from tests.support.certificates import trust_one_authority
from tests.support.collected import python_of
from tests.support.covering import covering
from tests.support.editable import rebuild_quietly
from tests.support.examples import LARGE, USUAL
from tests.support.huge_pages import use_huge_pages
from tests.support.inline_writes import write_inline
from tests.support.preload import start_forkserver_when_needed

if TYPE_CHECKING:
    from tests.support.ranks import Ranks

pytest.register_assert_rewrite("tests.support.oracle", "tests.support.shares")

_DETERMINISTIC = settings(derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=_DETERMINISTIC, max_examples=USUAL)
settings.register_profile("large", parent=_DETERMINISTIC, max_examples=LARGE)
settings.load_profile("ci")


#: Test processes are not more than this: each comes to take 1 GB, and starts processes of its own.
_MAX_PROCESSES = 6


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return 0, which is this process alone, where all to be run is in one file: to start others takes longer."""
    files = {argument.partition("::")[0] for argument in config.args}
    if len(files) == 1 and Path(files.pop()).is_file():
        return 0
    return min(len(os.sched_getaffinity(0)) + 3, _MAX_PROCESSES)  # three more than cores, as many tests wait


#: Files that take longest: they begin first, so that no process is left alone with one in the end.
_LONG = (
    "robustness/test_faults.py",
    "integration/test_ray.py",
    "repo/test_code_blocks.py",
    "process/test_ranks.py",
    "integration/test_examples.py",
    "integration/test_huggingface.py",
    "integration/test_gallery.py",
    "process/test_process_life.py",
    "process/test_resume.py",
    "integration/test_lightning.py",
    "parity/test_codecs.py",
    "parity/test_mixture_promises.py",
    "process/test_packing.py",
    "robustness/test_soak.py",
    "integration/test_compat_ranks.py",
    "integration/test_checkpoint_stores.py",
    "repo/test_extras.py",
    "process/test_resume_exact.py",
    "parity/test_parity.py",
)


@functools.cache
def _begins_late(path: Path) -> int:
    """Return the index of a file among those that begin first; a sort by it keeps the order of the others."""
    name = os.path.relpath(path, Path(__file__).parent)
    return _LONG.index(name) if name in _LONG else len(_LONG)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--large", action="store_true", help="run tests marked slow, and many more random examples")
    parser.addoption(
        "--site", metavar="DIR", help="look at the documentation site, built there, in a headless Chromium"
    )


#: The usual mount point of a file system in memory, and the bytes that must be free there: all tests write 600 MB.
_IN_MEMORY, _ROOM = Path("/dev/shm"), 4 << 30


def _keep_tests_in_memory(config: pytest.Config) -> None:
    """Let `tmp_path` be in memory where there is room: the inodes of a disk cost a sixth of the processor's time."""
    if hasattr(config, "workerinput") or config.option.basetemp is not None or config.getoption("--large"):
        return
    if _IN_MEMORY.is_dir():
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
        room = min(shutil.disk_usage(_IN_MEMORY).free, *(number // 2 for number in free))
        if room >= _ROOM and os.access(_IN_MEMORY, os.W_OK):
            config.option.basetemp = folder = tempfile.mkdtemp(prefix="tests-", dir=_IN_MEMORY)
            config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


#: Key of the folder in what test processes are told.
_SERVERS = "warm servers"
_SERVERS_FOLDER = pytest.StashKey[str]()


def _share_warm_servers(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        warm.share(Path(config.workerinput[_SERVERS]), os.getppid())
    else:
        config.stash[_SERVERS_FOLDER] = folder = warm.new_folder()
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: list[Any]) -> None:
    """Let test processes be forked from one that has imported all tests."""
    python = python_of(config, Path(config.stash[_SERVERS_FOLDER]) / "collected")
    for spec in specs:
        if spec.popen:
            spec.python = str(python)
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin and Path(importlib.util.cache_from_source(torch.origin)).exists():
        _start_servers(config)


def _start_servers(config: pytest.Config) -> None:
    """Start the servers that a run of all tests needs.

    They start while the tests are collected, or then, where Python has not compiled PyTorch yet: each would compile it.
    """
    if config.args_source == pytest.Config.ArgsSource.TESTPATHS:
        warm.share(Path(config.stash[_SERVERS_FOLDER]), os.getpid())
        for modules in ((), warm.LIGHTNING, warm.TRAINER):
            warm.executable(*modules)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let files that share a large library run in one process."""
    from tests.support.scopes import scheduler  # xdist is not for every test run

    return scheduler(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a test process, which has been forked, where the servers are."""
    node.workerinput[_SERVERS] = node.config.stash[_SERVERS_FOLDER]
    _start_servers(node.config)


def _trust_one_authority(config: pytest.Config) -> None:
    """Let clients of HTTP read one certificate; test processes inherit the variables that say which."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="certificates-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        trust_one_authority(Path(folder))


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(warm.OFFLINE)
    rebuild_quietly(os.environ)
    settings.load_profile("large" if config.getoption("--large") else "ci")
    if config.option.collectonly:
        return
    _keep_tests_in_memory(config)
    _trust_one_authority(config)
    _share_warm_servers(config)
    # A shell starts background jobs with SIGINT ignored, which children inherit: tests that interrupt would hang.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    start_forkserver_when_needed(lambda: str(warm.executable()))
    write_inline()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the garbage collector away from imported modules and test items, which live until the end.

    Each full collection walked them by the million: while pytest collects, in each test that collects, in each fork.
    They go to huge pages, as each DataLoader worker is forked from this process. Variables that imported libraries set,
    such as threadpoolctl's, are taken back: no process of a test would be warm, as its environment differs.
    """
    gc.disable()
    try:
        with _kept_environment():
            return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.collect()  # so that the collector forgets how many there were: it waits for a quarter of them to be new
        if not session.config.option.collectonly:
            use_huge_pages()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _begins_late(item.path))
    if config.getoption("--large"):
        return
    items[:], left_out = covering(items, config.args)
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.skip(reason="slow: runs with --large"))


#: Iterators of other loaders than ours that start workers.
_ITERATORS = (
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torchdata.stateful_dataloader.stateful_dataloader", "_StatefulMultiProcessingDataLoaderIter"),
)


@pytest.fixture(autouse=True, scope="module")
def _workers_of_torch_end_at_once() -> None:
    """Let workers of torch's own loaders end at once when the garbage collector finds their iterator in a cycle.

    It waits 5 s for each of them otherwise, in whatever test it happens to run; see `keep_until_shutdown`.
    """
    for module, name in _ITERATORS:
        iterators: Any = getattr(sys.modules.get(module), name, None)
        if iterators is not None and not hasattr(iterators.__init__, "__wrapped__"):
            iterators.__init__ = _keeping(iterators.__init__)


@pytest.fixture(autouse=True, scope="module")
def _torch_hears_of_workers_that_die() -> None:
    """Let torch install its handler of SIGCHLD anew where a module before this one put an earlier one in its place.

    Lightning does so when a fit ends. torch's own loaders then wait for a dead worker until their timeout: 240 s here.
    """
    handling: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    if handling is not None and signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL:
        handling._SIGCHLD_handler_set = False


def _keeping(start: Callable[..., None]) -> Callable[..., None]:
    from zarrfeed.torch.passes.worker_shutdown import keep_until_shutdown

    @functools.wraps(start)
    def start_and_keep(iterator: Any, *arguments: Any) -> None:
        start(iterator, *arguments)
        keep_until_shutdown(iterator)

    return start_and_keep


@pytest.fixture(autouse=True, scope="module")
def _collector_forgets_module() -> Iterator[None]:
    """Keep the garbage collector away from what a module leaves, such as the libraries that it was first to import.

    A `gc.collect()` of a later test took 0.4 s otherwise, and each fork copied what the collector had walked.
    """
    yield
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def _kept_environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    for name in {*before, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture(autouse=True, scope="module")
def _environment_of_module() -> Iterator[None]:
    """Undo what the fixtures of a module, or libraries that they call, did to the environment: Ray sets variables."""
    with _kept_environment():
        yield


@pytest.fixture(autouse=True)
def _environment_of_test() -> Iterator[None]:
    with _kept_environment():
        yield


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """Yield a directory that is on a disk: `tmp_path` may be in memory, which has no page cache."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def warm_spawn() -> Iterator[None]:
    """Let processes of "spawn" start from a warm interpreter: tests that need an object pickled to *a* process."""
    own = multiprocessing.spawn.get_executable()
    multiprocessing.set_executable(str(warm.executable()))
    yield
    multiprocessing.set_executable(os.fsdecode(own))


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Rank processes, started when first used and shared by all tests."""
    from tests.support.ranks import Ranks  # torch.distributed is not for every test run

    pool = Ranks()
    yield pool
    pool.close()
