"""The bytes of a chunk, or an error: readers, shards, caches, and codecs that zarr-python decodes."""
