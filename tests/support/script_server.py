"""The server of `run_forked_script`: imports what is slow to import, once, and forks a process for each script.

It reads a line of JSON for each, and answers with the number of the process, and then with its exit status.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_MODULES = ("torch", "zarr", "zarrfeed.torch.loader", "zarrfeed.torch.iterable_dataset", "zarrfeed.torch.map_dataset")


def serve() -> dict[str, Any]:
    """Fork for each request; return it in the new process. The server itself never returns."""
    for line in sys.stdin:
        threads = list(Path("/proc/self/task").iterdir())
        assert len(threads) == 1, threads
        process = os.fork()
        if process == 0:
            request: dict[str, Any] = json.loads(line)
            _leave(request["out"], request["err"])
            return request
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    os._exit(0)


def _leave(out: str, err: str) -> None:
    """Give a new process a session and files of its own."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in ((0, os.devnull), (1, out), (2, err)):
        flags = os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        descriptor = os.open(file, flags, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    for name in _MODULES:
        importlib.import_module(name)
    gc.freeze()  # else new processes copy all memory that holds an object, only to count references
    _request = serve()
    sys.argv = ["-c", *_request["arguments"]]
    exec(compile(_request["body"], "<string>", "exec"), globals())
