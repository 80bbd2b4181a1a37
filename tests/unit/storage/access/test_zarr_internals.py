"""Which releases of zarr-python are promised, and what a release says that does not work."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
import tomllib

import pytest
import zarr

from tests.support.paths import ROOT
from tests.support.scripts import run_new_script
from zarrfeed.storage.access.zarr_internals import TESTED_RELEASES, sync


def numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


def test_pyproject_promises_the_oldest_release_that_is_tested_and_no_newest() -> None:
    """An upper bound would make the newest release uninstallable beside us before anybody has tried it."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert [d for d in dependencies if d.startswith("zarr")] == [f"zarr>={TESTED_RELEASES[0]}"]


def test_the_documentation_names_the_releases_that_are_tested() -> None:
    text = (ROOT / "docs" / "formats.md").read_text()
    assert re.findall(r"zarr-python (\d+\.\d+\.\d+) to (\d+\.\d+\.\d+)", text) == [TESTED_RELEASES]


def test_the_release_of_the_constraints_is_among_them() -> None:
    (pinned,) = re.findall(r"^zarr==(.*)$", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert numbers(TESTED_RELEASES[0]) <= numbers(pinned) <= numbers(TESTED_RELEASES[1])


@pytest.mark.parametrize(
    "name",
    ["zarr.core.sync.sync", "zarr.core.metadata.ArrayV3Metadata", "zarr.core.codec_pipeline.BatchedCodecPipeline"],
)
def test_a_release_without_a_name_that_is_needed_is_told_in_a_sentence(name: str) -> None:
    """Zarr 3.2.0 moved RegularChunkGrid: "cannot import name 'RegularChunkGrid'" was all that a user saw."""
    module, _, attribute = name.rpartition(".")
    code = f"""
        import {module}
        del {name}
        try:
            from zarrfeed import ZarrIterableDataset
        except ImportError as error:
            print(error)
    """
    done = run_new_script(code)
    assert (done.returncode, done.stderr) == (0, "")
    oldest, newest = TESTED_RELEASES
    assert f"zarrfeed does not work with zarr {zarr.__version__}: cannot import name {attribute!r}" in done.stdout
    assert done.stdout.endswith(f"pip install 'zarr>={oldest},<={newest}'\n")


def test_an_interrupt_that_another_thread_gets_does_not_end_a_read() -> None:
    """As when it comes a moment before the main thread waits: no signal ends the wait itself."""
    begun, release = threading.Event(), threading.Event()

    async def read() -> None:
        begun.set()
        await asyncio.to_thread(release.wait, 200.0)

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sync(read(), timeout=200.0)
    assert time.monotonic() - begin < 100
    release.set()
    thread.join()
