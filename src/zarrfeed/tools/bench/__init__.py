"""`zarrfeed bench`, and the loader of plain zarr-python that it compares with."""
