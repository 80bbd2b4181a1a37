"""Files of other formats as stores: their metadata as documents of Zarr, and where in the file each chunk lies."""
