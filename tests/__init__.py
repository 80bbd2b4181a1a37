"""Tests of zarrfeed: `pytest`, from the root of the repository."""
