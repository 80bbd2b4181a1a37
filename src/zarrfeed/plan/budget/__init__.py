"""How much memory an order takes, and how well it mixes for that."""
