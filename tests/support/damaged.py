"""Read arrays with damaged chunks, each in a process with little memory, and say how that ended.

    python -m tests.support.damaged DIRECTORY NAME...           (run by test_damaged.py)

As hostile.py, with a `verify` that fails for what it finds, through Python and as the command.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings

import zarrfeed
from tests.support import hostile
from zarrfeed import CorruptChunkError
from zarrfeed.tools import cli


def verify(path: str) -> None:
    for finding in zarrfeed.verify(path).findings:
        raise CorruptChunkError(f"verify {finding.cause}: chunk {finding.key} {finding.inner}: {finding.message}")


def command(path: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        status = cli.main(["verify", path, "--progress-file", "none"])
    if status:
        raise CorruptChunkError(f"status {status}, {' '.join(out.getvalue().split())}")


hostile.WAYS |= {"verify": verify, "command": command}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[2:]:
        print(json.dumps({"name": name} | hostile.in_child(f"{sys.argv[1]}/{name}")), flush=True)
