"""Files of tests in memory: no process takes those of another, and none stay for good; only writes are inline."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

from tests.support.memory_files import memory_folder


def test_a_folder_in_use_stays_and_a_forgotten_one_goes(tmp_path: Path) -> None:
    with memory_folder(tmp_path, 0) as failed:
        assert failed is not None
        (failed / "file").touch()
    assert failed.exists(), "files of a test that failed are to be looked at"
    with memory_folder(tmp_path, 0) as one, memory_folder(tmp_path, 0) as other:
        assert one is not None
        assert other is not None
        assert sorted(tmp_path.iterdir()) == sorted([one, other]), "nobody uses the folder of the test that failed"
    assert list(tmp_path.iterdir()) == []


def test_a_memory_that_is_small_or_not_there_is_not_used(tmp_path: Path) -> None:
    with memory_folder(tmp_path, shutil.disk_usage(tmp_path).total) as folder:
        assert folder is None
    with memory_folder(tmp_path / "gone", 0) as folder:
        assert folder is None


def test_only_what_zarr_python_writes_with_runs_without_a_thread() -> None:
    def called_from(module: str, function_name: str) -> int:
        def function() -> int:
            return threading.get_ident()

        function.__name__ = function_name
        scope: dict[str, Any] = {"__name__": module, "asyncio": asyncio}
        exec("async def call(function): return await asyncio.to_thread(function)", scope)
        thread: int = asyncio.run(scope["call"](function))
        return thread

    here = threading.get_ident()
    assert called_from("zarr.storage._local", "_put") == called_from("zarr.codecs.blosc", "_encode_sync") == here
    assert here not in {called_from("zarr.storage._local", "_get"), called_from("zarr.codecs.blosc", "_decode_sync")}
    assert called_from("zarrfeed.storage.synced_store", "_put") != here
