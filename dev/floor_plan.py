"""Draw the folders of the package and of the engine as a house: a storey for each folder, the rooms in it side by side.

What lies below what is read from where it is enforced: the contracts of import-linter in pyproject.toml, and the
libraries of CMakeLists.txt. `python dev/pictures.py` draws the picture with the others.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from zarrfeed.tools.plot.canvas import new_figure, save, style

#: A storey: its folder, and its rooms, groups of rooms that do not know each other, the lowest group first.
Storey = tuple[str, list[list[str]]]

#: Heights of a storey: with rooms, and without.
_HEIGHT, _LOW = 1.0, 0.45
_WALL = "#4c566a"
_STOREY = "#eceff4"
_ROOM = "#d8dee9"


def python_storeys(root: Path) -> list[list[Storey]]:
    """Return the storeys of src/zarrfeed, the lowest first: folders that lie side by side are in one list."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [contract for contract in contracts if contract["type"] == "layers"]
    (house,) = [contract for contract in layers if "containers" not in contract]
    rooms = {
        contract["containers"][0]: rooms_in(root, contract["containers"][0], contract["layers"])
        for contract in layers
        if "containers" in contract
    }
    return [
        [(name.removeprefix("zarrfeed."), rooms.get(name, [])) for name in layer.split(" | ")]
        for layer in reversed(house["layers"])
    ]


def rooms_in(root: Path, container: str, layers: list[str]) -> list[list[str]]:
    """Return the rooms of a folder, the lowest first: without the modules that lie above them."""
    folder = root / "src" / container.replace(".", "/")
    groups = ([name for name in layer.split(" | ") if (folder / name).is_dir()] for layer in reversed(layers))
    return [group for group in groups if group]


def engine_storeys(root: Path) -> list[list[Storey]]:
    """Return the storeys of cpp/, the lowest first. A folder lies above all that its library links."""
    text = (root / "CMakeLists.txt").read_text()
    found = re.findall(r"^zarrfeed_library\(([\w/]+)(?: BELOW ([\w/ ]+))?\)$", text, re.MULTILINE)
    below = {name: set(names.split()) for name, names in found}

    def height(name: str) -> int:
        return 1 + max((height(other) for other in below[name]), default=-1)

    rooms = {name: [[room.partition("/")[2]] for room in below if room.startswith(f"{name}/")] for name in below}
    storeys: dict[int, list[Storey]] = {}
    for name in below:
        if "/" not in name:
            storeys.setdefault(height(name), []).append((name, rooms[name]))
    top: list[Storey] = [("bindings", [])]
    return [*(storeys[floor] for floor in sorted(storeys)), top]


def _draw_house(axes: Axes, title: str, storeys: list[list[Storey]]) -> None:
    """Draw storeys from the bottom up."""
    bottom = 0.0
    for storey in storeys:
        rooms = sum(max(1, len(groups)) for _, groups in storey)
        left = 0.0
        height = _HEIGHT if any(groups for _, groups in storey) else _LOW
        for folder, groups in storey:
            width = max(1, len(groups)) / rooms
            axes.add_patch(Rectangle((left, bottom), width, height, facecolor=_STOREY, edgecolor=_WALL))
            axes.text(left + 0.01, bottom + height - 0.06, f"{folder}/", va="top", fontsize=9, fontweight="bold")
            room = (width - 0.02) / max(1, len(groups))
            for column, group in enumerate(groups):
                for row, name in enumerate(reversed(group)):
                    high = 0.62 / len(group)
                    corner = (left + 0.01 + column * room, bottom + 0.06 + row * high)
                    wide, high = room - 0.006, high - 0.03
                    axes.add_patch(Rectangle(corner, wide, high, facecolor=_ROOM, edgecolor=_WALL, lw=0.5))
                    at = (corner[0] + wide / 2, corner[1] + high / 2)
                    axes.text(*at, name, ha="center", va="center", fontsize=6.5)
            left += width
        bottom += height
    axes.set_xlim(-0.005, 1.005)
    axes.set_ylim(-0.02, bottom + 0.02)
    axes.set_title(title, loc="left", fontsize=10)
    axes.axis("off")


def draw(root: Path, path: Path) -> None:
    """Write the floor plan as SVG."""
    with style():
        figure = new_figure(11, 5)
        axes = figure.subplots(1, 2, width_ratios=(3, 2))
        package = "src/zarrfeed: a room may import those left of it, and the storeys below"
        _draw_house(axes[0], package, python_storeys(root))
        _draw_house(axes[1], "cpp: the same for includes, where its library links those", engine_storeys(root))
        save(figure, path)
