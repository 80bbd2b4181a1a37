"""The users of a command see our sentences on stderr, and nothing of zarr-python's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import zarr

from zarrfeed.tools import cli

SCRIPT = """
import warnings
from zarr.errors import ZarrUserWarning
from zarrfeed.tools.quiet import quiet

usual = warnings.showwarning, warnings.formatwarning
with quiet():
    warnings.warn("an object is not recognized", ZarrUserWarning)
    warnings.warn_explicit("old", FutureWarning, "/lib/site-packages/zarr/core/array.py", 1)
    warnings.warn("stale\\nmetadata")
assert usual == (warnings.showwarning, warnings.formatwarning)
warnings.warn("later")
"""


def ran(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=250, check=False)


def test_warnings_of_zarr_python_are_shown() -> None:  # in a process whose warnings pytest does not record
    done = ran("-c", SCRIPT)
    assert done.returncode == 0
    ours, later, *_ = done.stderr.splitlines()
    assert ours == "zarrfeed: warning: stale\\nmetadata"
    assert later.endswith("UserWarning: later")


def test_a_damaged_member_is_more_than_one_line(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "g.zarr")
    for name in "xyz":
        group.create_array(name, data=np.zeros(5), chunks=(5,))
    (tmp_path / "g.zarr/.DS_Store").write_text("x")
    (tmp_path / "g.zarr/y/zarr.json").write_text("{")
    done = ran("-m", "zarrfeed", "info", str(tmp_path / "g.zarr"))
    assert (done.returncode, done.stdout) == (cli.EXIT_ERROR, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("zarrfeed: samples:"), line
    assert "g.zarr/y: zarr-python cannot open it" in line
