"""Know nothing of Zarr: errors, validation of arguments, units, atomic files, the machine, executors, the core."""
