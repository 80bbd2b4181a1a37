"""Draw the pictures of docs/ anew: the orders of two stores, by the command that pages show, results, and the house.

    python dev/pictures.py

They are committed as SVG, whose text is text and whose ids are fixed: so a change shows as a diff, and the site is
built without matplotlib and without the compiled engine. Only metadata of the stores are written. docs/scale.json has
the results of `python -m benchmarks.scale --full`, whose pictures are drawn from there, docs/shuffle-worth.json those
of `python -m benchmarks.shuffle_worth`, and benchmarks/history.jsonl has the rows of `python -m benchmarks.history
add`, which draws its picture, too. The floor plan of the code follows from pyproject.toml and CMakeLists.txt
(dev/floor_plan.py).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from pathlib import Path

import zarr

from zarrfeed.tools import cli

_ROOT = Path(__file__).parent.parent
_THREADS = " --num-threads 2"  # which the columns of patches depend on
#: Picture -> the command that draws it.
PICTURES = {
    "rows.svg": "info train.zarr --batch-size 64 --shuffle --lanes 8 --mix 1" + _THREADS,
    "patches.svg": "info volume.zarr --patch z=48,y=48,x=48 --batch-size 8 --shuffle --memory-budget 48MiB" + _THREADS,
}


def draw(folder: Path) -> None:
    """Write all pictures into a folder."""
    pictures = {folder.resolve() / name: command for name, command in PICTURES.items()}
    with tempfile.TemporaryDirectory() as directory, contextlib.chdir(directory):
        zarr.create_array("train.zarr", shape=(1024, 64, 64), chunks=(16, 64, 64), dtype="f4")
        group = zarr.create_group("volume.zarr")
        for name in ("image", "label"):
            dims = ("z", "y", "x")
            group.create_array(name, shape=(256, 320, 320), chunks=(64, 64, 64), dtype="u1", dimension_names=dims)
        for path, command in pictures.items():
            with contextlib.redirect_stdout(io.StringIO()):
                status = cli.main([*command.split(), "--plot", os.fspath(path)])
            if status:
                raise SystemExit(status)
    sys.path.insert(0, os.fspath(_ROOT))
    from benchmarks.report import history_charts, scale_charts
    from benchmarks.suites import shuffle_worth

    sys.path.insert(0, os.fspath(_ROOT / "dev"))
    import floor_plan

    scale_charts.draw_all(_ROOT / "docs" / "scale.json", folder.resolve())
    history_charts.draw_all(_ROOT / "benchmarks" / "history.jsonl", folder.resolve() / "history.svg")
    shuffle_worth.draw_all(_ROOT / "docs" / "shuffle-worth.json", folder.resolve() / "shuffle-worth.svg")
    floor_plan.draw(_ROOT, folder.resolve() / "rooms.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=_ROOT / "docs" / "pictures")
    draw(parser.parse_args().folder)
