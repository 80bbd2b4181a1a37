"""The way to a store: addresses, options, retries, limits, and reads and listings of single keys."""
