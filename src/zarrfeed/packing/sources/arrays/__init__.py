"""Arrays: files of NumPy, HDF5 and those that xarray opens, Zarr stores, selections of a `Data`."""
