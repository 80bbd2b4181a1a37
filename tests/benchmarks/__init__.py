"""The benchmarks: every side delivers what it should, wrong data are found, figures follow from what was measured.

A job of its own: `pytest` alone leaves these out, `pytest tests/benchmarks` runs them.
"""
