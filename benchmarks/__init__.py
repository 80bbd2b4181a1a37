"""Benchmarks of zarrfeed: `python -m benchmarks.run`, from the root of the repository.

The modules beside this one are the commands; suites/ has what they measure.
"""
