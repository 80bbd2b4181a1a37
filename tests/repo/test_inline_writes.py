"""Writes of zarr-python run inline, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from typing import Any


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
    assert called_from("zarrfeed.storage.append.synced_store", "_put") != here
