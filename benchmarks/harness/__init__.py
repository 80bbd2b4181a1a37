"""How loaders are timed and verified."""
