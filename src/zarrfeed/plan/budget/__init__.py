"""The memory that an order takes, and how well it mixes for that."""
