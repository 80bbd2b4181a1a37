"""wrk, an HTTP client in C: how fast this machine's server answers a client that looks at nothing it gets."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

THREADS, CONNECTIONS = 1, 16

# Requests go round the paths; each thread of wrk has a state of Lua of its own. `done` gets the sums of all threads.
_SCRIPT = """\
local paths = {{}}
for line in io.lines({paths}) do paths[#paths + 1] = line end
local next = 0
request = function()
  next = next % #paths + 1
  return wrk.format("GET", paths[next])
end
done = function(summary)
  local e = summary.errors
  io.write(string.format('\\n{{"requests": %d, "bytes": %d, "us": %d, "errors": %d}}\\n', summary.requests,
    summary.bytes, summary.duration, e.connect + e.read + e.write + e.status + e.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """What one run did.

    Attributes
    ----------
    requests, received_bytes
        Answers, and their bytes, headers included.
    wall_s
        From the first request on.
    """

    requests: int
    received_bytes: int
    wall_s: float


def why_no_wrk() -> str:
    """Return why wrk cannot be run; "" if it can."""
    return "" if shutil.which("wrk") else "wrk is not installed: apt install wrk"


def run_wrk(url: str, paths: Sequence[str], seconds: float) -> Load:
    """GET the paths below a URL one after the other, in turns, for some whole seconds, at least 1.

    Raises
    ------
    RuntimeError
        If a request failed, or wrk does not start.
    """
    with tempfile.TemporaryDirectory(prefix="zarrfeed-wrk-") as directory:
        listed, script = Path(directory) / "paths", Path(directory) / "script.lua"
        listed.write_text("".join(f"{path}\n" for path in paths))
        script.write_text(_SCRIPT.format(paths=json.dumps(str(listed))))
        command = ["wrk", f"-t{THREADS}", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "-s", str(script), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"wrk failed with exit status {done.returncode}:\n{done.stdout}{done.stderr}")
    summary = json.loads(lines[-1])
    if summary["errors"] or not summary["requests"]:
        raise RuntimeError(f"wrk: {summary['errors']} of {summary['requests']} requests failed")
    return Load(summary["requests"], summary["bytes"], summary["us"] / 1e6)
