"""`Data` and the functions that make it: `open`, `join`, `mix`, `from_xarray`."""
