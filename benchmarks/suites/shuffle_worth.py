"""What an order that mixes is worth: validation loss of the demo's model, by the order of its samples.

python -m benchmarks.shuffle_worth
python -m benchmarks.shuffle_worth --seeds 1 --years 8 --out /tmp/worth

Daily fields of many years lie in chunks of a year, as archives have them: a seasonal cycle, weather that is made of
patterns, and a slow change of both from year to year. The demo's model learns to reconstruct a field from its stations;
it is judged by days that it never saw, a fifth of all, spread over the years. Three orders of the same samples:

- year after year: whole chunks in one lane, rows shuffled inside of each. It is what a store of chunks that are large
  against the memory had before orders had slabs;
- slabs: `mixing={"block": 1, "lanes": 64}`, which is what the planner chooses for such stores now;
- perfect: a new permutation of all samples for each epoch.

The seed is that of weights and order. The table and the picture have the median over the seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import zarr
from torch import nn
from zarr.codecs import BloscCodec

import zarrfeed
from benchmarks.harness.machine import machine_line
from benchmarks.harness.options import positive
from benchmarks.report.tables import make_console, print_rows
from zarrfeed.base.atomic_file import write_whole
from zarrfeed.tools.demo.climate import STATION_SPACING
from zarrfeed.tools.demo.training import Reconstruction
from zarrfeed.tools.plot.canvas import new_figure, save, style

_DAYS = 365
_SHAPE = (37, 49)
_PATTERNS = 12
_BATCH = 16
_LEARNING_RATE = 3e-3
#: Every so many-th day is for validation.
_HELD_OUT_EVERY = 5
_COLOURS = {"year after year": "#d95f02", "slabs": "#0b6e4f", "perfect": "#888888"}
Fields = npt.NDArray[np.float32]


def make_fields(years: int, seed: int = 0) -> Fields:
    """Return daily fields in kelvin, shape (days, latitude, longitude)."""
    rng = np.random.default_rng(seed)
    days = np.arange(years * _DAYS)
    y, x = (np.linspace(0, 1, n) for n in _SHAPE)

    def pattern() -> npt.NDArray[np.float64]:
        wave = rng.integers(1, 6, 2) * math.tau
        phase = rng.random(2) * math.tau
        return np.outer(np.sin(wave[0] * y + phase[0]), np.sin(wave[1] * x + phase[1]))

    season = 10 * np.cos(math.tau * days / _DAYS)
    fields = 280 + 15 * pattern() + season[:, None, None] * (1 + 0.3 * pattern())
    weather = np.zeros((len(days), _PATTERNS))
    noise = rng.standard_normal(weather.shape)
    for day in range(1, len(days)):  # a pattern lasts for some days
        weather[day] = 0.8 * weather[day - 1] + noise[day]
    change = (days / len(days))[:, None]  # from the first patterns to others
    for number in range(_PATTERNS):
        early, late = pattern(), pattern()
        amount = 2 * weather[:, number, None, None]
        fields += amount * ((1 - change)[..., None] * early + change[..., None] * late)
    fields += rng.standard_normal(fields.shape) * 0.5
    return fields.astype(np.float32)


@dataclass(frozen=True)
class Data:
    """Fields for training, in a store of year chunks and in memory, and fields for validation."""

    path: Path
    train: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def write(cls, folder: Path, years: int) -> Data:
        """Write the store."""
        fields = make_fields(years)
        held_out = np.arange(len(fields)) % _HELD_OUT_EVERY == 0
        train = fields[~held_out]
        zarr.create_array(
            folder / "fields.zarr",
            data=train,
            chunks=(_DAYS * (_HELD_OUT_EVERY - 1) // _HELD_OUT_EVERY, *_SHAPE),
            compressors=BloscCodec(cname="lz4"),
        )
        return cls(folder / "fields.zarr", torch.from_numpy(train), torch.from_numpy(fields[held_out]))


#: Makes the batches of an epoch, given the data, the seed and the epoch.
_Batches = Callable[[Data, int, int], Iterator[torch.Tensor]]


def _by_zarrfeed(mixing: dict[str, object]) -> _Batches:
    def batches(data: Data, seed: int, epoch: int) -> Iterator[torch.Tensor]:
        with zarrfeed.ZarrIterableDataset(
            data.path, batch_size=_BATCH, shuffle=True, seed=seed, mixing=mixing, drop_last=True
        ) as dataset:
            dataset.set_epoch(epoch)
            yield from dataset

    return batches


def _perfect(data: Data, seed: int, epoch: int) -> Iterator[torch.Tensor]:
    order = np.random.default_rng((seed, epoch)).permutation(len(data.train))
    for begin in range(0, len(order) - _BATCH + 1, _BATCH):
        yield data.train[order[begin : begin + _BATCH]]


ORDERS: dict[str, _Batches] = {
    "year after year": _by_zarrfeed({"block": "chunk", "lanes": 1}),
    "slabs": _by_zarrfeed({"block": 1, "lanes": 64}),
    "perfect": _perfect,
}


def train(data: Data, order: str, *, seed: int, epochs: int, evaluations: int) -> list[tuple[int, float]]:
    """Train the demo's model.

    Returns
    -------
    Steps that were done, and the root mean square error on held-out fields then, in kelvin: so often an epoch.
    """
    scale = float((data.train - data.train.mean(0)).std())
    torch.manual_seed(seed)
    model = Reconstruction(data.train.mean(0), scale)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.1)
    steps = len(data.train) // _BATCH
    found = []
    for epoch in range(epochs):
        for step, fields in enumerate(ORDERS[order](data, seed, epoch), 1):
            stations = fields[:, ::STATION_SPACING, ::STATION_SPACING]
            loss = nn.functional.mse_loss(model(stations), fields)
            optimizer.zero_grad()
            (loss / scale**2).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if step * evaluations // steps != (step - 1) * evaluations // steps:
                found.append((epoch * steps + step, _error(model, data.held_out)))
    return found


def _error(model: Reconstruction, fields: torch.Tensor) -> float:
    with torch.no_grad():
        made = model(fields[:, ::STATION_SPACING, ::STATION_SPACING])
        return math.sqrt(nn.functional.mse_loss(made, fields))


def draw_all(results: Path, picture: Path) -> None:
    """Draw the median error over the seeds by step, and its range, from what `main` wrote."""
    found = json.loads(results.read_bytes())
    with style():
        figure = new_figure(6.4, 3.4)
        axes = figure.subplots()
        for order, runs in found["errors"].items():
            errors = np.array(runs)
            axes.plot(found["steps"], np.median(errors, 0), color=_COLOURS[order], label=order, linewidth=1.3)
            low, high = errors.min(0), errors.max(0)
            axes.fill_between(found["steps"], low, high, color=_COLOURS[order], alpha=0.2, linewidth=0)
        axes.set_xlabel("steps of 16 samples", fontsize=8.5)
        axes.set_ylabel("error on held-out fields (K)", fontsize=8.5)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        save(figure, picture)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    torch.set_num_threads(1)
    found: dict[str, list[list[tuple[int, float]]]] = {order: [] for order in ORDERS}
    with tempfile.TemporaryDirectory() as folder:
        data = Data.write(Path(folder), options.years)
        for seed in range(options.seeds):
            for order, runs in found.items():
                runs.append(train(data, order, seed=seed, epochs=options.epochs, evaluations=options.evaluations))
    options.out.mkdir(parents=True, exist_ok=True)
    errors = {order: [[round(error, 4) for _, error in run] for run in runs] for order, runs in found.items()}
    document = {"steps": [step for step, _ in found["perfect"][0]], "errors": errors}
    results = options.out / "shuffle-worth.json"
    write_whole(results, json.dumps(document).encode())
    draw_all(results, options.out / "shuffle-worth.svg")
    print_rows(
        console, ["order", "median error (K)", "of the last epoch", "range there"], _table(found, options), words=1
    )
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _table(found: dict[str, list[list[tuple[int, float]]]], options: argparse.Namespace) -> Iterator[list[str]]:
    """Return a line for each order: its errors over all evaluations, and over those of the last epoch."""
    for order, runs in found.items():
        errors = np.array([[error for _, error in run] for run in runs])
        last = errors[:, -options.evaluations :]
        yield [order, f"{np.median(errors):.3f}", f"{np.median(last):.3f}", f"{last.min():.3f}-{last.max():.3f}"]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.shuffle_worth", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--years", type=positive, default=40)
    parser.add_argument("--epochs", type=positive, default=3)
    parser.add_argument("--seeds", type=positive, default=5)
    parser.add_argument("--evaluations", type=positive, default=40, help="in each epoch")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
