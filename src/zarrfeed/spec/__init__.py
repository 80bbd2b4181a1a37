"""Frozen descriptions of arrays, fields, windows, conversions, shards and error policies; no I/O, no torch, no zarr."""
