"""The bytes of a chunk, or an error: stores, keys, shard indices, retries, timeouts. Imports no plan."""
