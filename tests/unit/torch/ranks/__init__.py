"""Tests of src/zarrfeed/torch/ranks/."""
