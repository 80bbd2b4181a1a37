"""The scripts of the gallery, one for each kind of user: each runs as its first lines say, and prints what it found."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support import warm
from tests.support.examples import slow
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
#: What a script prints, as a regular expression whose groups are looked at.
PRINTS = {
    "weather.py": r"\d+ steps trained on, \d+ forecast: error (0\.[01]\d) standard deviations\n",
    "microscopy.py": r"epoch 5: intersection over union (0\.[789]\d)\n",
    "single_cell.py": r"\('B', 'T', 'NK', 'other'\): (9\d|100)% of 800 cells told rightly\n",
    "robotics.py": r"\d+ steps of 60 episodes, epoch 9: actions are off by (0\.0[0-3]\d)\n",
    "lightning_module.py": r"validation loss (0\.0\d\d)\n",
    "accelerate_loop.py": r"loss 0\.\d\d; (1024) of 2048 samples are left of the epoch\n",
    "remote_store.py": r"epoch 0: sum (204480), 20 requests .*\nepoch 1: sum 204480, (20) requests .*\n",
    "numpy_only.py": r"weights \[0\. 1\. 2\. 3\. 4\. 5\. 6\. 7\.\]\nrows by index (True)\n",
    "command_line.sh": r"(?s).*\ngood: 286 chunks of 1 array decode\n.*\nresult +complete, and proved: (2000) .*",
}
#: Scripts that train for a second or longer.
SLOW = {"microscopy.py", "single_cell.py", "robotics.py"}
MOST_LINES = 60
#: Modules that a script needs besides those of all warm processes.
MODULES = {"lightning_module.py": warm.LIGHTNING}


def run(name: str, folder: Path) -> str:
    own = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(folder), "COLUMNS": "160"}
    environment = os.environ | warm.variables() | own
    command = ["bash"] if name.endswith(".sh") else warm.command(*MODULES.get(name, ()))
    done = subprocess.run(
        [*command, str(EXAMPLES / name)], capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", [slow(name) if name in SLOW else name for name in PRINTS])
def test_a_script_does_what_it_says(name: str, tmp_path: Path) -> None:
    out = run(name, tmp_path)
    assert re.fullmatch(PRINTS[name], out), out
    assert not list(tmp_path.glob("**/*.zarr")), "what it made is gone"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_notebook_runs_and_shows_its_answers() -> None:
    notebook: Any = nbformat.from_dict(json.loads((EXAMPLES / "first_look.ipynb").read_text()))
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs are not kept in the repository"
    NotebookClient(notebook, timeout=100).execute()
    shown = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    assert ["text/html" in data for data in shown] == [True, True, True, False, True]
    assert shown[3]["text/plain"] == "((64, 16, 16), True)"


@pytest.mark.parametrize("name", list(PRINTS))
def test_a_script_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) <= MOST_LINES


def test_the_gallery_shows_every_script() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for name in PRINTS:
        assert f'--8<-- "examples/{name}"' in page
    assert "examples/first_look.ipynb" in page
