"""How a store is reached: addresses, options, retries, limits, and reads and listings of single keys."""
