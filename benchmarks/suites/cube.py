"""The cost of gaps, missing values and several sample dimensions in processor time, beside the same samples without.

python -m benchmarks.cube
python -m benchmarks.cube --scale full --repeats 5

An ensemble of members and times with missing values and two gaps in time, and the same samples along one dimension, in
chunks of ten times of one member. Before anything is timed, the values of each case are compared with NumPy's. Cases
take turns; a figure is the least of the processor seconds of an epoch with one decode thread, so other work of the
machine changes it little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

import zarrfeed
from benchmarks.harness.machine import machine_line, write_document
from benchmarks.harness.options import add_suite_options, positive
from benchmarks.report.tables import make_console, print_rows

#: Members, times, height and width.
SCALES = {"full": (10, 200, 91, 180), "small": (3, 80, 12, 24)}
_BATCH = 16

Values = npt.NDArray[np.float32]
Describe = Callable[[zarrfeed.Data, zarrfeed.Data], zarrfeed.Data]

#: Name -> the samples of the case, made of those along one dimension or along two; and the case beside it.
CASES: dict[str, tuple[Describe, str]] = {
    "one dimension": (lambda one, two: one, "one dimension"),  # noqa: ARG005
    "member and time": (lambda one, two: two, "one dimension"),  # noqa: ARG005
    "fill_nan": (lambda one, two: one.fill_nan(0), "one dimension"),  # noqa: ARG005
    "fill_nan, mask": (lambda one, two: one.fill_nan(0, mask=True), "one dimension"),  # noqa: ARG005
    "pairs across gaps": (lambda one, two: two.window((0, 1), gaps="ignore"), "member and time"),  # noqa: ARG005
    "pairs without gaps": (lambda one, two: two.window((0, 1)), "pairs across gaps"),  # noqa: ARG005
}


def write(folder: Path, shape: tuple[int, int, int, int]) -> Values:
    """Write the two stores, and return their values."""
    values = np.arange(np.prod(shape), dtype="f4").reshape(shape)
    values[:, :, : shape[2] // 4] = np.nan
    hours = np.delete(np.arange(shape[1] + 2), [shape[1] // 4, shape[1] // 2]) * np.timedelta64(6, "h")
    dims, coords = ("member", "time", "y", "x"), {"time": np.datetime64("2000-01-01", "ns") + hours}
    ensemble = xr.Dataset({"t": (dims, values)}, coords={**coords, "member": np.arange(shape[0])})
    ensemble.to_zarr(folder / "two.zarr", encoding={"t": {"chunks": (1, 10, *shape[2:])}}, consolidated=False)
    flat = xr.Dataset({"t": (("sample", "y", "x"), values.reshape(-1, *shape[2:]))})
    flat.to_zarr(folder / "one.zarr", encoding={"t": {"chunks": (10, *shape[2:])}}, consolidated=False)
    return values


def described(folder: Path, case: str) -> zarrfeed.Data:
    """Return the samples of a case."""
    one = zarrfeed.open(folder / "one.zarr", sample_dim="sample", variables=["t"])
    two = zarrfeed.open(folder / "two.zarr", sample_dim=("member", "time"), variables=["t"])
    return CASES[case][0](one, two)


def expected(values: Values, case: str) -> dict[str, npt.NDArray[Any]]:
    """Return the samples of a case, in the order of the store, as NumPy makes them."""
    flat, times = values.reshape(-1, *values.shape[2:]), values.shape[1]
    if case == "fill_nan":
        return {"t": np.nan_to_num(flat)}
    if case == "fill_nan, mask":
        return {"t": np.nan_to_num(flat), "t_is_nan": np.isnan(flat)}
    if case.startswith("pairs"):
        first = list(range(times - 1))
        if case == "pairs without gaps":
            first = [time for time in first if time + 1 not in (times // 4, times // 2 - 1)]
        pairs = np.stack([values[:, first], values[:, [time + 1 for time in first]]], axis=2)
        return {"t": pairs.reshape(-1, *pairs.shape[2:])}
    return {"t": flat}


def wrong_values(data: zarrfeed.Data, wanted: dict[str, npt.NDArray[Any]]) -> str:
    """Return the field whose samples are not NumPy's, or ""."""
    if len(data) != len(wanted["t"]):
        return f"{len(data)} samples of {len(wanted['t'])}"
    got: Any = zarrfeed.ZarrDataset(data)[list(range(len(data)))]
    return next((name for name, one in wanted.items() if not np.array_equal(got[name], one, equal_nan=True)), "")


def _cpu_s(data: zarrfeed.Data) -> float:
    """Return the processor seconds a sample of the second epoch."""
    with zarrfeed.ZarrIterableDataset(data, batch_size=_BATCH, shuffle=True, num_threads=1) as dataset:
        for _ in dataset:
            pass
        begin = time.process_time()
        for _ in dataset:
            pass
        return (time.process_time() - begin) / len(data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status."""
    options = _parse(arguments)
    console = make_console()
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        values = write(folder, SCALES[options.scale])
        for case in CASES:
            wrong = wrong_values(described(folder, case), expected(values, case))
            if wrong:
                console.print(f"{case}: {wrong}: not the values of NumPy", highlight=False)
                return 1
        if options.checksum_only:
            return 0
        turns = [{case: _cpu_s(described(folder, case)) for case in CASES} for _ in range(options.repeats)]
    cpu = {case: min(turn[case] for turn in turns) for case in CASES}
    write_document(options.out / "cube.json", cpu_s=cpu)
    print_rows(
        console,
        ["", "CPU us a sample", "times", "beside"],
        [
            [case, f"{1e6 * cpu[case]:.1f}", f"{cpu[case] / cpu[other]:.2f}", other]
            for case, (_, other) in CASES.items()
        ],
        words=1,
    )
    console.print(machine_line(), highlight=False, soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.cube", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=positive, default=3)
    add_suite_options(parser, SCALES)
    return parser.parse_args(arguments)
