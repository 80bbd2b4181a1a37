"""Weather: a field and its next step from a store that xarray wrote, normalised; a convolution learns the step.

python examples/weather.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
import xarray as xr

import zarrfeed as zf


def write_era5(path: Path) -> None:
    """Write 400 maps of temperature: a wave that moves east by a column each six hours, packed as int16."""
    times = np.arange("2020-01-01", "2020-04-10", np.timedelta64(6, "h"), dtype="datetime64[ns]")
    lon = np.arange(0, 360, 10.0)
    wave = 280 + 15 * np.cos(np.deg2rad(3 * (lon[None] - 10 * np.arange(len(times))[:, None])))
    maps = np.repeat(wave[:, None, :], 18, axis=1) + np.linspace(-10, 10, 18)[None, :, None]
    field = xr.DataArray(maps.astype("f4"), dims=("time", "lat", "lon"), coords={"time": times, "lon": lon})
    packed = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 273.15, "chunks": (16, 18, 36)}
    field.to_dataset(name="t2m").to_zarr(path, encoding={"t2m": packed}, consolidated=False)


def main() -> None:
    """Train on January to March, and say how well the first days of April are forecast."""
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "era5.zarr"
        write_era5(store)
        maps = zf.open(store, sample_dim="time", variables=["t2m"])
        train = maps.sel(time=slice("2020-01", "2020-03"))
        statistics = zf.stats(train)
        train, test = (part.window((0, 1)).normalize(statistics) for part in (train, maps.sel(time="2020-04")))
        model = torch.nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        dataset = zf.ZarrIterableDataset(train, batch_size=16, shuffle=True, seed=0)
        for _ in range(12):
            for batch in dataset:
                now, after = batch["t2m"].split(1, dim=1)
                loss = torch.nn.functional.mse_loss(model(now), after)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        maps_ahead = zf.ZarrDataset(test)[range(len(test))]["t2m"]
        with torch.no_grad():
            error = torch.nn.functional.mse_loss(model(maps_ahead[:, :1]), maps_ahead[:, 1:]).sqrt()
    print(f"{len(train)} steps trained on, {len(test)} forecast: error {float(error):.2f} standard deviations")


if __name__ == "__main__":
    main()
