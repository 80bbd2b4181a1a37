"""Benchmarks of zarrfeed: `python -m benchmarks.run`, from the root of the repository."""
