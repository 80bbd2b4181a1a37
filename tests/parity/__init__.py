"""What is delivered equals what zarr-python reads."""
