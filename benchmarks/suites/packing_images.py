"""What packing a folder of JPEGs costs, beside LitData, MosaicML streaming and WebDataset.

python -m benchmarks.packing_images --scale full --repeats 5
python -m benchmarks.packing_images --checksum-only

Class folders as ImageNet has them. The files are packed as they are; and some of them decoded and resized. Sides take
turns, each in a process of its own. What a side wrote is read back by its library, and must have each image once.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import names, positive
from benchmarks.suites.packing_images_probe import SIDES, Task, digest, items_of_folder

_ROOT = Path(__file__).parents[2]
#: Images, images that are resized as well, and the size that they get. With less than half of the images' own size, our
#: side would let libjpeg decode fewer pixels, and have other values than the peers.
SCALES = {"full": (20_000, 4000, 224), "small": (400, 100, 224)}
_CLASSES = 100
#: Height and width of the images.
_SHAPE = (300, 400)
_TIMEOUT_S = 600
#: Pictures of scikit-image, if it is there.
_PICTURES = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "retina.jpg",
    "rocket.jpg",
    "ihc.png",
)
WRONG = 1


def pictures() -> list[Image.Image]:
    """Return the pictures that come with scikit-image, or noise as smooth as they are."""
    found = importlib.util.find_spec("skimage")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "data"
        return [Image.open(folder / name).convert("RGB") for name in _PICTURES if (folder / name).exists()]
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (48, 64, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((1024, 768), Image.Resampling.BICUBIC))
    return [Image.fromarray(np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8))]


def write(folder: Path, count: int) -> None:
    """Write JPEGs, each another part of a picture, in class folders."""
    whole = pictures()
    for label in range(_CLASSES):
        (folder / f"n{label:08}").mkdir(parents=True)

    def one(number: int) -> None:
        rng = np.random.default_rng(number)
        picture = whole[number % len(whole)]
        width, height = (int(side * rng.uniform(0.4, 0.9)) for side in picture.size)
        left, top = rng.integers(0, picture.width - width + 1), rng.integers(0, picture.height - height + 1)
        box = (int(left), int(top), int(left) + width, int(top) + height)
        file = io.BytesIO()
        picture.resize(_SHAPE[::-1], Image.Resampling.BILINEAR, box).save(file, "jpeg", quality=85)
        label = number % _CLASSES
        (folder / f"n{label:08}" / f"n{label:08}_{number}.jpg").write_bytes(file.getvalue())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, range(count)))


def _link_some(folder: Path, out: Path, count: int) -> None:
    """Make a folder of some of the images, by links."""
    for number, path in enumerate(sorted(folder.glob("*/*.jpg"))):
        if number < count:
            (out / path.parent.name).mkdir(parents=True, exist_ok=True)
            (out / path.parent.name / path.name).hardlink_to(path)


def turn(verb: str, side: str, task: Task) -> tuple[float, float] | tuple[int, str]:
    """Return what the probe prints: seconds and CPU seconds, or images and their digest."""
    command = [sys.executable, "-m", "benchmarks.suites.packing_images_probe", verb, side, json.dumps(asdict(task))]
    environment = {**os.environ, "AWS_EC2_METADATA_DISABLED": "true", "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=_ROOT, env=environment, timeout=_TIMEOUT_S, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{side}: {ended.stderr[-2000:]}")
    first, second = json.loads(ended.stdout.splitlines()[-1])
    return first, second


def installed(sides: Sequence[str]) -> list[str]:
    """Return the sides whose libraries are there."""
    found = [
        side for side in sides if all(importlib.util.find_spec(name.partition(".")[0]) for name in SIDES[side].modules)
    ]
    for side in sides:
        print(f"{side} {version(SIDES[side].distribution)}" if side in found else f"{side}: is not installed")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="small")
    parser.add_argument("--sides", type=names(SIDES), default=list(SIDES), metavar="NAME,...")
    parser.add_argument("--cases", type=names(("kept", "resized")), default=["kept", "resized"], metavar="NAME,...")
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--checksum-only", action="store_true", help="pack once with each side, and time nothing")
    parser.add_argument("--data", type=Path, help="where the files go (default: a temporary directory)")
    parser.add_argument("--out", type=Path, help="a folder for packing_images.json")
    asked = parser.parse_args(arguments)
    print(machine_line())
    sides = installed(asked.sides)
    count, count_resized, size = SCALES[asked.scale]
    seconds: dict[str, dict[str, list[tuple[float, float]]]] = {}
    with tempfile.TemporaryDirectory(dir=asked.data) as directory:
        folder = Path(directory)
        write(folder / "kept", count)
        _link_some(folder / "kept", folder / "resized", count_resized)
        for case in asked.cases:
            task = Task(str(folder / case), str(folder / "out"), size if case == "resized" else 0, asked.workers)
            expected = digest(items_of_folder(task.source, task.size))
            taking = [side for side in sides if not task.size or SIDES[side].resizes]
            of_case = seconds[case] = {side: [] for side in taking}
            for _ in range(1 if asked.checksum_only else asked.repeats):
                for side in taking:
                    wall, cpu = turn("pack", side, task)
                    of_case[side].append((float(wall), float(cpu)))
                    found = turn("read", side, task)
                    shutil.rmtree(task.out)
                    if found != expected:
                        print(f"{case}, {side}: WRONG, it has {found[0]} images with digest {found[1]}, not {expected}")
                        return WRONG
            _print(case, expected[0], of_case, is_timed=not asked.checksum_only)
    if asked.out is not None:
        write_document(asked.out / "packing_images.json", scale=asked.scale, seconds_and_cpu_seconds=seconds)
    return 0


def _print(case: str, images: int, turns: dict[str, list[tuple[float, float]]], *, is_timed: bool) -> None:
    """Print a line for each side: medians, and the median of the ratios within a round."""
    first = next(iter(turns))
    for side, of_side in turns.items():
        line = f"{case:8} {side:11} every image once"
        if is_timed:
            wall, cpu = (median(column) for column in zip(*of_side, strict=True))
            ratio, of_cpu = (median(a[n] / b[n] for a, b in zip(of_side, turns[first], strict=True)) for n in range(2))
            line += f"  {wall:6.2f} s  {images / wall:7.0f} images/s  {ratio:5.2f} times {first}"
            line += f"  CPU {cpu:6.2f} s, {of_cpu:5.2f} times"
        print(line)
